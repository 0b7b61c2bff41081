"""Every instruction of x86-64 code against a level."""

from bisect import bisect_right
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING

from farm.policy.levels import table
from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Functions,
    code_sections,
)
from farm.wheel.isa.findings import Finds
from farm.wheel.isa.levels import allowed_features

if TYPE_CHECKING:
    import iced_x86


_BLOCK = 1 << 20
LONGEST_X86 = 15  # bytes of an x86 instruction


def sweep_x86(
    data: Buffer,
    elf: Elf,
    level: str,
    functions: Functions,
    left_out: frozenset[int],
) -> "Finds":
    """Find the instructions of x86-64 code that need more than a level.

    Args:
        data: The file.
        elf: Its headers.
        level: The level.
        functions: Its functions, at which decoding restarts.
        left_out: Addresses of functions that may need more.
    """
    sweep = Sweep(level)
    addresses = functions.addresses
    for section, start, end in code_sections(data, elf):
        first = bisect_right(addresses, section.address)
        last = bisect_right(addresses, section.address + section.size - 1)
        # Decoding starts again at each function, so that data between two of them spoil at most the
        # rest of one.
        within = islice(addresses, first, last)
        shift = start - section.address
        borders = chain([section.address], within, [end - shift])
        for low, high in pairwise(borders):
            if low not in left_out:
                sweep.piece(data, low + shift, high + shift, low)
    return sweep


class Sweep(Finds):
    """Judges instructions of x86 against a level, and remembers what is beyond it."""

    def __init__(self, level: str) -> None:
        # Half of this program's start-up time, and few commands need it.
        import iced_x86  # noqa: PLC0415

        super().__init__()
        self.decoder = iced_x86.Decoder
        self.invalid = iced_x86.Code.INVALID
        self.mnemonics = _names(iced_x86.Mnemonic)
        self.features = _names(iced_x86.CpuidFeature)
        self.level = level
        levels = table()
        self.allowed = set(levels["harmless"])
        self.allowed.update(allowed_features(level, levels["levels"]))
        self.allowed_instructions = frozenset(levels["harmless_instructions"])
        self.cut = iced_x86.DecoderError.NO_MORE_BYTES
        self.harmless: set[int] = set()
        self.verdicts: dict[int, tuple[str, ...]] = {}

    def piece(self, data: Buffer, start: int, end: int, address: int) -> None:
        """Decode the bytes from `start` to `end`, which the program sees at `address`."""
        harmless = self.harmless
        see = self.see
        while start < end:
            stop = min(start + _BLOCK + LONGEST_X86, end)
            decoder = self.decoder(64, data[start:stop], ip=address)
            for instruction in decoder:
                # Asked once for each kind of instruction: a library has millions of instructions of
                # some thousand kinds.
                if instruction.code not in harmless:
                    see(instruction)
            done = stop - start
            # Blocks bound the memory; the few bytes beyond keep instructions whole that cross their
            # border.
            if stop < end and decoder.last_error == self.cut:
                # An instruction across the border: the next block begins with it.
                self.undecodable -= 1
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
        """The features beyond the level that a kind of instructions needs, noted for the others of
        its kind.
        """
        code = instruction.code
        mnemonic = self.mnemonics[instruction.mnemonic]
        verdict: tuple[str, ...] = ()
        if code != self.invalid and mnemonic not in self.allowed_instructions:
            names = {self.features[number] for number in instruction.cpuid_features()}
            verdict = tuple(sorted(names - self.allowed))
        self.verdicts[code] = verdict
        if not verdict and code != self.invalid:
            self.harmless.add(code)
        return verdict


def _names(enumeration: object) -> dict[int, str]:
    """The names of an enumeration of iced by their numbers."""
    names = {}
    for name, value in vars(enumeration).items():
        if name.isupper() and isinstance(value, int):
            names[value] = name
    return names
