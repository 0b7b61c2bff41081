"""ELF files as they are in memory."""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Elf,
    Section,
    Segment,
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


class _Kinds(NamedTuple):
    """The kinds of relocations that matter, as numbers of a machine's psABI."""

    absolute: int  # a pointer to a symbol, such as R_X86_64_64
    glob_dat: int  # a slot for the address of a symbol
    jump_slot: int  # the same, for calls
    relative: int  # a pointer into this library
    indirect: int  # the resolver of a function


_KINDS = {
    "x86_64": _Kinds(
        absolute=1,
        glob_dat=6,
        jump_slot=7,
        relative=8,
        indirect=37,
    ),
    "aarch64": _Kinds(
        absolute=257,
        glob_dat=1025,
        jump_slot=1026,
        relative=1027,
        indirect=1032,
    ),
}
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
        code = []
        code_sections = filter(_is_code, elf.sections)
        for section, start, end in section_ranges(data, code_sections):
            last = section.address + end - start
            code.append((section.address, last, start))
        super().__init__(data, code)
        self.kinds = _KINDS[elf.machine]
        self.sections = elf.sections
        self.segments = elf.segments
        self.dynamic = elf.dynamic
        self.arrays = self._of_kind(_SHT_INIT_ARRAY, _SHT_FINI_ARRAY)
        section_ranges(data, self.arrays)
        # Slot of such an array -> what the loader writes there.
        self.pointers: dict[int, int] = {}
        # The names of other libraries' functions are given by their place in the file.
        self.elsewhere: dict[int, int] = {}
        self.resolvers: set[int] = set()
        # Functions that the interpreter calls: PyInit_NAME.
        self.entries: list[int] = []
        # Addresses, in order, where the loader writes a pointer into this library; the pointers.
        self.relocated = array("Q")
        self.values = array("Q")
        # Those of packed relocations are in the file as they are.
        self.packed = bool(self._of_kind(_SHT_RELR))

        relocations = self._of_kind(_SHT_RELA)
        for section, start, end in section_ranges(data, relocations):
            self._relocations(section, start, end)
        symbols = self._of_kind(_SHT_DYNSYM)
        for section, start, end in section_ranges(data, symbols):
            self._exports(section, start, end)
        self._sort_relocated()

    def _of_kind(self, *kinds: int) -> list[Section]:
        """The sections of some types."""
        return [section for section in self.sections if section.kind in kinds]

    def _sort_relocated(self) -> None:
        """Order the relocated pointers by address, for `pointer`, which searches by bisection.

        Linkers order relocations by kind and symbol, not by address alone.
        """
        if all(earlier <= later for earlier, later in pairwise(self.relocated)):
            return
        rows = sorted(zip(self.relocated, self.values, strict=True))
        self.relocated = array("Q", map(itemgetter(0), rows))
        self.values = array("Q", map(itemgetter(1), rows))

    def starts(self) -> list[int]:
        """Addresses that the loader calls when it loads the library, and at exit, each once."""
        addresses = []
        for tag, value in self.dynamic:
            if tag in (_DT_INIT, _DT_FINI):
                addresses.append(value)
        addresses += sorted(self.resolvers)
        for section in self.arrays:
            addresses += self._functions_of_array(section)
        return self.of_code(addresses)

    def _functions_of_array(self, section: Section) -> Iterator[int]:
        """The addresses in an array of initialisers or finalisers."""
        count = section.size // 8
        if count > MAX_STARTS:
            raise damaged(
                f"{count} initialisers and finalisers; more than {MAX_STARTS} are refused"
            )
        for distance in range(0, 8 * count, 8):
            slot = section.address + distance
            # Without a relocation (or with one of the packed kind, DT_RELR) the address is in the
            # file.
            if slot in self.pointers:
                yield self.pointers[slot]
            else:
                yield self._stored_at(section.offset + distance)

    def _stored_at(self, offset: int) -> int:
        """The eight bytes at an offset of the file, as a number."""
        return int.from_bytes(self.data[offset : offset + 8], "little")

    def pointer(self, slot: int) -> int | None:
        index = bisect_left(self.relocated, slot)
        count = len(self.relocated)
        if index < count and self.relocated[index] == slot:
            return self.values[index]
        # DT_RELR lists places alone; the pointer itself is in the file there.
        if not self.packed or slot % 8:
            return None
        for segment in self.segments:
            if not segment.is_code and _has_word(segment, slot):
                offset = segment.offset + slot - segment.address
                return self._stored_at(offset) or None
        return None

    def _relocations(self, section: Section, start: int, end: int) -> None:
        """Note what the loader writes for a section of relocations."""
        count = (end - start) // _RELOCATION.size
        if count > _MAX_RELOCATIONS:
            raise damaged(f"{count} relocations; more than {_MAX_RELOCATIONS} are refused")
        arrays = []
        for part in self.arrays:
            arrays.append((part.address, part.address + part.size))
        symbols = self._symbols(section)
        absolute = self.kinds.absolute
        relative = self.kinds.relative
        stop = start + count * _RELOCATION.size
        view = memoryview(self.data)[start:stop]
        try:
            # Large libraries have a million of them, most of them relative.
            for slot, info, addend in _RELOCATION.iter_unpack(view):
                kind = info & 0xFFFFFFFF
                base = 0
                if kind == absolute:
                    if symbols is not None:
                        base, _ = self._defined(symbols, info >> 32)
                    if not base:
                        continue
                elif kind != relative:
                    self._note_function(kind, slot, info >> 32, addend, symbols)
                    continue
                self.relocated.append(slot)
                self.values.append(base + addend & ALL_ONES)
                for low, high in arrays:
                    if low <= slot < high:
                        self.pointers[slot] = base + addend
        finally:
            view.release()

    def _note_function(
        self,
        kind: int,
        slot: int,
        symbol: int,
        addend: int,
        symbols: Section | None,
    ) -> None:
        """Note the resolver of a function, or the slot for the address of one."""
        of_slots = (self.kinds.glob_dat, self.kinds.jump_slot)
        if kind == self.kinds.indirect:
            # The addend is the address of a resolver, which the loader calls to learn the
            # function's address.
            self.resolvers.add(addend)
        elif kind in of_slots and symbols is not None:
            target, name = self._defined(symbols, symbol)
            if target:
                self.slots[slot] = target
            else:
                self.elsewhere[slot] = name
        slots = len(self.slots) + len(self.elsewhere)
        if slots > _MAX_SLOTS or len(self.resolvers) > MAX_STARTS:
            raise damaged(f"more than {_MAX_SLOTS} slots or {MAX_STARTS} resolvers")

    def _exports(self, section: Section, start: int, end: int) -> None:
        """Note the exported resolvers and the entry points of an extension module."""
        count = (end - start) // _SYMBOL.size
        if count > _MAX_SYMBOLS:
            raise damaged(f"more than {_MAX_SYMBOLS} exported symbols are refused")
        names = self._names_of(section)
        stop = start + count * _SYMBOL.size
        view = memoryview(self.data)[start:stop]
        try:
            for name, info, _, place, address, _ in _SYMBOL.iter_unpack(view):
                if not place:
                    continue
                at = names + name
                if info & 15 == _STT_GNU_IFUNC:
                    self.resolvers.add(address)
                elif self.data[at : at + 8].startswith(ENTRY_NAMES):
                    self.entries.append(address)
                if len(self.resolvers) > MAX_STARTS or len(self.entries) > MAX_STARTS:
                    raise damaged(f"more than {MAX_STARTS} resolvers or entry points")
        finally:
            view.release()

    def name(self, slot: int) -> str:
        nowhere = len(self.data)
        name_at = self.elsewhere.get(slot, nowhere)
        return symbol_name(self.data, name_at)

    def word(self, address: int) -> int | None:
        for segment in self.segments:
            if _has_word(segment, address):
                return self._stored_at(segment.offset + address - segment.address)
        return None

    def _symbols(self, section: Section) -> Section | None:
        """The table of symbols that a section of relocations goes by."""
        if section.link >= len(self.sections):
            return None
        table = self.sections[section.link]
        return table if table.kind == _SHT_DYNSYM else None

    def _names_of(self, table: Section) -> int:
        """Where in the file the names of a table of symbols begin."""
        if table.link < len(self.sections):
            return self.sections[table.link].offset
        return len(self.data)

    def _defined(self, table: Section, index: int) -> tuple[int, int]:
        """The address of a symbol, 0 for one that another library defines, and where its name
        is.
        """
        distance = index * _SYMBOL.size
        at = table.offset + distance
        is_in_table = distance + _SYMBOL.size <= table.size
        if not is_in_table or at + _SYMBOL.size > len(self.data):
            raise damaged("a relocation names a symbol beyond the table")
        name, _, _, section, address, _ = _SYMBOL.unpack_from(self.data, at)
        name_at = self._names_of(table) + name
        if not section:
            address = 0
        return int(address), min(name_at, len(self.data))


def _is_code(section: Section) -> bool:
    return section.is_code


def _has_word(segment: Segment, address: int) -> bool:
    """True if a segment holds the eight bytes at an address."""
    return segment.address <= address <= segment.address + segment.size - 8
