"""CUDA toolkits as `farm/catalog/cuda.yaml` holds them: read from a package index."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from farm import catalog
from tools.catalogue_records import Notes, Proposal, on_platform
from tools.package_index import RemoteWheel, Wheel, release_key, wheels

OLDEST_CUDA = (12, 0)
"""The first CUDA whose compiler wheels hold `ptxas` and `crt/host_config.h`."""


def compiled_sms(ptxas: bytes) -> list[int]:
    """The SMs that NVIDIA's assembler says it compiles for; it is run, on Linux and x86-64."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ptxas"
        program.write_bytes(ptxas)
        program.chmod(0o700)
        usage = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    # Only the help of this one option: others list SMs too.
    option = re.search(r"--gpu-name.*?Default", usage, re.DOTALL)
    if option is None:
        return []
    return sorted(set(map(int, re.findall(r"sm_(\d{2,3})", option[0]))))


def cuda_record(release: str, compiler: Wheel, headers: Wheel) -> str:
    """A toolkit as `cuda.yaml` holds it, from `ptxas` and `crt/host_config.h`; the drivers are not
    in any wheel.

    Args:
        release: Its version, e.g. `13.0.2`.
        compiler: The wheel with `ptxas`.
        headers: The wheel with `crt/host_config.h`, often the same.
    """
    remote = RemoteWheel(compiler)
    ptxas = remote.find("bin/ptxas")
    assert ptxas
    sms = compiled_sms(remote.read(ptxas))

    if headers != compiler:
        remote = RemoteWheel(headers)
    header = remote.text(remote.find("crt/host_config.h") or "")
    gcc = re.search(r"__GNUC__ > (\d+)", header)
    msvc = re.search(r"_MSC_VER < (\d+) \|\| _MSC_VER >= (\d+)", header)
    assert gcc
    assert msvc
    lines = [
        f'  "{minor_release(release)}":',
        f'    release: "{release}"',
        f"    sm: [{', '.join(map(str, sms))}]",
        f"    gcc_max: {gcc[1]}",
        f"    msvc_min: {msvc[1]}",
        f"    msvc_max: {int(msvc[2]) - 1}",
        "    driver_linux: null",
        "    driver_windows: null",
    ]
    return "\n".join(lines) + "\n"


def minor_release(version: str) -> str:
    """`13.0` of `13.0.2`."""
    return ".".join(version.split(".")[:2])


def newest_of_each_minor(index: str) -> dict[str, Wheel]:
    """The newest `cuda-toolkit` wheel of each release like 12.8."""
    releases: dict[str, Wheel] = {}
    for wheel in wheels(index, "cuda-toolkit"):
        if release_key(wheel.version) < OLDEST_CUDA:
            continue
        short = minor_release(wheel.version)
        other = releases.get(short)
        if other is None or release_key(wheel.version) > release_key(other.version):
            releases[short] = wheel
    return releases


def part_wheels(index: str, meta: Wheel) -> dict[str, Wheel]:
    """The Linux wheels of a toolkit's compiler and headers, by package name without `-cu12`."""
    # The wheel `cuda-toolkit` is empty: its requirements name the wheels of the parts.
    requirements = "\n".join(RemoteWheel(meta).requirements)
    pins = re.findall(r"(nvidia-cuda-(?:nvcc|crt)(?:-cu12)?) ?\(?==([\d.]+?)\.\*", requirements)
    parts = {}
    for package, version in dict(pins).items():
        for wheel in on_platform(wheels(index, package), "manylinux.*x86_64"):
            if wheel.version == version:
                parts[package.removesuffix("-cu12")] = wheel
                break
    return parts


def proposals(index: str, notes: Notes) -> Iterator[Proposal]:
    """A record of each toolkit that the index has and the catalogue lacks."""
    for short, meta in newest_of_each_minor(index).items():
        if short in catalog.toolkits():
            continue
        parts = part_wheels(index, meta)
        compiler = parts.get("nvidia-cuda-nvcc")
        if compiler is None:
            notes.add(f"CUDA {meta.version}: the index has no compiler wheel for it")
            continue
        notes.add(
            f"CUDA {short}: drivers (table in the release notes of the toolkit); archives "
            "(tools/import_redist.py)"
        )
        release = ".".join(meta.version.split(".")[:3])
        yield (
            "toolkits",
            short,
            cuda_record(release, compiler, parts.get("nvidia-cuda-crt", compiler)),
        )
