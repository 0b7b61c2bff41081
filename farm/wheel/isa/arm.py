"""Every instruction of 64-bit Arm code against a level."""

import sys
from array import array
from bisect import bisect_right

from farm.policy.levels import arm_table
from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Functions,
    code_sections,
)
from farm.wheel.isa.findings import Finds
from farm.wheel.isa.levels import allowed_features

# Of 64-bit Arm: bytes of an instruction, and so on.
WORD = 4
_OPERANDS = 0x3FF  # Rn and Rd, on which no extension depends
_ARM_BLOCK = 1 << 22


def sweep_arm(
    data: Buffer,
    elf: Elf,
    level: str,
    functions: Functions,
    left_out: frozenset[int],
) -> Finds:
    """Find the instructions of 64-bit Arm code that need more than a level.

    Every instruction has four bytes, so the code is read word by word.

    Args:
        data: The file.
        elf: Its headers.
        level: The level.
        functions: Its functions.
        left_out: Addresses of functions that may need more.
    """
    words = Words(level)
    finds = Finds()
    starts = functions.addresses
    for section, start, end in code_sections(data, elf):
        last = end - (end - start) % WORD
        for offset in range(start, end - end % WORD, _ARM_BLOCK):
            block = _words_of(data, offset, min(offset + _ARM_BLOCK, last))
            verdicts = words.judge(set(block))
            if not verdicts:
                continue
            first = section.address + offset - start
            for index, word in enumerate(block):
                if word not in verdicts:
                    continue
                address = first + WORD * index
                function = bisect_right(starts, address) - 1
                if function < 0 or starts[function] not in left_out:
                    finds.undecodable += not verdicts[word]
                    finds.note(verdicts[word], address)
    return finds


def _words_of(data: Buffer, start: int, end: int) -> "array[int]":
    """A stretch of code as words, which are little-endian in files of every machine."""
    block = array("I", bytes(data[start:end]))
    if sys.byteorder == "big":
        block.byteswap()
    return block


Features = tuple[str, ...]
"""CPU features, sorted."""


class Words:
    """Judges words of code against a level, each kind once; classes of the base architecture are
    not decoded at all.
    """

    def __init__(self, level: str) -> None:
        import capstone  # noqa: PLC0415 (slow to import, and only wheels for Arm need it)

        self.decoder = capstone.Cs(capstone.CS_ARCH_AARCH64, capstone.CS_MODE_LITTLE_ENDIAN)
        self.decoder.detail = True
        self.allowed = frozenset(allowed_features(level, arm_table()))
        self.kinds: dict[int, Features] = {}

    def judge(self, words: set[int]) -> dict[int, Features]:
        """The words beyond the level with the features that they need; with none where they are no
        instruction.
        """
        verdicts: dict[int, Features] = {}
        for word in words:
            if _is_base(word):
                continue
            kind = word
            if word >> 25 & 0xF not in (0b1010, 0b1011):
                kind = word & ~_OPERANDS
            features = self.kinds.get(kind)
            if features is None:
                features = self._decode(word)
                if features is None:  # another word of this kind may be one: registers can be fixed
                    verdicts[word] = ()
                    continue
                self.kinds[kind] = features
            if features:
                verdicts[word] = features
        return verdicts

    def _decode(self, word: int) -> Features | None:
        """The features beyond the level that a word needs; None where it is no instruction."""
        code = word.to_bytes(WORD, "little")
        for instruction in self.decoder.disasm(code, 0, 1):
            needs = set()
            for group in instruction.groups:
                # Groups below 128 say what an instruction does (jump, call); those above, what it
                # needs.
                if group >= 128:
                    needs.add(instruction.group_name(group))
            names = [name.removeprefix("Has") for name in needs - self.allowed]
            return tuple(sorted(names))
        return None


def _is_base(word: int) -> bool:
    """An instruction of Armv8.0-A by its class alone: most of the code is of these."""
    return _is_base_branch(word) or _is_base_operation(word)


def _is_base_branch(word: int) -> bool:
    """A jump or a call of Armv8.0-A that names its target."""
    top = word >> 24
    return (
        word >> 26 & 0x1F == 0b00101  # B, BL
        or top & 0x7E == 0b0110100  # CBZ, CBNZ
        or top & 0x7E == 0b0110110  # TBZ, TBNZ
        or (top == 0b01010100 and not word >> 4 & 1)  # B.cond, but not BC.cond
    )


def _is_base_operation(word: int) -> bool:
    """A load, a store or arithmetic of Armv8.0-A."""
    top = word >> 24
    return (
        top & 0x1F == 0b10000  # ADR, ADRP
        or word >> 23 & 0x7F == 0b0100010  # ADD, SUB (immediate, without the shift of MTE)
        or (
            word >> 23 & 0x3F in range(0b100100, 0b101000) and word >> 29 != 0b111
        )  # logical, MOVZ, bit fields, EXTR
        or (
            word >> 27 & 7 == 0b111 and word >> 24 & 3 == 0b01
        )  # LDR, STR (unsigned offset), of NEON as well
        or (word >> 27 & 7 == 0b101 and word >> 25 & 1 == 0 and word >> 30 != 0b01)  # LDP, STP
        or (
            top & 0x1F in {0b01010, 0b01011} and not word >> 21 & 1
        )  # AND, ORR, EOR; ADD, SUB (shifted register)
    )
