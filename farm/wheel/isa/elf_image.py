"""ELF files as they are in memory."""

import struct
from array import array
from bisect import bisect_left
from itertools import pairwise

from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Section,
    section_ranges,
    symbol_name,
)
from farm.wheel.isa.image import ALL_ONES, ENTRY_NAMES, MAX_STARTS, Image
from farm.wheel.isa.levels import damaged

# Section types of the gABI; relocation types of the AMD64 psABI, section 4.4.
_SHT_RELA = 4
_SHT_DYNSYM = 11
_SHT_INIT_ARRAY = 14
_SHT_FINI_ARRAY = 15
# A pointer to a symbol (R_X86_64_64), two kinds of slots, a pointer of this library, and the
# resolver of a function.
_KINDS = {"x86_64": (1, 6, 7, 8, 37), "aarch64": (257, 1025, 1026, 1027, 1032)}
_RELOCATION = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_RELOCATIONS = 5_000_000
_MAX_SLOTS = 500_000
_SHT_RELR = 19
_STT_GNU_IFUNC = 10
_MAX_SYMBOLS = 2_000_000
_DT_INIT = 12
_DT_FINI = 13


class ElfImage(Image):
    """An ELF file: where the loader enters it, and what its own PLT leads to."""

    def __init__(self, data: Buffer, elf: Elf) -> None:
        code = section_ranges(data, (part for part in elf.sections if part.is_code))
        super().__init__(
            data, [(part.address, part.address + end - start, start) for part, start, end in code]
        )
        self.kinds = _KINDS[elf.machine]
        self.sections = elf.sections
        self.arrays = [
            part for part in elf.sections if part.kind in (_SHT_INIT_ARRAY, _SHT_FINI_ARRAY)
        ]
        section_ranges(data, self.arrays)
        self.pointers: dict[int, int] = {}  # slot of such an array -> what the loader writes there
        self.elsewhere: dict[int, int] = {}  # and where in the file the name is
        self.resolvers: set[int] = set()
        self.entries: list[int] = []  # functions that the interpreter calls: PyInit_NAME
        self.relocated = array(
            "Q"
        )  # addresses, in order, where the loader writes a pointer into this library
        self.values = array("Q")  # and the pointers
        self.packed = any(
            part.kind == _SHT_RELR for part in elf.sections
        )  # those are in the file as they are
        self.segments = elf.segments
        self.dynamic = elf.dynamic
        for section, start, end in section_ranges(
            data, (part for part in elf.sections if part.kind == _SHT_RELA)
        ):
            self._relocations(section, start, end)
        for section, start, end in section_ranges(
            data, (part for part in elf.sections if part.kind == _SHT_DYNSYM)
        ):
            self._exports(section, start, end)
        # Linkers order relocations by kind and symbol, not by address alone; `pointer` searches by
        # bisection.
        if any(earlier > right for earlier, right in pairwise(self.relocated)):
            rows = sorted(zip(self.relocated, self.values, strict=True))
            self.relocated = array("Q", (slot for slot, _ in rows))
            self.values = array("Q", (value for _, value in rows))

    def starts(self) -> list[int]:
        """Addresses that the loader calls when it loads the library, and at exit, each once."""
        addresses = [value for tag, value in self.dynamic if tag in (_DT_INIT, _DT_FINI)]
        addresses += sorted(self.resolvers)
        for part in self.arrays:
            if part.size // 8 > MAX_STARTS:
                raise damaged(
                    f"{part.size // 8} initialisers and finalisers; more than {MAX_STARTS} are "
                    "refused"
                )
            for index in range(part.size // 8):
                slot = part.address + 8 * index
                # Without a relocation (or with one of the packed kind, DT_RELR) the address is in
                # the file.
                stored = int.from_bytes(
                    self.data[part.offset + 8 * index : part.offset + 8 * index + 8], "little"
                )
                addresses.append(self.pointers.get(slot, stored))
        return [address for address in dict.fromkeys(addresses) if self.offset(address) is not None]

    def pointer(self, slot: int) -> int | None:
        index = bisect_left(self.relocated, slot)
        if index < len(self.relocated) and self.relocated[index] == slot:
            return self.values[index]
        # DT_RELR lists places alone; the pointer itself is in the file there.
        if not self.packed or slot % 8:
            return None
        for segment in self.segments:
            if (
                not segment.is_code
                and segment.address <= slot <= segment.address + segment.size - 8
            ):
                at = segment.offset + slot - segment.address
                return int.from_bytes(self.data[at : at + 8], "little") or None
        return None

    def _relocations(self, section: Section, start: int, end: int) -> None:
        count = (end - start) // _RELOCATION.size
        if count > _MAX_RELOCATIONS:
            raise damaged(f"{count} relocations; more than {_MAX_RELOCATIONS} are refused")
        bounds = [(array.address, array.address + array.size) for array in self.arrays]
        symbols = self._symbols(section)
        absolute, glob_dat, jump_slot, relative, indirect = self.kinds
        view = memoryview(self.data)[start : start + count * _RELOCATION.size]
        try:
            for slot, info, addend in _RELOCATION.iter_unpack(view):
                kind = info & 0xFFFFFFFF
                # The addend is the address of a resolver, which the loader calls to learn the
                # function's address.
                if kind == indirect:
                    self.resolvers.add(addend)
                elif kind in (glob_dat, jump_slot) and symbols is not None:
                    target, name = self._defined(symbols, info >> 32)
                    if target:
                        self.slots[slot] = target
                    else:
                        self.elsewhere[slot] = name
                elif kind in (relative, absolute):
                    if kind == absolute and symbols is not None:
                        base = self._defined(symbols, info >> 32)[0]
                    else:
                        base = 0
                    if kind == absolute and not base:
                        continue
                    self.relocated.append(slot)
                    self.values.append(base + addend & ALL_ONES)
                    if any(low <= slot < high for low, high in bounds):
                        self.pointers[slot] = base + addend
                if (
                    len(self.slots) + len(self.elsewhere) > _MAX_SLOTS
                    or len(self.resolvers) > MAX_STARTS
                ):
                    raise damaged(f"more than {_MAX_SLOTS} slots or {MAX_STARTS} resolvers")
        finally:
            view.release()

    def _exports(self, section: Section, start: int, end: int) -> None:
        """Note the exported resolvers and the entry points of an extension module."""
        if (end - start) // _SYMBOL.size > _MAX_SYMBOLS:
            raise damaged(f"more than {_MAX_SYMBOLS} exported symbols are refused")
        if section.link < len(self.sections):
            names = self.sections[section.link].offset
        else:
            names = len(self.data)
        view = memoryview(self.data)[start : end - (end - start) % _SYMBOL.size]
        try:
            for name, info, _, place, address, _ in _SYMBOL.iter_unpack(view):
                if not place:
                    continue
                if info & 15 == _STT_GNU_IFUNC:
                    self.resolvers.add(address)
                elif bytes(self.data[names + name : names + name + 8]).startswith(ENTRY_NAMES):
                    self.entries.append(address)
                if len(self.resolvers) > MAX_STARTS or len(self.entries) > MAX_STARTS:
                    raise damaged(f"more than {MAX_STARTS} resolvers or entry points")
        finally:
            view.release()

    def name(self, slot: int) -> str:
        return symbol_name(self.data, self.elsewhere.get(slot, len(self.data)))

    def word(self, address: int) -> int | None:
        for segment in self.segments:
            if segment.address <= address <= segment.address + segment.size - 8:
                at = segment.offset + address - segment.address
                return int.from_bytes(self.data[at : at + 8], "little")
        return None

    def _symbols(self, section: Section) -> Section | None:
        if section.link < len(self.sections):
            table = self.sections[section.link]
        else:
            table = None
        return table if table is not None and table.kind == _SHT_DYNSYM else None

    def _defined(self, table: Section, index: int) -> tuple[int, int]:
        """The address of a symbol, 0 for one that another library defines, and where its name
        is.
        """
        at = table.offset + index * _SYMBOL.size
        if index * _SYMBOL.size + _SYMBOL.size > table.size or at + _SYMBOL.size > len(self.data):
            raise damaged("a relocation names a symbol beyond the table")
        name, _, _, section, address, _ = _SYMBOL.unpack_from(self.data, at)
        if table.link < len(self.sections):
            names = self.sections[table.link].offset
        else:
            names = len(self.data)
        return int(address) if section else 0, min(names + name, len(self.data))
