"""CUDA toolkits in NVIDIA's wheels, as `farm/catalog/toolkit_wheels.yaml` holds them: read from a
package index.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase

from farm import catalog
from farm.catalog.models import WheelToolkit
from tools.catalogue_records import JOBS, MACHINES
from tools.package_index import RemoteWheel, Wheel, release_key, wheels


def records(index: str, note: Callable[[str], None]) -> Iterator[tuple[str, str, str]]:
    """Section, key and text of each toolkit of `cuda.yaml` that has the wheels of a known layout
    and no record yet.

    Args:
        index: The index's URL.
        note: Called with what a person must look into.
    """
    known = catalog.wheel_toolkits()
    by_major = {release_key(cuda)[0]: toolkit for cuda, toolkit in known.items()}
    missing = [
        cuda
        for cuda in catalog.toolkits()
        if cuda not in known and release_key(cuda)[0] in by_major
    ]
    if not missing:
        return
    metas = list(wheels(index, "cuda-toolkit"))
    like = by_major[release_key(missing[0])[0]]
    packages = sorted({package for names in like.components.values() for package in names})
    with ThreadPoolExecutor(JOBS) as pool:
        listed = dict(
            zip(
                packages,
                pool.map(lambda package: list(wheels(index, package)), packages),
                strict=True,
            )
        )
        for cuda in missing:
            release = release_key(catalog.toolkits()[cuda].release)
            meta = max(
                (w for w in metas if release_key(w.version)[:3] == release), key=_age, default=None
            )
            if meta is None:
                note(f"CUDA {cuda}: the index has no cuda-toolkit of its release")
                continue
            pins = versions(RemoteWheel(meta).requirements)
            chosen = {
                platform: [
                    wheel
                    for package in packages
                    for wheel in listed[package]
                    if wheel.version == pins.get(package) and re.fullmatch(tag, wheel.platform)
                ]
                for platform, tag in MACHINES.items()
            }
            short = [platform for platform, found in chosen.items() if len(found) != len(packages)]
            files = [wheel for found in chosen.values() for wheel in found]
            strange = [text for text in pool.map(lambda wheel: _unlike(wheel, like), files) if text]
            if short or strange:
                note(
                    f"CUDA {cuda}: not as {like.layout}: {', '.join([*short, *strange])}; write a "
                    "layout"
                )
                continue
            yield "toolkits", cuda, _record(cuda, like.layout, chosen)


def versions(requirements: list[str]) -> dict[str, str]:
    """The version by package that a cuda-toolkit asks for: that of `==13.1.115.*`, the least of
    `<14,>=13.1.115`.
    """
    releases = (
        re.match(r"([a-z0-9-]+)\s*\(?(?:==|<\d+,>=)([\d.]+?)(?:\.\*)?\)?;", line)
        for line in requirements
    )
    return {match[1]: match[2] for match in releases if match}


def _age(wheel: Wheel) -> tuple[int, ...]:
    return release_key(wheel.version)


def _unlike(wheel: Wheel, like: WheelToolkit) -> str | None:
    """Paths of a wheel that differ from its layout; None: no path does."""
    names = [
        name
        for name in RemoteWheel(wheel).names
        if ".dist-info/" not in name and name != "nvidia/__init__.py"
    ]
    outside = next((name for name in names if not name.startswith(f"{like.folder}/")), None)
    if outside:
        return f"{wheel.file} has {outside}"
    held = like.libraries.get(re.sub(r"[-_.]+", "-", wheel.file.partition("-")[0]))
    if held is None or "win" in wheel.platform:
        return None
    lost = [
        one
        for one in held.files
        if not any(fnmatchcase(name, f"{like.folder}/lib/{one}") for name in names)
    ]
    return f"{wheel.file} has no {lost[0]}" if lost else None


def _record(cuda: str, layout: str, chosen: dict[str, list[Wheel]]) -> str:
    lines = [f'  "{cuda}":', f"    layout: {layout}", "    wheels:"]
    for platform, record in chosen.items():
        lines.append(f"      {platform}:")
        for wheel in record:
            package = wheel.file.partition("-")[0].replace("_", "-")
            lines += [
                f"        - package: {package}",
                f"          file: {wheel.file}",
                f"          sha256: {wheel.sha256}",
            ]
    return "\n".join(lines) + "\n"
