"""Which CPU features the machine code of a library needs, beyond a level such as `avx`.

The code is decoded from end to end (a linear sweep), restarting at every function symbol. Its limits:

- It finds what is there, not what runs. A library that chooses its code at run time holds, rightly, instructions
  that its level lacks; such members are exempted by whoever calls this.
- Data between the instructions (tables in hand-written assembly) are decoded too and may look like an
  instruction that is not there. The result says where each find is, so a person can look; `undecodable` counts
  the byte sequences that were no instruction at all, which is a measure of how much data there was.
- Only what is loaded executable is read (`farm.wheel.elf.code_sections`): code that is unpacked or generated at run
  time is not seen.

Levels are data: `isa_levels.yaml`.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cache
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING

from farm.base.errors import UsageError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf, Functions, code_sections, function_symbols, symbol_name
from farm.wheel.isalevels import table

if TYPE_CHECKING:
    import iced_x86

    from farm.wheel.policy import Chosen

NO_SECTIONS = "it has no section table to find its code by"
_BLOCK = 1 << 20
_LONGEST = 15  # bytes of an x86 instruction
_PLACES = 3
_CXX = re.compile(r"_Z(?!eroState$)")  # MKL has a function of C with that name


@dataclass(frozen=True)
class Beyond:
    """One feature beyond the level: how many instructions need it, and the first of them (`symbol+0x12`)."""

    feature: str
    count: int
    places: tuple[str, ...]


@dataclass(frozen=True)
class IsaResult:
    """CPU features of a library's code. `not_checked` gives the reason where nothing was decoded, else None."""

    beyond: tuple[Beyond, ...] = ()
    undecodable: int = 0
    not_checked: str | None = None


@dataclass(frozen=True)
class _Level:
    features: frozenset[str]
    instructions: frozenset[str]


def scan_isa(data: Buffer, elf: Elf, level: str, chosen: "Chosen | None" = None) -> IsaResult:
    """Find the instructions of an ELF file that need more than `level`.

    The functions of `chosen` are called behind a choice at run time and left out: what follows their symbols, up to the
    next one. A file without symbols leaves nothing out.
    """
    if elf.machine != "x86_64":
        return IsaResult(not_checked=f"machine code for {elf.machine} is not decoded")
    if not elf.sections:
        return IsaResult(not_checked=NO_SECTIONS)
    sweep = Sweep(level)
    functions = function_symbols(data, elf)
    addresses = functions.addresses
    left_out = frozenset(_left_out(data, functions, chosen) if chosen else ())
    for section, start, end in code_sections(data, elf):
        first = bisect_right(addresses, section.address)
        last = bisect_right(addresses, section.address + section.size - 1)
        # Decoding starts again at each function, so that data between two of them spoil at most the rest of one.
        within = (addresses[index] for index in range(first, last))
        for low, high in pairwise(chain([section.address], within, [section.address + end - start])):
            if low in left_out:
                continue
            sweep.piece(data, start + low - section.address, start + high - section.address, low)
    return sweep.result(data, functions)


def _left_out(data: Buffer, functions: Functions, chosen: "Chosen") -> Iterator[int]:
    """The addresses of the chosen functions."""
    is_chosen, is_archive = _matcher(chosen.functions), _matcher(chosen.archives)
    named = zip(functions.addresses, (symbol_name(data, name) for name in functions.names), strict=True)
    for is_cxx, found in groupby(named, key=lambda pair: bool(_CXX.match(pair[1]))):
        stretch = list(found)
        whole = not is_cxx and any(is_archive(name) for _, name in stretch)
        yield from (address for address, name in stretch if whole or is_chosen(name))


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)").match


class Finds:
    """Instructions beyond a level: how often, and the first places."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.places: dict[str, list[int]] = {}
        self.undecodable = 0
        self.aside = False  # what is noted counts in `beside` alone
        self.beside = 0
        self.behind = False  # what is noted stands behind a branch
        self.kept: list[tuple[Collection[str], int]] = []  # what does, until it is settled

    def note(self, features: Collection[str], address: int) -> None:
        if self.aside:
            self.beside += bool(features)
            return
        if self.behind:
            self.kept.append((features, address))
            return
        for feature in features:
            self.counts[feature] = self.counts.get(feature, 0) + 1
            places = self.places.setdefault(feature, [])
            if len(places) < _PLACES:
                places.append(address)

    def settle(self, *, asked: bool) -> None:
        """Count what stands behind branches: aside, if the code asks the CPU which way to go."""
        self.behind, kept, self.kept = False, self.kept, []
        self.aside = asked
        for features, address in kept:
            self.note(features, address)
        self.aside = False

    def result(self, data: Buffer, functions: Functions) -> IsaResult:
        """The findings, with places named by their functions."""
        beyond = []
        for feature in sorted(self.counts):
            places = tuple(place_of(data, functions, address) for address in self.places[feature])
            beyond.append(Beyond(feature, self.counts[feature], places))
        return IsaResult(tuple(beyond), self.undecodable)


class Sweep(Finds):
    """Judges instructions of x86 against a level, and remembers what is beyond it.

    Raises:
        UsageError: No such level.
    """

    def __init__(self, level: str) -> None:
        import iced_x86  # noqa: PLC0415 (half of this program's start-up time, and few commands need it)

        super().__init__()
        self.decoder = iced_x86.Decoder
        self.invalid = iced_x86.Code.INVALID
        self.mnemonics = _names(iced_x86.Mnemonic)
        self.features = _names(iced_x86.CpuidFeature)
        self.level = level
        self.allowed = _level(level)
        self.cut = iced_x86.DecoderError.NO_MORE_BYTES
        self.harmless: set[int] = set()
        self.verdicts: dict[int, tuple[str, ...]] = {}

    def piece(self, data: Buffer, start: int, end: int, address: int) -> None:
        """Decode the bytes from `start` to `end`, which the program sees at `address`."""
        harmless, see = self.harmless, self.see
        while start < end:
            stop = min(start + _BLOCK + _LONGEST, end)
            decoder = self.decoder(64, data[start:stop], ip=address)
            for instruction in decoder:
                # Asked once for each kind of instruction: a library has millions of instructions of some thousand
                # kinds.
                if instruction.code not in harmless:
                    see(instruction)
            done = stop - start
            # Blocks bound the memory; the few bytes beyond keep instructions whole that cross their border.
            if stop < end and decoder.last_error == self.cut:
                self.undecodable -= 1  # an instruction across the border: the next block begins with it
                done = instruction.ip - address
            start += done
            address += done

    def see(self, instruction: "iced_x86.Instruction") -> None:
        """Judge one decoded instruction."""
        code = instruction.code
        verdict = self.verdicts.get(code)
        if verdict is None:
            verdict = self._judge(instruction)
        if verdict:
            self.note(verdict, instruction.ip)
        elif code == self.invalid:
            self.undecodable += 1

    def _judge(self, instruction: "iced_x86.Instruction") -> tuple[str, ...]:
        if instruction.code == self.invalid or self.mnemonics[instruction.mnemonic] in self.allowed.instructions:
            verdict: tuple[str, ...] = ()
        else:
            names = {self.features[number] for number in instruction.cpuid_features()}
            verdict = tuple(sorted(names - self.allowed.features))
        self.verdicts[instruction.code] = verdict
        if not verdict and instruction.code != self.invalid:
            self.harmless.add(instruction.code)
        return verdict


def _names(enumeration: object) -> dict[int, str]:
    return {value: name for name, value in vars(enumeration).items() if name.isupper() and isinstance(value, int)}


def place_of(data: Buffer, functions: Functions, address: int) -> str:
    """An address by the function that holds it, such as `symbol+0x12`."""
    index = bisect_right(functions.addresses, address) - 1
    if index < 0:
        return f"{address:#x}"
    return f"{symbol_name(data, functions.names[index])}+{address - functions.addresses[index]:#x}"


@cache
def _level(name: str) -> _Level:
    known = table()
    if name not in known["levels"]:
        raise UsageError(f"CPU level {name!r} cannot be checked", hint=f"levels that can: {', '.join(known['levels'])}")
    features = set(known["harmless"])
    for step in _chain(name):
        features.update(known["levels"][step]["features"])
    return _Level(frozenset(features), frozenset(known["harmless_instructions"]))


def _chain(name: str) -> Iterator[str]:
    levels = table()["levels"]
    step: object = name
    while isinstance(step, str):
        yield step
        step = levels[step]["extends"]
