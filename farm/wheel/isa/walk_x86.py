"""x86-64 code along its jumps and calls."""

from itertools import islice
from typing import TYPE_CHECKING

from farm.wheel.isa.image import Image
from farm.wheel.isa.walk import Paths
from farm.wheel.isa.x86 import LONGEST_X86, Sweep

if TYPE_CHECKING:
    import iced_x86


_SWITCH = 1024  # cases, and
_SWITCH_BYTES = 64  # from the comparison to the jump
_WINDOW = 256  # bytes handed to the decoder at a time: most runs of code without a jump are shorter
_PAGE_BYTES = 4096


class Walk(Paths):
    """Follows code of x86 and judges it."""

    def __init__(self, image: Image, sweep: Sweep, addresses: list[int] | None = None) -> None:
        import iced_x86  # noqa: PLC0415 (as above)

        super().__init__(image, sweep, addresses)
        self.flow = iced_x86.FlowControl
        self.lea = iced_x86.Mnemonic.LEA
        self.test = iced_x86.Mnemonic.TEST
        self.cmp = iced_x86.Mnemonic.CMP
        self.questions = (iced_x86.Mnemonic.CPUID, iced_x86.Mnemonic.XGETBV)
        self.load = iced_x86.Code.MOV_R64_RM64
        self.register = iced_x86.OpKind.REGISTER
        self.sweep = sweep
        self.dull: set[int] = (
            set()
        )  # codes of instructions that are fine, go on to the next and load no address
        codes = vars(iced_x86.Code).items()
        # Comparisons of a register or memory with a number.
        self.compares = {code for name, code in codes if name.startswith("CMP_") and "_IMM" in name}
        self.compared = self.table = (
            0,
            0,
        )  # address of the last comparison with a number, and of the last `lea`
        self.held = (
            0,
            0,
            0,
        )  # address of the last load of a pointer from a fixed place, its register and that place

    def for_addresses(self, found: list[int]) -> "Walk":
        return Walk(self.image, Sweep(self.sweep.level), found)

    def _take(self, instruction: "iced_x86.Instruction") -> None:
        """Note an address that code takes (`lea`), or loads from a slot of the GOT; the place of a
        pointer it loads.
        """
        address = instruction.ip_rel_memory_address
        if instruction.mnemonic == self.lea:
            self.taken.add(address)
            if self.image.offset(address) is not None:
                self.functions.append(address)
            self.table = instruction.ip, address
        elif instruction.op0_kind == self.register:
            self.held = instruction.ip, instruction.op0_register, address
            found = self.image.slots.get(address)
            value = self.image.pointer(address) if found is None else found
            if value is not None and self.image.offset(value) is not None:
                self.functions.append(value)
            if found is None and address not in self.image.elsewhere:
                self.taken.add(address)
            elif found is not None and self.image.offset(found) is None:
                self.taken.add(found)

    def decode(self, address: int, waiting: list[int], calls: dict[int, None]) -> int | None:
        """The instructions of a window, as far as they are new; gives where it goes on, None at the
        run's end.

        A million instructions pass here: what is written out in the loop would take twice the time
        in functions.
        """
        place = self.image.offset(address)
        if place is None:
            return None
        offset, end = place
        page, at = divmod(address, _PAGE_BYTES)
        bits = self.seen.setdefault(page, bytearray(_PAGE_BYTES // 8))
        # Decoded before, by another path: what follows has been followed too.
        if bits[at >> 3] & 1 << (at & 7):
            return None
        window = min(offset + min(_WINDOW, _PAGE_BYTES - at), end)
        # The last instruction of a window may reach beyond it, by at most the longest one less a
        # byte.
        decoder = self.sweep.decoder(
            64, self.data[offset : min(window + LONGEST_X86, end)], ip=address
        )
        first = address - at
        border = address + window - offset
        dull = self.dull
        count = 0
        following: int | None = None
        for instruction in decoder:
            ip = instruction.ip
            if ip >= border:
                following = ip
                break
            at = ip - first
            bit = 1 << (at & 7)
            if bits[at >> 3] & bit:
                break
            bits[at >> 3] |= bit
            count += 1
            if instruction.code not in dull and not self._goes_on(instruction, waiting, calls):
                break
        else:
            following = decoder.ip
        self.count(count)
        return following

    def _goes_on(
        self, instruction: "iced_x86.Instruction", waiting: list[int], calls: dict[int, None]
    ) -> bool:
        """Judge an instruction and note where it leads; gives whether the one behind it may run
        too.
        """
        self.sweep.behind = self.behind
        self.sweep.see(instruction)
        code = instruction.code
        flow = instruction.flow_control
        if flow == self.flow.NEXT:
            if self.addresses is not None and instruction.mnemonic == self.lea:
                self.addresses.append(instruction.ip_rel_memory_address)
            elif self.addresses is not None and code == self.load:
                if (
                    instruction.is_ip_rel_memory_operand
                    and instruction.ip_rel_memory_address in self.image.slots
                ):
                    self.addresses.append(self.image.slots[instruction.ip_rel_memory_address])
            elif self.tables is not None and (
                code == self.load or instruction.mnemonic == self.lea
            ):
                if instruction.is_ip_rel_memory_operand:
                    self._take(instruction)
            elif code in self.compares:
                self.compared = instruction.ip, instruction.immediate(1)
            elif instruction.mnemonic in self.questions:
                self.asks = True
            elif code in self.sweep.harmless:
                self.dull.add(code)
            return code != self.sweep.invalid
        target = self._target(instruction)
        self.behind |= flow == self.flow.CONDITIONAL_BRANCH
        if self.functions and flow in (
            self.flow.CALL,
            self.flow.INDIRECT_CALL,
            self.flow.INDIRECT_BRANCH,
        ):
            self.hand_on(self._slot(instruction) if target is None else self._stub(target))
        if flow in (self.flow.CALL, self.flow.INDIRECT_CALL):
            if target is not None:
                calls[target] = None
                self.certain |= set() if self.behind else {target}
        elif target is not None:
            waiting.append(target)
        elif flow == self.flow.INDIRECT_BRANCH and not self._goes_elsewhere(
            self._slot(instruction)
        ):
            cases = self._cases(instruction)
            waiting += cases
            self.open_ends += not cases
        return code != self.sweep.invalid and flow not in (
            self.flow.UNCONDITIONAL_BRANCH,
            self.flow.INDIRECT_BRANCH,
            self.flow.RETURN,
            self.flow.EXCEPTION,
        )

    def _stub(self, target: int) -> int | None:
        """The slot of another library's function that a stub of the PLT jumps through; None for any
        other code.
        """
        place = self.image.offset(target)
        if place is not None:
            for each in islice(
                self.sweep.decoder(64, self.data[place[0] : place[0] + 2 * LONGEST_X86], ip=target),
                2,
            ):
                if each.flow_control == self.flow.INDIRECT_BRANCH and each.is_ip_rel_memory_operand:
                    slot = each.ip_rel_memory_address
                    return slot if slot in self.image.elsewhere else None
        return None

    def _cases(self, instruction: "iced_x86.Instruction") -> list[int]:
        """The targets of a `switch`: a comparison with the last case, then a table of distances
        from itself.
        """
        (compared, last) = self.compared
        (loaded, table) = self.table
        near = instruction.ip - _SWITCH_BYTES <= compared < loaded < instruction.ip
        if (
            self.tables is None
            or not near
            or not 0 < last < _SWITCH
            or self.image.offset(table) is not None
        ):
            return []
        found = []
        for place in range(table, table + 4 * (last + 1), 4):
            word = self.tables.word(place)
            target = table + ((word or 0) & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
            if word is None or self.image.offset(target) is None:
                return []
            found.append(target)
        return found

    def _slot(self, instruction: "iced_x86.Instruction") -> int | None:
        """The fixed place of the pointer that an indirect jump or call takes: its operand, or what
        was just loaded.
        """
        if instruction.is_ip_rel_memory_operand:
            return instruction.ip_rel_memory_address
        at, register, slot = self.held
        place = self.image.offset(at)
        if (
            instruction.op0_kind != self.register
            or instruction.op0_register != register
            or place is None
        ):
            return None
        distance = instruction.ip - at
        if not 0 < distance <= _SWITCH_BYTES:
            return None
        # Between them nothing else may go into the register, as in: load; test; je; call.
        decoder = self.sweep.decoder(64, self.data[place[0] : place[0] + distance], ip=at)
        tested = (self.test, self.cmp)
        calm = (self.flow.NEXT, self.flow.CONDITIONAL_BRANCH)
        for each in islice(decoder, 1, None):
            writes = (
                each.flow_control == self.flow.NEXT
                and each.op_count
                and each.mnemonic not in tested
            )
            if each.flow_control not in calm or (writes and each.op0_kind == self.register):
                return None
        return slot

    def _goes_elsewhere(self, slot: int | None) -> bool:
        """True if a call through a slot leads into another library; it is noted."""
        if slot is None or slot not in self.image.elsewhere:
            return False
        self.outside.add(slot)
        return True

    def _target(self, instruction: "iced_x86.Instruction") -> int | None:
        flow = instruction.flow_control
        if flow in (self.flow.INDIRECT_BRANCH, self.flow.INDIRECT_CALL):
            target = None
            slot = self._slot(instruction)
            if slot is not None:
                target = self.image.slots.get(slot)
                if target is None:
                    target = self.image.pointer(slot)
            if target is None and flow == self.flow.INDIRECT_CALL:
                self.through_pointer = True
                # A slot of another library's function is no open end: that library is looked at by
                # itself.
                self.open_ends += not self._goes_elsewhere(slot)
            return target
        direct = (self.flow.UNCONDITIONAL_BRANCH, self.flow.CONDITIONAL_BRANCH, self.flow.CALL)
        return instruction.near_branch_target if flow in direct else None
