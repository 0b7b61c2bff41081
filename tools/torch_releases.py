"""Releases of PyTorch as `farm/catalog/torch.yaml` holds them: read from a package index."""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from farm import catalog
from farm.catalog.models import TorchRelease
from tools.catalogue_records import (
    JOBS,
    OLDEST_TORCH,
    PLATFORMS,
    Notes,
    Proposal,
    by_version,
    flow_list,
    pinned_version,
    python_order,
    pythons_on,
    version_facts,
    wheel_to_read,
)
from tools.package_index import RemoteWheel, Wheel, release_key

NEWEST_COMPANIONS = 40
"""So many releases of a companion are read: each costs requests."""

Companions = Mapping[str, tuple[str, str]]
"""For each torch release the newest companion that asks for exactly it: its version and commit."""


def companions(index: str, package: str) -> Companions:
    """Find the companions of torch releases on an index.

    Args:
        index: The index's URL.
        package: `torchvision` or `torchaudio`.
    """
    releases = by_version(index, package)
    newest = sorted(releases, key=release_key)[-NEWEST_COMPANIONS:]

    def torch_and_commit(version: str) -> tuple[str | None, str | None]:
        chosen = wheel_to_read(releases[version], PLATFORMS["linux"])
        if chosen is None:
            return None, None
        remote = RemoteWheel(chosen)
        torch = pinned_version(remote.requirements, "torch")
        return torch, version_facts(remote, package).get("git_version")

    by_torch: dict[str, tuple[str, str]] = {}
    with ThreadPoolExecutor(JOBS) as pool:
        # In rising order, so that the newest companion of a release is the one that stays.
        for version, (torch, commit) in zip(
            newest, pool.map(torch_and_commit, newest), strict=True
        ):
            if torch and commit:
                by_torch[torch] = (version, commit)
    return by_torch


def predecessor_of(version: str) -> tuple[str | None, TorchRelease]:
    """The newest release of the catalogue before this one; the oldest without a name if there is
    none.
    """
    releases = catalog.torch_releases()
    older = [name for name in releases if release_key(name) < release_key(version)]
    if older:
        return older[-1], releases[older[-1]]
    return None, next(iter(releases.values()))


def text_of(remote: RemoteWheel, suffix: str) -> str:
    """The text of the member with this end of its name; empty if there is none."""
    name = remote.find(suffix)
    if name is None:
        return ""
    return remote.text(name)


def torch_record(version: str, candidates: Sequence[Wheel], pairs: Sequence[Companions]) -> str:
    """A release as `torch.yaml` holds it; what no wheel says follows its predecessor, and is said
    to be unconfirmed.

    Args:
        version: The release.
        candidates: Its wheels.
        pairs: The companions of torchvision, then those of torchaudio.
    """
    chosen = wheel_to_read(candidates, PLATFORMS["linux"])
    assert chosen
    remote = RemoteWheel(chosen)
    before_name, before = predecessor_of(version)

    cuda_cmake = text_of(remote, "Caffe2/public/cuda.cmake")
    cuda_min = re.search(r"CUDA_VERSION VERSION_LESS \"?([\d.]+)", cuda_cmake)
    least_cuda = cuda_min[1] if cuda_min else before.cuda_min
    cxx = re.search(r"CXX_STANDARD (\d+)", text_of(remote, "Torch/TorchConfig.cmake"))

    # No lower than its predecessor's, and no lower than what the oldest CUDA that it takes compiles
    # for.
    toolkits = catalog.toolkits()
    oldest_toolkit = toolkits[catalog.find(toolkits, least_cuda) or "11.4"]
    sm_min = max(before.sm_min, min(oldest_toolkit.sm))

    pythons = []
    for name, tag in PLATFORMS.items():
        pythons.append(f"{name}: {flow_list(pythons_on(candidates, tag))}")

    lines = [
        f'  "{version}":',
        f"    commit: {version_facts(remote, 'torch')['git_version']}",
        f'    cuda_min: "{least_cuda}"',
        f"    cxx: {cxx[1] if cxx else before.cxx}",
        f"    sm_min: {sm_min}",
        f"    sm_built: {max(sm_min, before.sm_built)}",
        f"    pythons: {{{', '.join(pythons)}}}",
        f"    numpy_major_max: {before.numpy_major_max}",
        f"    gcc_min: {'null' if before.gcc_min is None else before.gcc_min}",
        "    msvc_built: null",
    ]
    doubts = {"sm_min": "no build of this release for its lowest SM is known"}
    sources = {}
    if before.msvc_min:
        lines.append(f"    msvc_min: {before.msvc_min}")
        doubts["msvc_min"] = "an older compiler was not tried with this release"
    lines.append(f"    official: [{official_pair(remote) or ''}]")
    if before_name and before.gcc_min is not None:
        sources["gcc_min"] = f"as for {before_name}"

    last_companions = (before.vision, before.audio)
    for name, pair, last in zip(("vision", "audio"), pairs, last_companions, strict=True):
        companion, commit = pair.get(version, (last, None))
        lines.append(f'    {name}: "{companion}"')
        if commit:
            lines.append(f"    {name}_commit: {commit}")
        else:
            sources[name] = (
                "no published companion asks for exactly this torch: the newest that there was"
            )
    if cxx is None:
        doubts["cxx"] = "the CMake files of the wheel no longer say"
    lines += keyed_lines("sources", sources)
    lines += keyed_lines("unconfirmed", doubts)
    return "\n".join(lines) + "\n"


def keyed_lines(title: str, entries: Mapping[str, str]) -> Iterator[str]:
    """A mapping of a record as YAML lines; none if it is empty."""
    if entries:
        yield f"    {title}:"
    for key, text in entries.items():
        yield f'      {key}: "{text}"'


def official_pair(remote: RemoteWheel) -> str | None:
    """The CUDA and cuDNN of a wheel, as `official` in `torch.yaml` holds them."""
    cuda = version_facts(remote, "torch").get("cuda")
    if cuda is None:
        return None
    cudnn = pinned_version(remote.requirements, r"nvidia-cudnn-cu\d+")
    quoted_cudnn = f'"{cudnn}"' if cudnn else "null"
    return f'{{cuda: "{cuda}", cudnn: {quoted_cudnn}}}'


def note_new_pythons(releases: Mapping[str, Sequence[Wheel]], notes: Notes) -> None:
    """Note the Pythons that got a wheel of a release after the catalogue took the release in."""
    for version, release in catalog.torch_releases().items():
        for name, tag in PLATFORMS.items():
            published = set(pythons_on(releases.get(version, ()), tag))
            added = sorted(published - set(release.pythons.on(name)), key=python_order)
            if added:
                notes.add(
                    f"torch {version}: {name} wheels for {', '.join(added)}, which its `pythons` "
                    "lacks"
                )


def proposals(index: str, notes: Notes) -> Iterator[Proposal]:
    """A record of each release that the index has and the catalogue lacks."""
    releases = by_version(index, "torch")
    note_new_pythons(releases, notes)
    new = []
    for version in releases:
        if release_key(version) >= OLDEST_TORCH and version not in catalog.torch_releases():
            new.append(version)
    # Before the companions are looked for: each costs requests.
    if not new:
        return
    pairs = [companions(index, package) for package in ("torchvision", "torchaudio")]

    def record(version: str) -> str:
        return torch_record(version, releases[version], pairs)

    with ThreadPoolExecutor(JOBS) as pool:
        for version, text in zip(new, pool.map(record, new), strict=True):
            notes.add(
                f"torch {version}: the other CUDA flavours in RELEASE.md of PyTorch (official; "
                "official.yaml)"
            )
            yield "releases", version, text
