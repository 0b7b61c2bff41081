"""CPU features that the AArch64 machine code of a library needs, beyond a level such as `armv8_2`.

Every instruction has four bytes, so the code is read word by word. Equal words are decoded once; classes that only the
base architecture has (branches, immediates, plain loads and stores) are most of the code and are not decoded at all.
The limits are those of `farm.wheel.isa`: what is there is found, not what runs, and data between functions may look
like an instruction.

Levels are data: `aarch64_levels.yaml`. Source of the classes: Arm Architecture Reference Manual (DDI 0487), C4.1,
"A64 instruction set encoding".
"""

import sys
from array import array
from collections.abc import Iterator

from farm.base.errors import UsageError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf, code_sections, function_symbols
from farm.wheel.isa import Beyond, IsaResult, place_of
from farm.wheel.isalevels import arm_table

_WORD = 4
_OPERANDS = 0x3FF  # Rn and Rd, on which no extension depends
_PLACES = 3
_BLOCK = 1 << 22


def scan_aarch64(data: Buffer, elf: Elf, level: str) -> IsaResult:
    """Find the instructions of an ELF file that need more than `level`.

    Raises:
        UsageError: No such level.
        VerificationFailedError: A section or the symbol table is damaged.
    """
    words = _Words(level)
    counts: dict[str, int] = {}
    places: dict[str, list[int]] = {}
    undecodable = 0
    for section, start, end in code_sections(data, elf):
        for offset in range(start, end - end % _WORD, _BLOCK):
            block = array("I", bytes(data[offset : min(offset + _BLOCK, end - (end - start) % _WORD)]))
            if sys.byteorder == "big":
                block.byteswap()
            verdicts = words.judge(set(block))
            for index, word in enumerate(block if verdicts else ()):
                if word not in verdicts:
                    continue
                undecodable += not verdicts[word]
                for feature in verdicts[word]:
                    counts[feature] = counts.get(feature, 0) + 1
                    found = places.setdefault(feature, [])
                    if len(found) < _PLACES:
                        found.append(section.address + offset - start + _WORD * index)
    functions = function_symbols(data, elf)
    beyond = (
        Beyond(feature, counts[feature], tuple(place_of(data, functions, address) for address in places[feature]))
        for feature in sorted(counts)
    )
    return IsaResult(tuple(beyond), undecodable)


class _Words:
    """Judges words of code against a level, each kind once."""

    def __init__(self, level: str) -> None:
        import capstone  # noqa: PLC0415 (slow to import, and only wheels for Arm need it)

        self.decoder = capstone.Cs(capstone.CS_ARCH_AARCH64, capstone.CS_MODE_LITTLE_ENDIAN)
        self.decoder.detail = True
        self.allowed = frozenset(_features(level))
        self.kinds: dict[int, tuple[str, ...]] = {}

    def judge(self, words: set[int]) -> dict[int, tuple[str, ...]]:
        """The words beyond the level with the features that they need; with none where they are no instruction."""
        found: dict[int, tuple[str, ...]] = {}
        for word in words:
            if _is_base(word):
                continue
            kind = word if word >> 25 & 0xF == 0b1010 or word >> 25 & 0xF == 0b1011 else word & ~_OPERANDS
            features = self.kinds.get(kind)
            if features is None:
                features = self._decode(word)
                if features is None:  # another word of this kind may be one: registers can be fixed
                    found[word] = ()
                    continue
                self.kinds[kind] = features
            if features:
                found[word] = features
        return found

    def _decode(self, word: int) -> tuple[str, ...] | None:
        for instruction in self.decoder.disasm(word.to_bytes(_WORD, "little"), 0, 1):
            # Groups below 128 say what an instruction does (jump, call); those above, what it needs.
            needs = {instruction.group_name(group) for group in instruction.groups if group >= 128}
            return tuple(sorted(name.removeprefix("Has") for name in needs - self.allowed))
        return None


def _is_base(word: int) -> bool:
    """An instruction of Armv8.0-A by its class alone: most of the code is of these."""
    top = word >> 24
    return (
        word >> 26 & 0x1F == 0b00101  # B, BL
        or top & 0x7E == 0b0110100  # CBZ, CBNZ
        or top & 0x7E == 0b0110110  # TBZ, TBNZ
        or (top == 0b01010100 and not word >> 4 & 1)  # B.cond, but not BC.cond
        or top & 0x1F == 0b10000  # ADR, ADRP
        or word >> 23 & 0x7F == 0b0100010  # ADD, SUB (immediate, without the shift of MTE)
        or (word >> 23 & 0x3F in range(0b100100, 0b101000) and word >> 29 != 0b111)  # logical, MOVZ, bit fields, EXTR
        or (word >> 27 & 7 == 0b111 and word >> 24 & 3 == 0b01)  # LDR, STR (unsigned offset), of NEON as well
        or (word >> 27 & 7 == 0b101 and word >> 25 & 1 == 0 and word >> 30 != 0b01)  # LDP, STP
        or (top & 0x1F in {0b01010, 0b01011} and not word >> 21 & 1)  # AND, ORR, EOR; ADD, SUB (shifted register)
    )


def _features(level: str) -> Iterator[str]:
    """The groups that a level and those below it allow.

    Raises:
        UsageError: No such level.
    """
    levels, step = arm_table(), level
    if level not in levels:
        raise UsageError(f"CPU level {level!r} cannot be checked", hint=f"levels that can: {', '.join(levels)}")
    while step:
        yield from levels[step]["features"] or ()
        step = str(levels[step]["extends"] or "")
