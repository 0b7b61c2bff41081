"""What a channel offers must not be impossible: checked by the catalogue when ci/matrix.yaml is loaded.

Only what needs no more than two words of the channel is checked here, in the order of the file; the rules of
`farm.compat` judge whole builds later.
"""

from collections.abc import Iterable, Iterator, Mapping

from farm import catalog
from farm.catalog.binary import is_integrated
from farm.variant import sm_number

Key = tuple[str, str, str, str, str, str | None]
"""Package, platform, GPU, CPU, Python, CUDA."""
Problem = tuple[str, str, str]
"""What is impossible, and the axis and word that say so."""


def problems(keys: Iterable[Key], options: Mapping[str, object]) -> Iterator[Problem]:
    """Everything impossible in a channel's builds."""
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
    yield from _impossible(every, torch if isinstance(torch, str) else None)


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
