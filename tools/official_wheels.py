"""Official wheels of PyTorch as `farm/catalog/official.yaml` holds them: read from a package
index.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from farm import catalog
from tools.catalogue_records import (
    JOBS,
    MACHINES,
    OLDEST_TORCH,
    Notes,
    Proposal,
    flow_list,
    python_order,
    version_facts,
    wheel_to_read,
)
from tools.package_index import RemoteWheel, Wheel, release_key, wheels


def arch_flags(remote: RemoteWheel) -> list[str]:
    """The answer of `torch.cuda.get_arch_list()` for a wheel: `sm_75`, `compute_120`."""
    name = remote.find("torch/lib/libtorch_python.so")
    if name is None:
        return []
    # The list is one text in the library: the longest run of such words.
    runs = re.findall(rb"(?:(?:sm|compute)_\d{2,3}[af]?[ ;]?){2,}", remote.read(name))
    return max(runs, key=len, default=b"").decode().split()


def official_record(version: str, platform: str, wheel: Wheel, pythons: Sequence[str]) -> str:
    """A wheel of the index as `official.yaml` holds it."""
    remote = RemoteWheel(wheel)
    cuda = version_facts(remote, "torch").get("cuda")
    sass: list[str] = []
    ptx: list[str] = []
    if cuda and remote.find("libtorch_cuda.so"):
        for flag in arch_flags(remote):
            kind, _, number = flag.partition("_")
            (sass if kind == "sm" else ptx).append(number)
    cuda_text = f'"{cuda}"' if cuda else "null"
    return (
        f'  - {{torch: "{version}", platform: {platform}, index: pypi, cuda: {cuda_text}, '
        f"sm: {flow_list(sass)}, ptx: {flow_list(ptx)}, pythons: {flow_list(pythons)},\n"
        f"     file: {wheel.file}, sha256: {wheel.sha256}, source: wheel}}\n"
    )


def missing_wheels(index: str) -> dict[tuple[str, str], list[Wheel]]:
    """The wheels by release and platform that the index has and the catalogue lacks."""
    recorded = set()
    for row in catalog.official().wheels:
        if row.index == "pypi":
            recorded.add((row.torch, row.platform))
    missing: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in wheels(index, "torch"):
        if release_key(wheel.version) < OLDEST_TORCH:
            continue
        for platform, tag in MACHINES.items():
            key = (wheel.version, platform)
            if key not in recorded and re.fullmatch(tag, wheel.platform):
                missing.setdefault(key, []).append(wheel)
    return missing


def proposals(index: str, _notes: Notes) -> Iterator[Proposal]:
    """A record of each release and platform that the index has and the catalogue lacks."""
    missing = missing_wheels(index)

    def record(key: tuple[str, str]) -> str:
        version, platform = key
        pythons = sorted({wheel.python for wheel in missing[key]}, key=python_order)
        wheel = wheel_to_read(missing[key], MACHINES[platform])
        assert wheel
        return official_record(version, platform, wheel, pythons)

    keys = sorted(missing, key=lambda key: (release_key(key[0]), key[1]))
    with ThreadPoolExecutor(JOBS) as pool:
        for key, text in zip(keys, pool.map(record, keys), strict=True):
            yield "wheels", key[0], text
