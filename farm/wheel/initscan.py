"""Which CPU features the code needs that runs when a library is loaded.

A library that chooses its code at run time holds instructions beyond its level, rightly, behind a question to the
CPU. What runs before anything can be asked must not: static initialisers. One compiled with `-mavx2` because it
stands in a file of AVX2 kernels kills the import on an older CPU. So the code is followed from where the loader
enters it: DT_INIT (the section `.init`), the functions in `.init_array` and the resolvers of indirect functions.

All jumps are followed, and direct calls (also through the PLT, where the library answers itself) down to `depth`
levels. Computed jumps and calls through pointers are not: what they reach is not seen. And a branch is followed
whether or not it asks the CPU first, so a find is a place to look at.

Sources: System V gABI chapter 5, "Initialization and Termination Functions"; System V psABI for AMD64, 4.4
(relocation types).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from farm.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf, Section, function_symbols, section_ranges
from farm.wheel.isa import IsaResult, Sweep

if TYPE_CHECKING:
    import iced_x86

DEPTH = 2
_SHT_RELA, _SHT_DYNSYM, _SHT_INIT_ARRAY = 4, 11, 14
_R_64, _R_GLOB_DAT, _R_JUMP_SLOT, _R_RELATIVE, _R_IRELATIVE = 1, 6, 7, 8, 37
_RELOCATION = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_WINDOW = 256  # bytes handed to the decoder at a time: most runs of code without a jump are shorter
_LONGEST = 15
_PAGE = 4096
_MAX_RELOCATIONS = 5_000_000
_MAX_SLOTS = 500_000
_MAX_STARTS = 100_000
_MAX_INSTRUCTIONS = 20_000_000


@dataclass(frozen=True)
class InitScan:
    """What the code that runs on loading needs; `starts` functions were entered, `instructions` decoded."""

    result: IsaResult
    starts: int = 0
    instructions: int = 0


def scan_starts(data: Buffer, elf: Elf, level: str, depth: int = DEPTH) -> InitScan:
    """Find the instructions beyond `level` that loading a library may execute.

    Args:
        data: The file.
        elf: Its facts.
        level: A CPU level, as for `scan_isa`.
        depth: How many levels of calls are followed; 0 follows jumps only.

    Raises:
        UsageError: No such level.
        VerificationFailedError: A table is damaged or too large.
    """
    sweep = Sweep(level)
    if (elf.machine, elf.bits, elf.little) != ("x86_64", 64, True):
        return InitScan(IsaResult(not_checked=f"machine code for {elf.machine}, {elf.bits} bits, is not decoded"))
    if not elf.sections:
        return InitScan(IsaResult(not_checked="it has no section table to find the initialisers by"))
    image = _Image(data, elf)
    starts = image.starts()
    walk = Walk(data, image, sweep)
    walk.descend(starts, depth)
    return InitScan(sweep.result(data, function_symbols(data, elf)), len(starts), walk.instructions)


class _Image:
    """Where code lies, where the loader enters it, and what the library's own PLT leads to."""

    def __init__(self, data: Buffer, elf: Elf) -> None:
        self.data = data
        self.sections = elf.sections
        self.code = [
            (section.address, section.address + end - start, start)
            for section, start, end in section_ranges(data, (part for part in elf.sections if part.is_code))
        ]
        self.arrays = [part for part in elf.sections if part.kind == _SHT_INIT_ARRAY]
        section_ranges(data, self.arrays)
        self.pointers: dict[int, int] = {}  # slot of `.init_array` -> what the loader writes there
        self.slots: dict[int, int] = {}  # slot of the GOT -> function of this library
        self.resolvers: set[int] = set()
        for section, start, end in section_ranges(data, (part for part in elf.sections if part.kind == _SHT_RELA)):
            self._relocations(section, start, end)

    def starts(self) -> list[int]:
        """Addresses that the loader calls, in its order, each once."""
        found = [part.address for part in self.sections if part.name == ".init" and part.is_code]
        found += sorted(self.resolvers)
        for array in self.arrays:
            if array.size // 8 > _MAX_STARTS:
                raise _damaged(f"{array.size // 8} initialisers; more than {_MAX_STARTS} are refused")
            for index in range(array.size // 8):
                slot = array.address + 8 * index
                # Without a relocation (or with one of the packed kind, DT_RELR) the address stands in the file.
                stored = int.from_bytes(self.data[array.offset + 8 * index : array.offset + 8 * index + 8], "little")
                found.append(self.pointers.get(slot, stored))
        return [address for address in dict.fromkeys(found) if self.offset(address) is not None]

    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is no code here."""
        for first, behind, start in self.code:
            if first <= address < behind:
                return start + address - first, start + behind - first
        return None

    def _relocations(self, section: Section, start: int, end: int) -> None:
        count = (end - start) // _RELOCATION.size
        if count > _MAX_RELOCATIONS:
            raise _damaged(f"{count} relocations; more than {_MAX_RELOCATIONS} are refused")
        bounds = [(array.address, array.address + array.size) for array in self.arrays]
        symbols = self._symbols(section)
        view = memoryview(self.data)[start : start + count * _RELOCATION.size]
        try:
            for slot, info, addend in _RELOCATION.iter_unpack(view):
                kind = info & 0xFFFFFFFF
                if kind == _R_IRELATIVE:
                    self.resolvers.add(addend)
                elif kind in (_R_GLOB_DAT, _R_JUMP_SLOT) and symbols is not None:
                    target = self._defined(symbols, info >> 32)
                    if target:
                        self.slots[slot] = target
                elif kind in (_R_RELATIVE, _R_64) and any(low <= slot < high for low, high in bounds):
                    base = self._defined(symbols, info >> 32) if kind == _R_64 and symbols is not None else 0
                    self.pointers[slot] = base + addend
                if len(self.slots) > _MAX_SLOTS or len(self.resolvers) > _MAX_STARTS:
                    raise _damaged(f"more than {_MAX_SLOTS} slots or {_MAX_STARTS} resolvers")
        finally:
            view.release()

    def _symbols(self, section: Section) -> Section | None:
        table = self.sections[section.link] if section.link < len(self.sections) else None
        return table if table is not None and table.kind == _SHT_DYNSYM else None

    def _defined(self, table: Section, index: int) -> int:
        """The address of a symbol, 0 for one that another library defines."""
        at = table.offset + index * _SYMBOL.size
        if index * _SYMBOL.size + _SYMBOL.size > table.size or at + _SYMBOL.size > len(self.data):
            raise _damaged("a relocation names a symbol beyond the table")
        _, _, _, section, address, _ = _SYMBOL.unpack_from(self.data, at)
        return int(address) if section else 0


class Image(Protocol):
    """A library as it lies in memory: `slots` are pointers (by address) that lead to functions of its own."""

    @property
    def slots(self) -> Mapping[int, int]: ...
    def offset(self, address: int) -> tuple[int, int] | None:
        """(file offset, end of its section in the file) of code; None for an address that is no code here."""
        ...


class Walk:
    """Decodes code along its jumps. `addresses`, if given, takes what `lea` loads relative to the code, in order."""

    def __init__(self, data: Buffer, image: Image, sweep: Sweep, addresses: list[int] | None = None) -> None:
        import iced_x86  # noqa: PLC0415 (see farm.wheel.isa)

        self.flow = iced_x86.FlowControl
        self.lea = iced_x86.Mnemonic.LEA
        self.data, self.image, self.sweep, self.addresses = data, image, sweep, addresses
        self.instructions = 0
        self.seen: dict[int, bytearray] = {}  # one bit a byte of code, by page
        self.dull: set[int] = set()  # codes of instructions that are fine, go on to the next and load no address

    def descend(self, starts: list[int], depth: int) -> None:
        """Decode what runs from `starts`, with `depth` levels of calls."""
        for below in range(depth + 1):
            starts = self.follow(starts, with_calls=below < depth)

    def follow(self, starts: list[int], *, with_calls: bool) -> list[int]:
        """Decode from `starts` along every jump; gives what was called, if that is wanted."""
        waiting = list(reversed(starts))
        calls: dict[int, None] = {}
        address: int | None
        while waiting:
            address = waiting.pop()
            while address is not None:
                address = self._decode(address, waiting, calls if with_calls else None)
        return list(calls)

    def _decode(self, address: int, waiting: list[int], calls: dict[int, None] | None) -> int | None:
        """The instructions of a window, as far as they are new; gives where it goes on, None at the run's end.

        A million instructions pass here: what is written out in the loop would take twice the time in functions.
        """
        place = self.image.offset(address)
        if place is None:
            return None
        offset, end = place
        page, at = divmod(address, _PAGE)
        bits = self.seen.setdefault(page, bytearray(_PAGE // 8))
        if bits[at >> 3] & 1 << (at & 7):
            return None
        window = min(offset + min(_WINDOW, _PAGE - at), end)
        decoder = self.sweep.decoder(64, self.data[offset : min(window + _LONGEST, end)], ip=address)
        first, border = address - at, address + window - offset
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
        self.instructions += count
        if self.instructions > _MAX_INSTRUCTIONS:
            raise _damaged(f"loading it runs through more than {_MAX_INSTRUCTIONS} instructions")
        return following

    def _goes_on(self, instruction: "iced_x86.Instruction", waiting: list[int], calls: dict[int, None] | None) -> bool:
        """Judge an instruction and note where it leads; gives whether the one behind it may run too."""
        self.sweep.see(instruction)
        code, flow = instruction.code, instruction.flow_control
        if flow == self.flow.NEXT:
            if self.addresses is not None and instruction.mnemonic == self.lea:
                self.addresses.append(instruction.ip_rel_memory_address)
            elif code in self.sweep.harmless:
                self.dull.add(code)
            return code != self.sweep.invalid
        target = self._target(instruction)
        if flow in (self.flow.CALL, self.flow.INDIRECT_CALL):
            if calls is not None and target is not None:
                calls[target] = None
        elif target is not None:
            waiting.append(target)
        return code != self.sweep.invalid and flow not in (
            self.flow.UNCONDITIONAL_BRANCH,
            self.flow.INDIRECT_BRANCH,
            self.flow.RETURN,
            self.flow.EXCEPTION,
        )

    def _target(self, instruction: "iced_x86.Instruction") -> int | None:
        flow = instruction.flow_control
        if flow in (self.flow.INDIRECT_BRANCH, self.flow.INDIRECT_CALL):
            if not instruction.is_ip_rel_memory_operand:
                return None
            return self.image.slots.get(instruction.ip_rel_memory_address)
        direct = (self.flow.UNCONDITIONAL_BRANCH, self.flow.CONDITIONAL_BRANCH, self.flow.CALL)
        return instruction.near_branch_target if flow in direct else None


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged file: {what}")
