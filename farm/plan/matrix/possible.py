"""Builds of a channel that the catalogue says are impossible: refused when ci/matrix.yaml is loaded.

Only what needs no more than two words of the channel is checked here, in the order of the file; the rules of
`farm.plan.compat` judge whole builds later.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from farm import catalog
from farm.catalog import redist
from farm.catalog.binary import MAJOR, is_integrated
from farm.plan.variant import sm_number
from farm.platforms.facts import facts

Key = tuple[str, str, str, str, str, str | None]
"""Package, platform, GPU, CPU, Python, CUDA."""
Problem = tuple[str, str, str]
"""An impossibility, and the axis and word that say so."""


def problems(keys: Iterable[Key], options: Mapping[str, object], base: str | None) -> Iterator[Problem]:
    """Everything impossible in a channel's builds; `base` is the image that it pins."""
    every = list(keys)
    torch = options.get("torch")
    for name, title, known in (
        ("torch", "torch", catalog.torch_releases()),
        ("cudnn", "cuDNN", catalog.cudnn_releases()),
    ):
        value = options.get(name)
        if isinstance(value, str) and value not in known:
            yield _unknown(title, value, known), name, value
    for cuda in _unique(key[5] for key in every):
        if cuda not in catalog.toolkits():
            yield _unknown("CUDA", cuda, catalog.toolkits()), "cuda", cuda
    yield from _not_provided(every, options, base)
    yield from _nowhere(every)
    yield from _impossible(every, torch if isinstance(torch, str) else None)


def _not_provided(every: list[Key], options: Mapping[str, object], base: str | None) -> Iterator[Problem]:
    """Versions of CUDA and cuDNN that the toolkit's provider does not have."""
    toolkit, cudnn = options.get("toolkit"), options.get("cudnn")
    for cuda in _unique(key[5] for key in every):
        if toolkit == "wheels" and cuda not in catalog.wheel_toolkits():
            yield f"the wheels toolkit has CUDA {', '.join(catalog.wheel_toolkits())}, not {cuda}", "cuda", cuda
        release = catalog.toolkits()[cuda].release if cuda in catalog.toolkits() else None
        if toolkit == "nvidia" and release and release not in redist.versions("cuda"):
            yield f"no archive of CUDA {release} is pinned, and the nvidia toolkit is made of them", "cuda", cuda
        if toolkit != "debian" or base is None:
            continue
        theirs = catalog.debian_releases()[base].cuda
        if cuda != theirs:
            yield (
                f"the debian toolkit of {base} has {f'CUDA {theirs}' if theirs else 'no CUDA'}, not {cuda}",
                "cuda",
                cuda,
            )
        elif isinstance(cudnn, str) and release and not catalog.cudnn_wheel(cudnn, release):
            yield f"no wheel of cuDNN {cudnn} for CUDA {cuda} is pinned: the debian toolkit has none", "cudnn", cudnn

    if toolkit == "debian":
        yield from _not_debians(every, base)


def _not_debians(every: list[Key], base: str | None) -> Iterator[Problem]:
    for platform in _unique(key[1] for key in every if key[5]):
        if not facts(platform).in_images:
            yield f"the debian toolkit is for Linux, not for {platform}", "platforms", platform
    machine = catalog.debian_releases()[base].cuda_machine if base else None
    for cpu in _unique(key[3] for key in every if key[5] and base):
        if (other := catalog.cpu_levels()[cpu].machine) != machine:
            yield f"the debian toolkit of {base} is for {machine}: {cpu} is for {other}", "cpus", cpu


def _nowhere(every: list[Key]) -> Iterator[Problem]:
    """GPUs, CPUs and Pythons that a platform does not have."""
    for platform, gpu in dict.fromkeys((key[1], key[2]) for key in every):
        if gpu == "mps" and gpu not in facts(platform).gpus:
            yield f"{gpu} is not for {platform}", "gpus", gpu
        elif not facts(platform).cuda and gpu not in ("cpu", "mps"):
            yield f"there is no CUDA for {platform}: {gpu} cannot be built there", "gpus", gpu
    for platform, cpu in dict.fromkeys((key[1], key[3]) for key in every):
        machine, machines = catalog.cpu_levels()[cpu].machine, facts(platform).built_on
        if machine not in machines:
            yield f"{cpu} is for {machine}; {platform} builds are for {' and '.join(machines)}", "cpus", cpu
    for platform, python in dict.fromkeys((key[1], key[4]) for key in every):
        if python.endswith("t") and not facts(platform).in_images:
            yield f"no free-threaded Python is pinned for {platform}: {python} is for Linux alone", "pythons", python


def _impossible(every: list[Key], torch: str | None) -> Iterator[Problem]:
    sets, release = catalog.architectures().sets, catalog.torch_releases().get(torch or "")
    # Each pair once, in the order of the file: many builds share one.
    for gpu, cpu in dict.fromkeys((key[2], key[3]) for key in every):
        level = catalog.cpu_levels()[cpu]
        for name in sets.get(gpu, [gpu]):
            if name.startswith("sm") and is_integrated(sm_number(name)) and level.machine != "aarch64":
                yield f"{gpu} is part of an Arm chip: there is no {gpu}-{cpu}", "gpus", gpu
    for gpu, cuda in dict.fromkeys((key[2], key[5]) for key in every):
        toolkit = catalog.toolkits().get(cuda or "")
        if toolkit is None:
            continue
        for name in sets.get(gpu, [gpu]):
            if sm_number(name) not in {*toolkit.sm, *toolkit.sm_unconfirmed}:
                yield f"CUDA {cuda} cannot compile for {name}", "gpus", gpu
    if release is None:
        return
    # The newest grammar that is not newer than the release: an older one does not read the names of later cards.
    patterns = catalog.arch_list_grammar().numbers
    pattern = [text for since, text in patterns.items() if _number(since) <= _number(torch or "0")][-1:]
    for gpu in _unique(key[2] for key in every if key[0] == "torch" and key[5]):
        for name in sets.get(gpu, [gpu]):
            spelled = f"{sm_number(name) // MAJOR}.{sm_number(name) % MAJOR}"
            if pattern and not re.fullmatch(pattern[0], spelled, re.ASCII):
                yield f"torch {torch} does not read {spelled!r} in TORCH_CUDA_ARCH_LIST", "gpus", gpu
    for cuda in _unique(key[5] for key in every if key[0] == "torch"):
        if _number(cuda) < _number(release.cuda_min):
            yield f"torch {torch} needs CUDA {release.cuda_min} or newer, not {cuda}", "cuda", cuda
    for platform, python in dict.fromkeys((key[1], key[4]) for key in every if key[0] == "torch"):
        if python not in release.pythons.on(platform):
            yield f"torch {torch} does not build for {python} on {platform}", "pythons", python


def _unknown(title: str, value: str, known: Iterable[str]) -> str:
    return f"{title} {value} is not in the catalogue; known: {', '.join(known)}"


def _unique(words: Iterable[str | None]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word is not None]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
