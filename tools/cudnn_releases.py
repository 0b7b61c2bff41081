"""Releases of cuDNN as `farm/catalog/cudnn.yaml` holds them: read from a package index."""

import re
from collections.abc import Iterator, Mapping

from farm import catalog
from farm.wheel import fatbin
from farm.wheel.elf import read_elf
from tools.catalogue_records import Notes, Proposal, on_platform
from tools.package_index import RemoteWheel, Wheel, release_key, wheels

OLDEST_CUDNN = (8, 5)
CUDA_MAJORS = (11, 12, 13)
LIBRARIES_WITH_KERNELS = (
    # cuDNN 9
    "cnn",
    "ops",
    "adv",
    # cuDNN 8
    "cnn_infer",
    "ops_infer",
    "adv_infer",
    "engines_runtime_compiled",
)


def library_sms(library: bytes) -> set[int]:
    """The SMs that a library has machine code for."""
    sms: set[int] = set()
    for section in read_elf(library).sections:
        if section.name != ".nv_fatbin":
            continue
        for box in fatbin.read_fatbins(library, section.offset, section.offset + section.size):
            sms.update(map(fatbin.number, box.sass))
    return sms


def cudnn_sms(wheel: RemoteWheel) -> tuple[int, int] | None:
    """Lowest and highest SM with code in every library that has kernels."""
    lowest = []
    highest = []
    for part in LIBRARIES_WITH_KERNELS:
        file_name = re.compile(rf"/libcudnn_{part}\.so\.\d+$")
        library = next(filter(file_name.search, wheel.names), None)
        if library is None:
            continue
        sms = library_sms(wheel.read(library))
        if sms:
            lowest.append(min(sms))
            highest.append(max(sms))
    if not lowest:
        return None
    # The highest of the lowest: a GPU needs code in every part of cuDNN.
    return max(lowest), max(highest)


def cudnn_record(short: str, by_major: Mapping[int, Wheel]) -> str | None:
    """A release as `cudnn.yaml` holds it; None if none of its wheels has device code that can be
    read.

    Args:
        short: The release, e.g. `9.10.2`.
        by_major: Its wheels by the major version of CUDA.
    """
    newest = by_major[max(by_major)]
    sms = cudnn_sms(RemoteWheel(newest))
    if sms is None:
        return None
    lines = [
        f'  "{short}":',
        f'    version: "{newest.version}"',
        f"    sm_min: {sms[0]}",
        f"    sm_max: {sms[1]}",
        f"    cuda_majors: [{', '.join(map(str, sorted(by_major)))}]",
        "    wheels:",
    ]
    for major, wheel in sorted(by_major.items()):
        lines += [f"      {major}:", f"        package: nvidia-cudnn-cu{major}"]
        lines += [f"        file: {wheel.file}", f"        sha256: {wheel.sha256}"]
    return "\n".join(lines) + "\n"


def newest_of_each_release(index: str) -> dict[str, dict[int, Wheel]]:
    """For each release like 9.10.2 the newest Linux wheel by the major version of CUDA."""
    releases: dict[str, dict[int, Wheel]] = {}
    for major in CUDA_MAJORS:
        for wheel in on_platform(wheels(index, f"nvidia-cudnn-cu{major}"), "manylinux.*x86_64"):
            if release_key(wheel.version) < OLDEST_CUDNN:
                continue
            short = ".".join(wheel.version.split(".")[:3])
            by_major = releases.setdefault(short, {})
            other = by_major.get(major)
            if other is None or release_key(wheel.version) > release_key(other.version):
                by_major[major] = wheel
    return releases


def official_versions() -> set[str]:
    """The versions of cuDNN that official wheels of PyTorch name."""
    versions = set()
    for release in catalog.torch_releases().values():
        for pair in release.official:
            versions.add(str(pair.cudnn))
    return versions


def proposals(index: str, notes: Notes) -> Iterator[Proposal]:
    """A record of the newest release, and of those that official wheels of PyTorch name, where the
    catalogue lacks it: each costs some 300 MB to read.
    """
    releases = newest_of_each_release(index)
    official = official_versions()
    wanted_releases = {max(releases, key=release_key)}
    for short, by_major in releases.items():
        if any(wheel.version in official for wheel in by_major.values()):
            wanted_releases.add(short)
    for short in sorted(wanted_releases, key=release_key):
        if short in catalog.cudnn_releases():
            continue
        record = cudnn_record(short, releases[short])
        if record is None:
            notes.add(f"cuDNN {short}: no device code could be read; not proposed")
            continue
        yield "releases", short, record
