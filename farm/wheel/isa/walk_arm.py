"""64-bit Arm code along its jumps and calls.

No emulated import decides for Arm what is open (`farm.smoke.emulation` runs x86-64 alone), so this
walk is all that is known of what runs on loading there.
"""

from farm.wheel.isa.arm import WORD, Words
from farm.wheel.isa.findings import Finds
from farm.wheel.isa.image import Image
from farm.wheel.isa.walk import Addresses, CodeWalker

_PAGE_WORDS = 1024
_KEPT_REGISTERS = frozenset(range(19, 30))  # a call keeps these (AAPCS64, 6.1.1)


class ArmWalk(CodeWalker):
    """A walk through 64-bit Arm code.

    Attributes:
        registers: What registers hold, where that is an address in this library; negative: the
            function of another library, by the complement of its slot. They are known in one run
            of code.
    """

    def __init__(
        self,
        image: Image,
        words: Words,
        loaded: list[int] | None = None,
    ) -> None:
        super().__init__(image, Finds(), loaded)
        self.words = words
        self.registers: dict[int, int] = {}

    def for_addresses(self, loaded: list[int]) -> "ArmWalk":
        return ArmWalk(self.image, self.words, loaded)

    def decode(self, address: int, waiting: list[int], calls: Addresses) -> int | None:
        place = self.image.offset(address)
        if place is None or address % WORD:
            return None
        start, end = place
        self.registers = {}
        for offset in range(start, end - WORD + 1, WORD):
            page, index = divmod(address // WORD, _PAGE_WORDS)
            visited = self.seen.setdefault(page, bytearray(_PAGE_WORDS))
            if visited[index]:
                break
            visited[index] = 1
            self.count(1)
            word = int.from_bytes(self.data[offset : offset + WORD], "little")
            features = self.words.judge({word}).get(word)
            if features is not None:
                self.finds.behind = self.after_branch
                self.finds.undecodable += not features
                self.finds.note(features, address)
            if features == () or _ends_run(word):
                break
            if not self._goes_on(word, address, waiting, calls):
                break
            address += WORD
        return None

    def _goes_on(
        self,
        word: int,
        address: int,
        waiting: list[int],
        calls: Addresses,
    ) -> bool:
        """Note where an instruction leads; True if the one behind it may run too."""
        top = word >> 24
        if word >> 26 & 0x1F == 0b00101:  # B, BL
            target = address + WORD * _signed(word, 26)
            if word >> 31:
                self._call(target, calls)
                return True
            waiting.append(target)
            return False
        if top == 0b01010100 or top & 0x7E == 0b0110100:  # B.cond, CBZ, CBNZ
            self.after_branch = True
            waiting.append(address + WORD * _signed(word >> 5, 19))
        elif top & 0x7E == 0b0110110:  # TBZ, TBNZ
            self.after_branch = True
            waiting.append(address + WORD * _signed(word >> 5, 14))
        elif word >> 25 == 0b1101011:  # BR, BLR, RET, ERET, and those that authenticate
            return self._branch_to_register(word, waiting, calls)
        else:
            self.asks |= word & 0xFFFFF000 == 0xD5380000  # MRS of an ID register
            self._follow_registers(word, address)
        return True

    def _branch_to_register(
        self,
        word: int,
        waiting: list[int],
        calls: Addresses,
    ) -> bool:
        kind = word >> 21 & 7  # 0: BR, 1: BLR
        if kind > 1:
            return False
        target = self.registers.get(word >> 5 & 31)
        if target is None:
            self.open_ends += 1
        elif target < 0:
            self.outside.add(~target)
            target = None
        if kind == 1:
            self._call(target, calls)
            return True
        if target is not None:
            waiting.append(target)
        return False

    def _call(self, target: int | None, calls: Addresses) -> None:
        if target is not None:
            calls[target] = None
            if not self.after_branch:
                self.certain.add(target)
        for register in self.registers.keys() - _KEPT_REGISTERS:
            del self.registers[register]

    def _follow_registers(self, word: int, address: int) -> None:
        """Keep track of the addresses that registers hold, and note those that code takes."""
        to = word & 31
        base = self.registers.get(word >> 5 & 31, -1)
        self.registers.pop(to, None)
        if word >> 27 & 7 == 0b101:  # LDP has a second one
            self.registers.pop(word >> 10 & 31, None)

        page_kind = word >> 24 & 0x9F
        kind = word >> 22
        immediate = word >> 10 & 0xFFF
        if page_kind == 0b10010000:  # ADRP
            self.registers[to] = (address & ~0xFFF) + (_page(word) << 12)
        elif page_kind == 0b00010000:  # ADR
            self._form_address(to, address + _page(word))
        elif base < 0:
            return
        elif kind == 0b1001000100:  # ADD, 64 bits, immediate
            self._form_address(to, base + immediate)
        elif kind == 0b1111100101:  # LDR, 64 bits, unsigned offset
            self._load(to, base + 8 * immediate)

    def _form_address(self, to: int, value: int) -> None:
        """Note the address that a register holds now."""
        self.registers[to] = value
        if self.loaded is None:
            self.take_address(value)
        else:
            self.loaded.append(value)

    def _load(self, to: int, slot: int) -> None:
        """A pointer out of a slot of the GOT, or from another fixed place."""
        value = self.image.slots.get(slot)
        if value is None:
            value = self.image.pointer(slot)
        if value is not None:
            self._form_address(to, value)
        elif slot in self.image.elsewhere:
            self.registers[to] = ~slot


def _ends_run(word: int) -> bool:
    """True for UDF and BRK."""
    return word >> 16 == 0 or word & 0xFFE0001F == 0xD4200000


def _signed(word: int, bits: int) -> int:
    """The lowest bits as a number in two's complement."""
    return (word & (1 << bits) - 1) - ((word >> bits - 1 & 1) << bits)


def _page(word: int) -> int:
    """The offset of ADR and ADRP."""
    return _signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
