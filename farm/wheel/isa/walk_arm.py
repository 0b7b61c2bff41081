"""64-bit Arm code along its jumps and calls."""

import struct

from farm.wheel.isa.arm import WORD, Words
from farm.wheel.isa.findings import Finds
from farm.wheel.isa.image import Image
from farm.wheel.isa.walk import Paths

_PAGE_WORDS = 1024


class ArmWalk(Paths):
    """Follows code of 64-bit Arm and judges it; registers are known where addresses are formed, in
    one run of code.

    `known`: what registers hold, where that is an address in this library; negative: the function
    of another library, by the complement of its slot.
    """

    def __init__(self, image: Image, words: "Words", addresses: list[int] | None = None) -> None:
        super().__init__(image, Finds(), addresses)
        self.words = words
        self.known: dict[int, int] = {}

    def for_addresses(self, found: list[int]) -> "ArmWalk":
        return ArmWalk(self.image, self.words, found)

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        place = self.image.offset(address)
        if place is None or address % WORD:
            return None
        self.known = {}
        for offset in range(place[0], place[1] - WORD + 1, WORD):
            page, index = divmod(address // WORD, _PAGE_WORDS)
            seen = self.seen.setdefault(page, bytearray(_PAGE_WORDS))
            if seen[index]:
                break
            seen[index] = 1
            self.count(1)
            word = int.from_bytes(self.data[offset : offset + WORD], "little")
            features = self.words.judge({word}).get(word)
            if features is not None:
                self.finds.behind = self.behind
                self.finds.undecodable += not features
                self.finds.note(features, address)
            # No instruction, UDF and BRK end the run.
            ends = features == () or word >> 16 == 0 or word & 0xFFE0001F == 0xD4200000
            if ends or not self._goes_on(word, address, waiting, calls):
                break
            address += WORD
        return None

    def _goes_on(self, word: int, address: int, waiting: list[int], calls: dict[int, None]) -> bool:
        """Note where an instruction leads; gives whether the one behind it may run too."""
        top = word >> 24
        if word >> 26 & 0x1F == 0b00101:  # B, BL
            target = address + WORD * _signed(word, 26)
            if word >> 31:
                self.hand_on(self._stub(target) if self.functions else None)
                return self._called(target, calls)
            waiting.append(target)
            return False
        if top == 0b01010100 or top & 0x7E in (
            0b0110100,
            0b0110110,
        ):  # B.cond; CBZ, CBNZ; TBZ, TBNZ
            self.behind = True
        if top == 0b01010100 or top & 0x7E == 0b0110100:
            waiting.append(address + WORD * _signed(word >> 5, 19))
        elif top & 0x7E == 0b0110110:
            waiting.append(address + WORD * _signed(word >> 5, 14))
        elif word >> 25 == 0b1101011:  # BR, BLR, RET, ERET, and those that authenticate
            held = self.known.get(word >> 5 & 31)
            kind = word >> 21 & 7
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
            if kind == 0 and held is not None:
                waiting.append(held)
            return False
        else:
            self.asks |= word & 0xFFFFF000 == 0xD5380000  # MRS of an ID register
            self._follow_registers(word, address)
        return True

    def _stub(self, target: int) -> int | None:
        """The slot of another library's function that a stub of the PLT loads (ADRP, LDR); None for
        any other code.
        """
        place = self.image.offset(target)
        if place and place[0] + 8 <= place[1]:
            page, load = struct.unpack_from("<II", self.data, place[0])
        else:
            page, load = (0, 0)
        if page >> 24 & 0x9F != 0b10010000 or load >> 22 != 0b1111100101:
            return None
        slot = (target & ~0xFFF) + (_page(page) << 12) + 8 * (load >> 10 & 0xFFF)
        return slot if slot in self.image.elsewhere else None

    def _called(self, target: int | None, calls: dict[int, None]) -> bool:
        if target is not None:
            calls[target] = None
            self.certain |= set() if self.behind else {target}
        self.known = {
            register: held for register, held in self.known.items() if 19 <= register <= 29
        }
        return True

    def _follow_registers(self, word: int, address: int) -> None:
        """Keep track of the addresses that registers hold, and note those that code takes."""
        to = word & 31
        base = self.known.get(word >> 5 & 31)
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
            if self.image.offset(value) is not None:
                self.functions.append(value)

    def _load(self, to: int, slot: int) -> None:
        """A pointer out of a slot of the GOT, or from another fixed place."""
        found = self.image.slots.get(slot)
        value = found if found is not None else self.image.pointer(slot)
        if value is not None or slot in self.image.elsewhere:
            self.known[to] = ~slot if value is None else value
        if value is not None and self.image.offset(value) is not None:
            self.functions.append(value)
        if self.addresses is not None:
            if value is not None:
                self.addresses.append(value)
        elif found is None and slot not in self.image.elsewhere:
            self.taken.add(slot)
        elif found is not None and self.image.offset(found) is None:
            self.taken.add(found)


def _signed(word: int, bits: int) -> int:
    """The lowest bits as a number in two's complement."""
    return (word & (1 << bits) - 1) - ((word >> bits - 1 & 1) << bits)


def _page(word: int) -> int:
    """The offset of ADR and ADRP."""
    return _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
