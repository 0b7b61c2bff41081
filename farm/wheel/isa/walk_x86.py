"""x86-64 code along its jumps and calls."""

from itertools import islice
from typing import TYPE_CHECKING

from farm.wheel.isa.image import Image
from farm.wheel.isa.walk import Addresses, CodeWalker
from farm.wheel.isa.x86 import LONGEST_X86, Sweep

if TYPE_CHECKING:
    import iced_x86

_WINDOW = 256  # bytes handed to the decoder at a time: most runs of code without a jump are shorter
_PAGE_BYTES = 4096
_MAX_DISTANCE = 64  # bytes from the load of a pointer to the jump through it


class Walk(CodeWalker):
    """A walk through x86-64 code."""

    def __init__(
        self,
        image: Image,
        sweep: Sweep,
        loaded: list[int] | None = None,
    ) -> None:
        import iced_x86  # noqa: PLC0415 (half of this program's start-up time)

        super().__init__(image, sweep, loaded)
        self.sweep = sweep
        self.flow = iced_x86.FlowControl
        self.lea = iced_x86.Mnemonic.LEA
        self.tests = (iced_x86.Mnemonic.TEST, iced_x86.Mnemonic.CMP)
        self.questions = (iced_x86.Mnemonic.CPUID, iced_x86.Mnemonic.XGETBV)
        self.load = iced_x86.Code.MOV_R64_RM64
        self.register = iced_x86.OpKind.REGISTER
        # Codes of instructions that are within the level, go on to the next and load no address.
        self.boring: set[int] = set()
        # The last load of a pointer from a fixed place: its address, its register, and the place.
        self.last_load = (0, 0, 0)

    def for_addresses(self, loaded: list[int]) -> "Walk":
        return Walk(self.image, Sweep(self.sweep.level), loaded)

    def decode(self, address: int, waiting: list[int], calls: Addresses) -> int | None:
        """Decode the instructions of a window.

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
        code = self.data[offset : min(window + LONGEST_X86, end)]
        decoder = self.sweep.decoder(64, code, ip=address)
        first = address - at
        border = address + window - offset
        boring = self.boring
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
            if instruction.code not in boring and not self._goes_on(instruction, waiting, calls):
                break
        else:
            following = decoder.ip
        self.count(count)
        return following

    def _goes_on(
        self,
        instruction: "iced_x86.Instruction",
        waiting: list[int],
        calls: Addresses,
    ) -> bool:
        """Check an instruction and note where it leads; True if the one behind it may run too."""
        self.sweep.behind = self.after_branch
        self.sweep.see(instruction)
        flow = instruction.flow_control
        if flow == self.flow.NEXT:
            self._note_plain(instruction)
            return instruction.code != self.sweep.invalid
        target = self._target(instruction)
        if flow == self.flow.CONDITIONAL_BRANCH:
            self.after_branch = True
        if flow in (self.flow.CALL, self.flow.INDIRECT_CALL):
            if target is not None:
                calls[target] = None
                if not self.after_branch:
                    self.certain.add(target)
        elif target is not None:
            waiting.append(target)
        elif flow == self.flow.INDIRECT_BRANCH:
            self._leave(self._slot(instruction))
        return instruction.code != self.sweep.invalid and flow not in (
            self.flow.UNCONDITIONAL_BRANCH,
            self.flow.INDIRECT_BRANCH,
            self.flow.RETURN,
            self.flow.EXCEPTION,
        )

    def _note_plain(self, instruction: "iced_x86.Instruction") -> None:
        """Note what an instruction says that neither jumps nor calls."""
        is_load = instruction.code == self.load
        if is_load or instruction.mnemonic == self.lea:
            if instruction.is_ip_rel_memory_operand:
                self._note_address(instruction, is_load=is_load)
        elif instruction.mnemonic in self.questions:
            self.asks = True
        elif instruction.code in self.sweep.harmless:
            self.boring.add(instruction.code)

    def _note_address(
        self,
        instruction: "iced_x86.Instruction",
        *,
        is_load: bool,
    ) -> None:
        """Note an address that code takes (`lea`), or a pointer that it loads from a fixed
        place.
        """
        address = instruction.ip_rel_memory_address
        if not is_load:
            if self.loaded is None:
                self.take_address(address)
            else:
                self.loaded.append(address)
        elif self.loaded is not None:
            if address in self.image.slots:
                self.loaded.append(self.image.slots[address])
        elif instruction.op0_kind == self.register:
            self.last_load = (instruction.ip, instruction.op0_register, address)
            self.take_address(self._pointer_in(address))

    def _pointer_in(self, slot: int) -> int | None:
        """The address in this library that the loader writes into a slot."""
        target = self.image.slots.get(slot)
        return self.image.pointer(slot) if target is None else target

    def _target(self, instruction: "iced_x86.Instruction") -> int | None:
        """Where an instruction jumps or calls; None where that is not known, or outside."""
        flow = instruction.flow_control
        if flow in (
            self.flow.UNCONDITIONAL_BRANCH,
            self.flow.CONDITIONAL_BRANCH,
            self.flow.CALL,
        ):
            return instruction.near_branch_target
        if flow not in (self.flow.INDIRECT_BRANCH, self.flow.INDIRECT_CALL):
            return None
        slot = self._slot(instruction)
        target = None if slot is None else self._pointer_in(slot)
        if target is None and flow == self.flow.INDIRECT_CALL:
            self._leave(slot)
        return target

    def _slot(self, instruction: "iced_x86.Instruction") -> int | None:
        """The fixed place of the pointer that an indirect jump or call takes: its operand, or what
        was just loaded.
        """
        if instruction.is_ip_rel_memory_operand:
            return instruction.ip_rel_memory_address
        at, register, slot = self.last_load
        if instruction.op0_kind != self.register or instruction.op0_register != register:
            return None
        distance = instruction.ip - at
        if 0 < distance <= _MAX_DISTANCE and self._keeps_register(at, distance):
            return slot
        return None

    def _keeps_register(self, at: int, distance: int) -> bool:
        """True if nothing goes into a register between its load and a jump, as in: load; test; je;
        call.

        Args:
            at: The address of the load.
            distance: The bytes from there to the jump.
        """
        place = self.image.offset(at)
        if place is None:
            return False
        offset, _ = place
        code = self.data[offset : offset + distance]
        decoder = self.sweep.decoder(64, code, ip=at)
        for between in islice(decoder, 1, None):
            if between.flow_control == self.flow.CONDITIONAL_BRANCH:
                continue
            if between.flow_control != self.flow.NEXT:
                return False
            writes = between.op_count and between.mnemonic not in self.tests
            if writes and between.op0_kind == self.register:
                return False
        return True

    def _leave(self, slot: int | None) -> None:
        """Note a jump or call out of what is known.

        A function of another library is no open end: that library is looked at by itself.
        """
        if slot is not None and slot in self.image.elsewhere:
            self.outside.add(slot)
        else:
            self.open_ends += 1
