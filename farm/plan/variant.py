"""Variant names: `<gpu>-<cpu>-<python>`, the hardware and Python that a wheel is for."""

import re
from dataclasses import dataclass
from functools import cached_property

from farm import catalog
from farm.base.errors import NotBuildableError, UsageError
from farm.base.text import nearest

PYTHONS = (*(f"py3{minor}" for minor in range(9, 15)), "py313t", "py314t")
"""Every Python that the farm builds for; `t`: free-threaded."""
SPECIAL_GPUS = ("cpu", "mps")


def gpu_words() -> tuple[str, ...]:
    """Every word that may stand for the GPU: `cpu`, `mps`, an SM, or a named set of SMs."""
    architectures = catalog.architectures()
    return (*SPECIAL_GPUS, *architectures.architectures, *architectures.sets)


def cpu_words() -> tuple[str, ...]:
    return tuple(catalog.cpu_levels())


def dotted_python(word: str) -> str:
    """`3.11` for `py311`, `3.14t` for the free-threaded `py314t`."""
    return f"{word[2]}.{word[3:]}"


@dataclass(frozen=True, order=True)
class Variant:
    """The hardware and Python that a wheel is for; `str()` gives its name, `Variant.parse` reads it
    back.
    """

    gpu: str
    cpu: str
    python: str

    @classmethod
    def parse(cls, name: str) -> "Variant":
        """Read a variant name. Raises UsageError: it is none; NotBuildableError: a Python without
        builds.
        """
        parts = name.rsplit("-", 2)  # a card's name may hold dashes: A100-SXM4-40GB-avx2-py312
        axes = (("GPU", gpu_words()), ("CPU", cpu_words()), ("Python", PYTHONS))
        card = None if parts[0] in gpu_words() else _card(parts[0])
        if len(parts) != len(axes) or ("-" in parts[0] and card is None):
            detail, words = card or ("", [])
            raise UsageError(
                f"{name!r} is not a variant name: expected <gpu>-<cpu>-<python>"
                + (f"; {detail}" if detail else ""),
                hint=f"an example: {(words or ['sm35'])[0]}-avx-py311",
            )
        # Only where the other words are right: else the name is wrong, not the Python.
        if parts[0] in gpu_words() and parts[1] in cpu_words() and parts[2] not in PYTHONS:
            _refuse_python(parts[2])
        choices = list[list[str]]()
        problems = list[str]()
        for part, (axis, choices_known) in zip(parts, axes, strict=True):
            if choices == [["mps"]]:
                choices.append(["arm64"])  # the one CPU level beside Apple's GPUs
            elif part in choices_known:
                choices.append([part])
            elif axis == "GPU" and card is not None:
                problems.append(card[0])
                choices.append(card[1])
            else:
                # Numbers by their distance, words by their letters: sm36 is nearer to sm37 than to
                # sm86.
                lower = part.lower()
                exact = [lower] if lower in choices_known else _as_others_write(lower)
                problems.append(f"{axis} {part!r} (known: {', '.join(choices_known)})")
                choices.append(
                    exact or _same_kind(lower, choices_known) or nearest(lower, choices_known)
                )
        if problems:
            suggestions = ", ".join(
                [f"{g}-{c}-{p}" for g in choices[0] for c in choices[1] for p in choices[2]][:3]
            )
            if suggestions:
                if card:
                    hint = f"did you mean {suggestions}?"
                else:
                    hint = f"nearest: {suggestions}"
            else:
                hint = None
            raise UsageError(f"unknown variant {name!r}: {'; '.join(problems)}", hint=hint)
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.gpu}-{self.cpu}-{self.python}"

    @property
    def group(self) -> str:
        """The name of an index root: every Python of one GPU and CPU."""
        return f"{self.gpu}-{self.cpu}"

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """The SM names that the GPU word stands for, lowest first; empty for `cpu` and `mps`."""
        if self.gpu in SPECIAL_GPUS:
            return ()
        return tuple(catalog.architectures().sets.get(self.gpu, (self.gpu,)))

    @cached_property
    def sms(self) -> tuple[int, ...]:
        return tuple(sm_number(name) for name in self.architectures)

    @property
    def python_version(self) -> str:
        """`3.11` for `py311`, `3.14t` for the free-threaded `py314t`."""
        return dotted_python(self.python)

    @cached_property
    def machine(self) -> str:
        return catalog.cpu_levels()[self.cpu].machine


def sm_number(name: str) -> int:
    """35 for `sm35`."""
    return int(name.removeprefix("sm"))


def sm_word(word: str) -> str:
    """`sm35` for sm_35, compute_35, 3.5, 35 or SM 3.5, and for sm_35a, whose suffix is the
    channel's arch list's.
    """
    match = re.fullmatch(r"(?:sm|compute|cc)?[ _]?([0-9]{1,2})[._]?([0-9])[af]?", word.lower())
    return f"sm{match[1]}{match[2]}" if match else ""


def python_word(word: str) -> str:
    """`py311` for 3.11, 311, cp311 or python3.11; `py313t` for 3.13t."""
    match = re.fullmatch(r"(?:py|cp|python)?3[.]?([0-9]{1,2}t?)", word.lower())
    return f"py3{match[1]}" if match else ""


def _refuse_python(word: str) -> None:
    """Raise a NotBuildableError for a Python that PyTorch is made for and that is not one of a
    variant.
    """
    releases = [
        name for name, release in catalog.torch_releases().items() if word in release.pythons.linux
    ]
    if not releases:
        return
    if word.removesuffix("t") in PYTHONS:
        near = [word.removesuffix("t")]
    else:
        near = _same_kind(word, PYTHONS)
    if len(releases) > 1:
        wheels = f"torch {releases[0]} to {releases[-1]}"
    else:
        wheels = f"torch {releases[0]}"
    raise NotBuildableError(
        f"the farm builds nothing for {word}: this Python is in no base image of the catalogue, "
        "nor pinned as a standalone one",
        hint=f"PyTorch's own wheels are made for it ({wheels}: farm why --official --gpu NAME "
        f"--python {word}); "
        f"nearest that the farm builds for: {' or '.join(near)}",
    )


def _card(word: str) -> tuple[str, list[str]] | None:
    """The hint for a variant that names a card, and the words of its SMs; None: the word is no
    card's name.
    """
    from farm.catalog import gpus  # noqa: PLC0415 hundreds of names, which only a wrong word needs

    catalogue = gpus.gpus()
    sm = sm_word(word)
    if old_chip := catalogue.too_old.get(sm):
        return f"GPU {word!r} ({old_chip.name}): {old_chip.why}", []
    if sm in gpu_words():
        return f"GPU {word!r}: variants write it {sm}", [sm]
    matches = gpus.find(word)
    if not matches:
        company = gpus.maker(word)
        if company is None:
            return None
        variants = "mps" if company == "Apple" else "cpu"
        return (
            f"GPU {word!r}: a card of {company} runs no CUDA; its variants are those of {variants}",
            [variants],
        )
    sms = sorted(gpus.variant_sms(matches), key=sm_number)
    words = [sm for sm in sms if sm in gpu_words()]
    names = " or ".join(dict.fromkeys(card.name for card in matches))
    if not words:
        return (
            (
                f"GPU {word!r}: the card {names} is {' or '.join(sms)}: "
                f"{catalogue.too_old[sms[-1]].why}"
            ),
            [],
        )
    if len(sms) > 1:
        chips = f"was sold with several chips: {', '.join(sms)}"
    else:
        chips = f"is {sms[0]}"
    return f"GPU {word!r}: variants are named by SM, and the card {names} {chips}", words


def _as_others_write(word: str) -> list[str]:
    """A Python as 3.11, cp311 or python3.11; the CPU levels of a machine, as `uname -m` and Windows
    name it.
    """
    if python := python_word(word):
        return [python] if python in PYTHONS else []
    machine = {"amd64": "x86_64", "x86-64": "x86_64"}.get(word, word)
    return [name for name, level in catalog.cpu_levels().items() if level.machine == machine]


def _same_kind(part: str, known: tuple[str, ...]) -> list[str]:
    """For a number that is not known: the known words with the same letters and the closest
    number.
    """
    match = re.fullmatch(r"([a-z]+)([0-9]{1,6})", part)
    if not match:
        return []
    letters = match[1]
    number = int(match[2])
    alike = [
        (abs(int(k.removeprefix(letters)) - number), k)
        for k in known
        if re.fullmatch(letters + r"\d+", k)
    ]
    return [k for _, k in sorted(alike)[:3]]
