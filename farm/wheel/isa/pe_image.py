"""DLLs as they are in memory."""

import struct
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import itemgetter

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    Functions,
)
from farm.wheel.isa.image import ALL_ONES, ENTRY_NAMES, Image
from farm.wheel.isa.walk_x86 import Walk
from farm.wheel.isa.x86 import Sweep
from farm.wheel.pe import Pe, imported
from farm.wheel.pe import damaged as damaged_dll

# Of DLLs: data directories, and bounds.
_EXPORTS = 0
_FUNCTIONS = 3
_TLS = 9
_FUNCTION = struct.Struct("<III")
_TO_INITTERM = 6  # levels of calls from the entry point to it
_MAX_EXPORTS = 500_000
_MAX_FUNCTIONS = 2_000_000
MAX_INITIALISERS = 100_000
_MAX_CALLBACKS = 1000


class DllImage(Image):
    """A DLL where it would like to be in memory."""

    may_call_what_is_taken = False

    def __init__(self, data: Buffer, pe: Pe) -> None:
        self.pe = pe
        self.base = pe.image_base
        code = []
        for section in pe.sections:
            size = section.end - section.offset
            if section.is_code and size > 0:
                first = self.base + section.address
                code.append((first, first + size, section.offset))
        super().__init__(data, code)
        self.elsewhere: dict[int, str] = {}
        for slot, name in imported(data, pe):
            self.elsewhere[self.base + slot] = name

    def address_of(self, offset: int) -> int:
        """The address of a file offset in a code section."""
        for first, end, start in self.code:
            if 0 <= offset - start < end - first:
                return first + offset - start
        raise damaged_dll("its code lies in no section")

    def starts(self, level: str) -> list[int]:
        """Addresses that run on loading, each once."""
        entries = list(self._callbacks())
        if self.pe.entry:
            entries.append(self.base + self.pe.entry)
        loaded: list[int] = []
        # The CRT calls its tables of initialisers through _initterm(first, last): what is sought
        # are the two addresses.
        Walk(self, Sweep(level), loaded).descend(entries, _TO_INITTERM)
        addresses = list(entries)
        for section in self.pe.sections:
            # MinGW keeps this section, all of it pointers; Microsoft's linker merges it into
            # `.rdata`.
            if section.name == ".CRT":
                first = self.base + section.address
                addresses += self._pointers(first, first + section.size)
        # The two ends of a table are loaded one right after the other, in either order.
        for low, high in map(sorted, pairwise(loaded)):
            is_aligned = low % 8 == 0 and high % 8 == 0
            if is_aligned and 0 < high - low <= 8 * MAX_INITIALISERS:
                addresses += self._pointers(low, high)
        for address in dict.fromkeys(loaded):
            # MinGW's __CTOR_LIST__ begins with -1 and ends with 0.
            if self.word(address) == ALL_ONES:
                addresses += self._list(address + 8)
        return self.of_code(addresses)

    def entries(self) -> list[int]:
        """The exported functions that an interpreter calls on import."""
        return self.named(self._is_entry_name)

    def _is_entry_name(self, name: int) -> bool:
        return self.data[name : name + 8].startswith(ENTRY_NAMES)

    def named(self, fits: Callable[[int], bool]) -> list[int]:
        """The exported functions whose names fit; a name is given by its place in the file."""
        exports = self.exports()
        pairs = zip(exports.addresses, exports.names, strict=True)
        addresses = []
        for address, name in pairs:
            if fits(name):
                addresses.append(address)
        return addresses

    def name(self, slot: int) -> str:
        return self.elsewhere.get(slot, "")

    def word(self, address: int) -> int | None:
        try:
            at, end = self.pe.place(address - self.base)
        except VerificationFailedError:
            return None
        stop = min(at + 8, end)
        return int.from_bytes(self.data[at:stop], "little")

    def pointer(self, slot: int) -> int | None:
        return self.word(slot) or None

    def functions(self) -> Iterator[tuple[int, int]]:
        """(offset, end) of the functions in `.pdata`, each piece of code once; all code where there
        is no table.
        """
        table, size = self.pe.directories[_FUNCTIONS]
        # No table: a DLL without unwinding data. All code counts, data between it included.
        count = size // _FUNCTION.size
        if not table or not count:
            for first, last, start in self.code:
                yield start, start + last - first
            return
        if count > _MAX_FUNCTIONS:
            raise damaged_dll(f"{count} functions; more than {_MAX_FUNCTIONS} are refused")
        at, end = self.pe.place(table)
        if at + size > end:
            raise damaged_dll("its table of functions reaches beyond the section")
        reached = 0
        stop_of_table = at + count * _FUNCTION.size
        rows = _FUNCTION.iter_unpack(self.data[at:stop_of_table])
        for low, high, _ in sorted(rows):
            place = self.offset(self.base + low)
            if place is None or high <= low:
                continue
            # Entries may overlap; each byte is decoded once.
            start = max(place[0], reached)
            stop = min(place[0] + high - low, place[1])
            if start < stop:
                yield start, stop
                reached = stop

    def exports(self) -> Functions:
        """The exported functions, by address."""
        table, _ = self.pe.directories[_EXPORTS]
        if not table:
            return Functions((), ())
        # Behind the flags, time, versions, name and base of the export directory: two counts and
        # three tables.
        functions, count, addresses, names, ordinals = self._numbers(table + 20, "I", 5)
        if count > _MAX_EXPORTS or functions > _MAX_EXPORTS:
            raise damaged_dll(f"more than {_MAX_EXPORTS} exports")
        if not count or not functions:
            return Functions((), ())
        where = self._numbers(addresses, "I", functions)
        name_places = self._numbers(names, "I", count)
        name_ordinals = self._numbers(ordinals, "H", count)
        rows = []
        low = high = shift = 0  # of the section that holds the names, most often all of them
        for name, ordinal in zip(name_places, name_ordinals, strict=True):
            if ordinal >= functions:
                continue
            address = self.base + where[ordinal]
            if self.offset(address) is None:
                continue
            if not low <= name < high:
                start, stop = self.pe.place(name)
                low = name
                high = name + stop - start
                shift = start - name
            rows.append((address, name + shift))
        rows.sort()
        return Functions(
            addresses=array("Q", map(itemgetter(0), rows)),
            names=array("Q", map(itemgetter(1), rows)),
        )

    def _numbers(self, address: int, layout: str, count: int) -> tuple[int, ...]:
        packed = struct.Struct(f"<{count}{layout}")
        content = self.pe.bytes_at(self.data, address, packed.size)
        return packed.unpack(content)

    def _callbacks(self) -> list[int]:
        """TLS callbacks: pointers up to a zero."""
        table, _ = self.pe.directories[_TLS]
        if not table:
            return []
        # AddressOfCallBacks is the fourth word of IMAGE_TLS_DIRECTORY64, an absolute address.
        (callbacks,) = self._numbers(table + 24, "Q", 1)
        if not callbacks:
            return []
        return self._list(callbacks)[:_MAX_CALLBACKS]

    def _list(self, address: int) -> list[int]:
        """Pointers to code from an address to the first word that is none."""
        pointers: list[int] = []
        while len(pointers) < MAX_INITIALISERS:
            word = self.word(address)
            if not word or self.offset(word) is None:
                break
            pointers.append(word)
            address += 8
        return pointers

    def _pointers(self, low: int, high: int) -> list[int]:
        """The pointers between two addresses; none if anything else than pointers to code and zeros
        is there.
        """
        try:
            at, end = self.pe.place(low - self.base)
        except VerificationFailedError:
            return []
        size = min(high - low, 8 * MAX_INITIALISERS, end - at)
        stop = at + size - size % 8
        pointers = []
        for (word,) in struct.iter_unpack("<Q", self.data[at:stop]):
            if not word:
                continue
            if self.offset(word) is None:
                return []
            pointers.append(word)
        return pointers
