"""Stacks, and the readings of a stack that rules share."""

import re
from dataclasses import dataclass
from functools import cache, lru_cache

from farm import catalog
from farm.base.errors import UsageError
from farm.catalog import number
from farm.catalog.gpus import MAJOR, ptx_compiles, sass_runs
from farm.catalog.models import Word
from farm.catalog.paste import driver_number
from farm.plan.variant import Variant

NUMBERS = re.compile(r"\d{1,6}(\.\d{1,6}){0,4}")
_ENTRY = re.compile(r"(\d{1,2})\.(\d)([af]?)(?:\(\d{1,2}\.\d\))?")
MAX_ARCH_LIST = 300


@dataclass(frozen=True)
class Stack:
    """The parts of a build and further questions about it; None: not asked, or not used by this
    build.

    Raises:
        UsageError: A version is not one, or the arch list is too long.
    """

    package: str
    variant: Variant
    platform: str
    base: str | None = None  # the base image's name in the catalogue (Linux)
    toolkit: str | None = None
    cuda: str | None = None
    torch: str | None = None
    cudnn: str | None = None
    ptx: bool = False
    gpu: int | None = (
        None  # the SM of the card that must run the wheel; `gpu_name` is what the user called it
    )
    gpu_name: str | None = None
    arch_list: str | None = (
        None  # TORCH_CUDA_ARCH_LIST; without it, the one that follows from the variant and `ptx`
    )
    msvc: int | None = None  # `_MSC_VER` of the host compiler on Windows
    gcc: int | None = (
        None  # major version of the host compiler on Linux; without it, the base image's
    )
    driver: str | None = (
        None  # the driver's version; a branch alone (`470`) means its newest release
    )
    numpy: str | None = None
    switches: frozenset[str] = (
        frozenset()
    )  # PyTorch's switches that must be on (`USE_FLASH_ATTENTION`)
    components: tuple[str, ...] = ()  # what the recipe takes of a toolkit
    features: tuple[str, ...] = ()  # what of PyTorch the recipe can build
    # The words of options that have an effect of their own (`words.yaml`), by option.
    words: tuple[tuple[str, str], ...] = ()
    # The packages that the build imports, where its Python is not the base image's but a standalone
    # one.
    standalone: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # Of these two every version may be asked about, whether the catalogue has it or not.
        for name in ("driver", "numpy"):
            if (value := getattr(self, name)) is not None:
                _require_version(name, value)
        if self.arch_list is not None and len(self.arch_list) > MAX_ARCH_LIST:
            raise UsageError(f"the arch list is longer than {MAX_ARCH_LIST} characters")
        unknown = self.switches - set(catalog.switches())
        if unknown:
            raise UsageError(
                f"unknown switch {min(unknown)!r}", hint=f"known: {', '.join(catalog.switches())}"
            )


def _require_version(name: str, value: str) -> None:
    if not NUMBERS.fullmatch(value):
        example = {"driver": "470.82.01", "numpy": "1.26.4"}[name]
        raise UsageError(f"{name} {value!r} is not a version", hint=f"an example: {example}")


FIRST_DRIVER = 100
"""No driver that runs CUDA has a lower number; CUDA versions are all below it."""


def parse_driver(text: str) -> str:
    """Read a driver's version.

    Args:
        text: NVIDIA's version (`470.82.01`), a branch (`470`, `R470`), or the number that Windows
            shows (`32.0.15.7688` for 576.88).

    Raises:
        UsageError: It is no version, or that of a CUDA.
    """
    version = text.strip().lower().removeprefix("r")
    _require_version("driver", version if NUMBERS.fullmatch(version) else text)
    version = driver_number(version)
    if number(version)[0] < FIRST_DRIVER:
        raise UsageError(
            f"driver {text.strip()!r} looks like a CUDA version",
            hint="nvidia-smi prints both: give what follows `Driver Version`, such as 550.54.14",
        )
    return version


def parse_glibc(text: str) -> str:
    """A version of glibc: `2.28`, `glibc 2.28`; else a UsageError."""
    version = text.strip().lower().removeprefix("glibc").strip(" -")
    if not re.fullmatch(r"2\.\d{1,2}(\.\d{1,2})?", version, re.ASCII):
        raise UsageError(
            f"{text!r} is no version of glibc", hint="`ldd --version` prints it: --glibc 2.28"
        )
    return version


def parse_gcc(text: str) -> int:
    """The major version of a gcc: `13`, `13.2.0`, `gcc-13`, `g++-13`; else a UsageError."""
    match = re.fullmatch(
        r"(?:(?:gcc|g\+\+)[- ]?)?([1-9]\d?)(?:\.\d{1,6}){0,3}", text.strip().lower(), re.ASCII
    )
    if match is None:
        raise UsageError(f"{text!r} is no version of gcc", hint="an example: --gcc 13")
    return int(match[1])


def effects(stack: Stack) -> dict[str, Word]:
    """The effect of each option of `words.yaml`: of its word, else of the platform."""
    words_chosen = dict(stack.words)
    words = {}
    for name, by_word in catalog.words().items():
        word = words_chosen.get(name, stack.platform)
        words[name] = by_word.get(word, Word())
    return words


def reaches(driver: str, floor: str) -> bool:
    """True if a driver is at least `floor`; a branch (`450`, `450.80`) counts as its newest
    release.
    """
    have = number(driver)
    # Only as many numbers as were given: `450` is not below 450.80.02.
    return have >= number(floor)[: len(have)]


def sm_name(sm: int) -> str:
    """`sm35 (Kepler, Tesla K40)`."""
    card = catalog.architectures().architectures.get(f"sm{sm}")
    if card is None:
        return f"sm{sm}"
    return f"sm{sm} ({card.name}, {card.example})"


def targets(stack: Stack) -> list[int]:
    """The SMs that must run the wheel, lowest first: the variant's, or the card's that was asked
    about.
    """
    if stack.gpu is not None:
        return [stack.gpu]
    return sorted(stack.variant.sms)


def compiled(stack: Stack) -> list[int]:
    """The SMs that must be compiled for: the variant's, and a card's that no entry of the arch list
    runs on.
    """
    sms = set(stack.variant.sms)
    # A card that was asked about needs code of its own only where nothing on the list serves it.
    sms.update(sm for sm in targets(stack) if not has_code(stack, sm))
    return sorted(sms)


def has_code(stack: Stack, sm: int) -> bool:
    """True if the arch list makes code that runs on a card, or PTX that its driver compiles."""
    return any(entry.runs_on(sm) or entry.compiles_on(sm) for entry in entries(stack))


@dataclass(frozen=True)
class Entry:
    """An entry of TORCH_CUDA_ARCH_LIST: SASS for `sm`, and PTX as well where `ptx`. `suffix`: "",
    "a" or "f".
    """

    sm: int
    suffix: str
    ptx: bool

    def runs_on(self, sm: int) -> bool:
        """True if its SASS runs on `sm`."""
        return sass_runs(self.sm, sm, self.suffix)

    def compiles_on(self, sm: int) -> bool:
        """True if a driver can compile its PTX for `sm`."""
        return self.ptx and ptx_compiles(self.sm, sm, self.suffix)


def spell(sms: list[int], *, ptx: bool = False) -> str:
    """`3.5;3.7` for SMs, with `+PTX` on the highest where PTX is wanted."""
    words = [f"{sm // MAJOR}.{sm % MAJOR}" for sm in sms]
    if words and ptx:
        words[-1] += "+PTX"
    return ";".join(words)


def arch_list(stack: Stack) -> str:
    """TORCH_CUDA_ARCH_LIST as asked, or as it follows from the variant; empty without CUDA."""
    if stack.arch_list is not None:
        return stack.arch_list
    if stack.cuda:
        return spell(sorted(stack.variant.sms), ptx=stack.ptx)
    return ""


def words(text: str) -> list[str]:
    """The entries of an arch list as they are written."""
    return list(filter(None, re.split(r"[;\s]+", text)))


@cache
def names_of(torch: str | None) -> dict[str, list[str]]:
    """The architecture names that this PyTorch takes in an arch list, with the entries they stand
    for.
    """
    usable_names = {}
    for name, by_release in catalog.arch_list_grammar().names.items():
        # The last that counts: releases are in ascending order, and a name may mean more in a later
        # one.
        for since, values in by_release.items():
            if torch is None or number(since) <= number(torch):
                usable_names[name] = values
    return usable_names


def entries(stack: Stack) -> list[Entry]:
    """The entries of the arch list that can be read; the rule on its grammar reports the others."""
    torch = stack.torch
    if torch not in catalog.torch_releases():
        torch = None
    return list(_entries(arch_list(stack), torch))


@lru_cache(maxsize=1 << 12)
def _entries(text: str, torch: str | None) -> tuple[Entry, ...]:
    names = names_of(torch)
    parsed = []
    for word in words(text):
        plain = word.removesuffix("+PTX")
        for item in names.get(plain, [plain]):
            match = _ENTRY.fullmatch(item)
            if match:
                parsed.append(
                    Entry(int(match[1]) * MAJOR + int(match[2]), match[3], word.endswith("+PTX"))
                )
    return tuple(parsed)
