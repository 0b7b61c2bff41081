"""Variant names: `<gpu>-<cpu>-<python>`, the hardware and Python that a wheel is for."""

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from farm import catalog
from farm.base.errors import NotBuildableError, UsageError
from farm.base.text import nearest

PYTHONS = (*(f"py3{minor}" for minor in range(9, 15)), "py313t", "py314t")
"""Every Python that the farm builds for; `t`: free-threaded."""
SPECIAL_GPUS = ("cpu", "mps")
CardHint = tuple[str, list[str]]
"""What to say of a card's name in place of a GPU, and the words of variants for it."""


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
        card = None
        if parts[0] not in gpu_words():
            card = _card(parts[0])
        if len(parts) != 3 or ("-" in parts[0] and card is None):
            raise _no_variant_name(name, card)
        gpu, cpu, python = parts
        # Only where the other words are right: else the name is wrong, not the Python.
        if gpu in gpu_words() and cpu in cpu_words() and python not in PYTHONS:
            _refuse_python(python)
        readings = [_read_gpu(gpu, card)]
        if readings[0].words == ["mps"]:
            readings.append(_Reading(["arm64"]))  # the one CPU level beside Apple's GPUs
        else:
            readings.append(_read_word("CPU", cpu, cpu_words()))
        readings.append(_read_word("Python", python, PYTHONS))
        problems = [reading.problem for reading in readings if reading.problem]
        if problems:
            fault = f"unknown variant {name!r}: {'; '.join(problems)}"
            raise UsageError(fault, hint=_suggestion(readings, known_card=card is not None))
        return cls(gpu, cpu, python)

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
        return tuple(map(sm_number, self.architectures))

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
    channel's arch list's; empty for any other word.
    """
    match = re.fullmatch(r"(?:sm|compute|cc)?[ _]?([0-9]{1,2})[._]?([0-9])[af]?", word.lower())
    if match is None:
        return ""
    return f"sm{match[1]}{match[2]}"


def python_word(word: str) -> str:
    """`py311` for 3.11, 311, cp311 or python3.11; `py313t` for 3.13t; empty for any other word."""
    match = re.fullmatch(r"(?:py|cp|python)?3[.]?([0-9]{1,2}t?)", word.lower())
    if match is None:
        return ""
    return f"py3{match[1]}"


def _refuse_python(word: str) -> None:
    """Raise a NotBuildableError for a Python that PyTorch is made for and that is not one of a
    variant.
    """
    releases = []
    for name, release in catalog.torch_releases().items():
        if word in release.pythons.linux:
            releases.append(name)
    if not releases:
        return
    near = _same_kind(word, PYTHONS)
    if word.removesuffix("t") in PYTHONS:
        near = [word.removesuffix("t")]
    wheels = f"torch {releases[0]}"
    if len(releases) > 1:
        wheels += f" to {releases[-1]}"
    raise NotBuildableError(
        f"the farm builds nothing for {word}: this Python is in no base image of the catalogue, "
        "nor pinned as a standalone one",
        hint=f"PyTorch's own wheels are made for it ({wheels}: farm why --official --gpu NAME "
        f"--python {word}); nearest that the farm builds for: {' or '.join(near)}",
    )


def _card(word: str) -> CardHint | None:
    """The hint for a variant that names a card, and the words of its SMs; None: the word is no
    card's name.
    """
    from farm.catalog import gpus  # noqa: PLC0415 hundreds of names, which only a wrong word needs

    catalogue = gpus.gpus()
    sm = sm_word(word)
    if sm in catalogue.too_old:
        old_chip = catalogue.too_old[sm]
        return f"GPU {word!r} ({old_chip.name}): {old_chip.why}", []
    if sm in gpu_words():
        return f"GPU {word!r}: variants write it {sm}", [sm]
    matches = gpus.find(word)
    if not matches:
        return _card_of_others(word, gpus.maker(word))
    sms = sorted(gpus.variant_sms(matches), key=sm_number)
    words = [sm for sm in sms if sm in gpu_words()]
    names = " or ".join(dict.fromkeys(card.name for card in matches))
    if not words:
        why = catalogue.too_old[sms[-1]].why
        return f"GPU {word!r}: the card {names} is {' or '.join(sms)}: {why}", []
    chips = f"is {sms[0]}"
    if len(sms) > 1:
        chips = f"was sold with several chips: {', '.join(sms)}"
    return f"GPU {word!r}: variants are named by SM, and the card {names} {chips}", words


def _card_of_others(word: str, company: str | None) -> CardHint | None:
    """The hint for a card that is none of NVIDIA's; None: no one is known to make it."""
    if company is None:
        return None
    variants = "cpu"
    if company == "Apple":
        variants = "mps"
    hint = f"a card of {company} runs no CUDA; its variants are those of {variants}"
    return f"GPU {word!r}: {hint}", [variants]


def _as_others_write(word: str) -> list[str]:
    """A Python as 3.11, cp311 or python3.11; the CPU levels of a machine, as `uname -m` and Windows
    name it.
    """
    python = python_word(word)
    if python in PYTHONS:
        return [python]
    if python:
        return []
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
    alike = [word for word in known if re.fullmatch(letters + r"\d+", word)]
    alike.sort(key=lambda word: (abs(int(word.removeprefix(letters)) - number), word))
    return alike[:3]


class _Reading(NamedTuple):
    """A word of a variant's name: the words that it may stand for, and what is wrong with it."""

    words: list[str]
    problem: str = ""


def _read_gpu(word: str, card: CardHint | None) -> _Reading:
    """The GPU of a variant's name; `card`: what is known of the word as a card's name."""
    if card is None:
        return _read_word("GPU", word, gpu_words())
    problem, words = card
    return _Reading(words, problem)


def _read_word(axis: str, word: str, words: tuple[str, ...]) -> _Reading:
    """A word of a variant's name, of those that there are for an axis."""
    if word in words:
        return _Reading([word])
    lower = word.lower()
    meant = _as_others_write(lower)
    if lower in words:
        meant = [lower]
    # Numbers by their distance, words by their letters: sm36 is nearer to sm37 than to sm86.
    meant = meant or _same_kind(lower, words) or nearest(lower, words)
    return _Reading(meant, f"{axis} {word!r} (known: {', '.join(words)})")


def _suggestion(readings: list[_Reading], *, known_card: bool) -> str | None:
    """The first variants that a wrong name may mean; None: there are none."""
    names = []
    for words in product(*(reading.words for reading in readings)):
        names.append("-".join(words))
    if not names:
        return None
    names_text = ", ".join(names[:3])
    if known_card:
        return f"did you mean {names_text}?"
    return f"nearest: {names_text}"


def _no_variant_name(name: str, card: CardHint | None) -> UsageError:
    """The error for a text that has not the form of a variant's name."""
    fault = f"{name!r} is not a variant name: expected <gpu>-<cpu>-<python>"
    example = "sm35"
    if card:
        detail, words = card
        fault += f"; {detail}"
        if words:
            example = words[0]
    return UsageError(fault, hint=f"an example: {example}-avx-py311")
