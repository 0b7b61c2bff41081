"""CPU features that the AArch64 machine code of a library needs, beyond a level such as `armv8_2`.

Every instruction has four bytes, so the code is read word by word. Equal words are decoded once; classes that only the
base architecture has (branches, immediates, plain loads and stores) are most of the code and are not decoded at all.
The limits are those of `farm.wheel.isa`: what is there is found, not what runs, and data between functions may look
like an instruction. What runs on import is followed as `farm.wheel.initscan` says; registers are known where addresses
are formed (ADRP with ADD or LDR), within one run of instructions.

Levels are data: `aarch64_levels.yaml`. Source of the classes: Arm Architecture Reference Manual (DDI 0487), C4.1,
"A64 instruction set encoding".
"""

import struct
import sys
from array import array
from collections.abc import Collection, Iterator

from farm.base.errors import UsageError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf, code_sections, function_symbols
from farm.wheel.initscan import InitScan, LoadedImage, Paths, follow_starts
from farm.wheel.isa import NO_SECTIONS, Finds, IsaResult
from farm.wheel.isalevels import arm_table

_WORD = 4
_OPERANDS = 0x3FF  # Rn and Rd, on which no extension depends
_BLOCK = 1 << 22
_PAGE = 1024  # words


def scan_aarch64(data: Buffer, elf: Elf, level: str) -> IsaResult:
    """Find the instructions of an ELF file that need more than `level`."""
    if not elf.sections:
        return IsaResult(not_checked=NO_SECTIONS)
    words, finds = _Words(level), Finds()
    for section, start, end in code_sections(data, elf):
        for offset in range(start, end - end % _WORD, _BLOCK):
            block = array("I", bytes(data[offset : min(offset + _BLOCK, end - (end - start) % _WORD)]))
            if sys.byteorder == "big":
                block.byteswap()
            verdicts = words.judge(set(block))
            for index, word in enumerate(block if verdicts else ()):
                if word in verdicts:
                    finds.undecodable += not verdicts[word]
                    finds.note(verdicts[word], section.address + offset - start + _WORD * index)
    return finds.result(data, function_symbols(data, elf))


def scan_arm_starts(data: Buffer, elf: Elf, level: str, called: Collection[str] = ()) -> InitScan:
    """Instructions that run when AArch64 code is loaded; see `farm.wheel.initscan.scan_starts`."""
    words, finds = _Words(level), Finds()
    return follow_starts(data, elf, finds, lambda image: _Code(data, image, words, finds), called)


class _Code(Paths):
    """Follows code and judges it.

    `known`: what registers hold, where that is an address in this library; negative: the function of another library,
    by the complement of its slot.
    """

    def __init__(
        self, data: Buffer, image: LoadedImage, words: "_Words", finds: Finds, addresses: list[int] | None = None
    ) -> None:
        super().__init__(data, image, addresses, tables=image if addresses is None else None)
        self.loaded, self.words, self.finds = image, words, finds
        self.known: dict[int, int] = {}

    def for_addresses(self, found: list[int]) -> "_Code":
        return _Code(self.data, self.loaded, self.words, Finds(), found)

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        place = self.image.offset(address)
        if place is None or address % _WORD:
            return None
        self.known = {}
        for offset in range(place[0], place[1] - _WORD + 1, _WORD):
            page, index = divmod(address // _WORD, _PAGE)
            seen = self.seen.setdefault(page, bytearray(_PAGE))
            if seen[index]:
                break
            seen[index] = 1
            self.count(1)
            word = int.from_bytes(self.data[offset : offset + _WORD], "little")
            features = self.words.judge({word}).get(word)
            if features is not None:
                self.finds.behind = self.behind
                self.finds.undecodable += not features
                self.finds.note(features, address)
            # No instruction, UDF and BRK end the run.
            ends = features == () or word >> 16 == 0 or word & 0xFFE0001F == 0xD4200000
            if ends or not self._goes_on(word, address, waiting, calls):
                break
            address += _WORD
        return None

    def _goes_on(self, word: int, address: int, waiting: list[int], calls: dict[int, None]) -> bool:
        """Note where an instruction leads; gives whether the one behind it may run too."""
        top = word >> 24
        if word >> 26 & 0x1F == 0b00101:  # B, BL
            target = address + _WORD * _signed(word, 26)
            if word >> 31:
                self.hand_on(self._stub(target) if self.functions else None)
                return self._called(target, calls)
            waiting.append(target)
            return False
        if top == 0b01010100 or top & 0x7E in (0b0110100, 0b0110110):  # B.cond; CBZ, CBNZ; TBZ, TBNZ
            self.behind = True
        if top == 0b01010100 or top & 0x7E == 0b0110100:
            waiting.append(address + _WORD * _signed(word >> 5, 19))
        elif top & 0x7E == 0b0110110:
            waiting.append(address + _WORD * _signed(word >> 5, 14))
        elif word >> 25 == 0b1101011:  # BR, BLR, RET, ERET, and those that authenticate
            held, kind = self.known.get(word >> 5 & 31), word >> 21 & 7
            self.open_ends += held is None and kind < 2  # BR or BLR to where no one knows
            slot = ~held if held is not None and held < 0 else None
            if kind < 2:
                self.hand_on(slot)
            if slot is not None:
                self.outside.add(slot)
                held = None
            if kind == 1:
                self.through_pointer |= held is None
                return self._called(held, calls)
            waiting += [held] if kind == 0 and held is not None else []
            return False
        else:
            self.asks |= word & 0xFFFFF000 == 0xD5380000  # MRS of an ID register
            self._follow_registers(word, address)
        return True

    def _stub(self, target: int) -> int | None:
        """The slot of another library's function that a stub of the PLT loads (ADRP, LDR); None for any other code."""
        place = self.image.offset(target)
        page, load = struct.unpack_from("<II", self.data, place[0]) if place and place[0] + 8 <= place[1] else (0, 0)
        if page >> 24 & 0x9F != 0b10010000 or load >> 22 != 0b1111100101:
            return None
        slot = (target & ~0xFFF) + (_page(page) << 12) + 8 * (load >> 10 & 0xFFF)
        return slot if slot in self.image.elsewhere else None

    def _called(self, target: int | None, calls: dict[int, None]) -> bool:
        if target is not None:
            calls[target] = None
            self.certain |= set() if self.behind else {target}
        self.known = {register: held for register, held in self.known.items() if 19 <= register <= 29}
        return True

    def _follow_registers(self, word: int, address: int) -> None:
        """Keep track of the addresses that registers hold, and note those that code takes."""
        to, base = word & 31, self.known.get(word >> 5 & 31)
        base = None if base is not None and base < 0 else base
        self.known.pop(to, None)
        if word >> 27 & 7 == 0b101:  # LDP has a second one
            self.known.pop(word >> 10 & 31, None)
        if word >> 24 & 0x9F == 0b10010000:  # ADRP
            self.known[to] = (address & ~0xFFF) + (_page(word) << 12)
        elif word >> 24 & 0x9F == 0b00010000:  # ADR
            self._take(to, address + _page(word))
        elif word >> 22 == 0b1001000100 and base is not None:  # ADD, 64 bits, immediate
            self._take(to, base + (word >> 10 & 0xFFF))
        elif word >> 22 == 0b1111100101 and base is not None:  # LDR, 64 bits, unsigned offset
            self._load(to, base + 8 * (word >> 10 & 0xFFF))

    def _take(self, to: int, value: int) -> None:
        self.known[to] = value
        if self.addresses is not None:
            self.addresses.append(value)
        else:
            self.taken.add(value)
            self.functions += [value] if self.image.offset(value) is not None else []

    def _load(self, to: int, slot: int) -> None:
        """A pointer out of a slot of the GOT, or from another fixed place."""
        found = self.loaded.slots.get(slot)
        value = found if found is not None else self.loaded.pointer(slot)
        if value is not None or slot in self.loaded.elsewhere:
            self.known[to] = ~slot if value is None else value
        if value is not None and self.image.offset(value) is not None:
            self.functions.append(value)
        if self.addresses is not None:
            self.addresses += [value] if value is not None else []
        elif found is None and slot not in self.loaded.elsewhere:
            self.taken.add(slot)
        elif found is not None and self.image.offset(found) is None:
            self.taken.add(found)


def _signed(word: int, bits: int) -> int:
    """The lowest bits as a number in two's complement."""
    return (word & (1 << bits) - 1) - ((word >> bits - 1 & 1) << bits)


def _page(word: int) -> int:
    """The offset of ADR and ADRP."""
    return _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)


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
    """The groups that a level and those below it allow."""
    levels, step = arm_table(), level
    if level not in levels:
        raise UsageError(f"CPU level {level!r} cannot be checked", hint=f"levels that can: {', '.join(levels)}")
    while step:
        yield from levels[step]["features"] or ()
        step = str(levels[step]["extends"] or "")
