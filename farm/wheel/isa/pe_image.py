"""DLLs as they are in memory."""

import struct
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise

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
        code = [
            (
                self.base + part.address,
                self.base + part.address + part.end - part.offset,
                part.offset,
            )
            for part in pe.sections
            if part.is_code and part.end > part.offset
        ]
        super().__init__(data, code)
        self.elsewhere: dict[int, str] = {
            self.base + slot: name for slot, name in imported(data, pe)
        }

    def address_of(self, offset: int) -> int:
        """The address of a file offset in a code section."""
        return next(
            first + offset - start
            for first, end, start in self.code
            if 0 <= offset - start < end - first
        )

    def starts(self, level: str) -> list[int]:
        """Addresses that run on loading, each once."""
        entries = list(self._callbacks())
        if self.pe.entry:
            entries.append(self.base + self.pe.entry)
        loaded: list[int] = []
        # The CRT calls its tables of initialisers through _initterm(first, last): what is sought
        # are the two addresses.
        Walk(self, Sweep(level), loaded).descend(entries, _TO_INITTERM)
        addresses = dict.fromkeys(entries)
        for part in self.pe.sections:
            # MinGW keeps this section, all of it pointers; Microsoft's linker merges it into
            # `.rdata`.
            if part.name == ".CRT":
                addresses |= dict.fromkeys(
                    self._pointers(self.base + part.address, self.base + part.address + part.size)
                )
        # The two ends of a table are loaded one right after the other, in either order.
        for first, right in pairwise(loaded):
            low, high = sorted((first, right))
            if not low % 8 and not high % 8 and 0 < high - low <= 8 * MAX_INITIALISERS:
                addresses |= dict.fromkeys(self._pointers(low, high))
        for address in dict.fromkeys(loaded):
            # MinGW's __CTOR_LIST__ begins with -1 and ends with 0.
            if self.word(address) == ALL_ONES:
                addresses |= dict.fromkeys(self._list(address + 8))
        return [address for address in addresses if self.offset(address) is not None]

    def entries(self) -> list[int]:
        """The exported functions that an interpreter calls on import."""
        return self.named(lambda name: bytes(self.data[name : name + 8]).startswith(ENTRY_NAMES))

    def named(self, fits: Callable[[int], bool]) -> list[int]:
        """The exported functions whose names fit; a name is given by its place in the file."""
        exports = self.exports()
        return [
            address
            for address, name in zip(exports.addresses, exports.names, strict=True)
            if fits(name)
        ]

    def name(self, slot: int) -> str:
        return self.elsewhere.get(slot, "")

    def word(self, address: int) -> int | None:
        try:
            at, end = self.pe.place(address - self.base)
        except VerificationFailedError:
            return None
        return int.from_bytes(self.data[at : min(at + 8, end)], "little")

    def pointer(self, slot: int) -> int | None:
        return self.word(slot) or None

    def functions(self) -> Iterator[tuple[int, int]]:
        """(offset, end) of the functions in `.pdata`, each piece of code once; all code where there
        is no table.
        """
        table, size = self.pe.directories[_FUNCTIONS]
        # No table: a DLL without unwinding data. All code counts, data between it included.
        if not table or size < _FUNCTION.size:
            yield from ((start, start + last - first) for first, last, start in self.code)
            return
        if size // _FUNCTION.size > _MAX_FUNCTIONS:
            raise damaged_dll(
                f"{size // _FUNCTION.size} functions; more than {_MAX_FUNCTIONS} are refused"
            )
        at, end = self.pe.place(table)
        if at + size > end:
            raise damaged_dll("its table of functions reaches beyond the section")
        reached = 0
        for low, high, _ in sorted(
            _FUNCTION.iter_unpack(self.data[at : at + size - size % _FUNCTION.size])
        ):
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
        rows = []
        low = high = shift = 0  # of the section that holds the names, most often all of them
        for name, ordinal in zip(
            self._numbers(names, "I", count), self._numbers(ordinals, "H", count), strict=True
        ):
            if ordinal < functions and self.offset(self.base + where[ordinal]) is not None:
                if not low <= name < high:
                    start, stop = self.pe.place(name)
                    low = name
                    high = name + stop - start
                    shift = start - name
                rows.append((self.base + where[ordinal], name + shift))
        rows.sort()
        return Functions(
            array("Q", (address for address, _ in rows)), array("Q", (name for _, name in rows))
        )

    def _numbers(self, address: int, layout: str, count: int) -> tuple[int, ...]:
        packed = struct.Struct(f"<{count}{layout}")
        return packed.unpack(self.pe.bytes_at(self.data, address, packed.size))

    def _callbacks(self) -> list[int]:
        """TLS callbacks: pointers up to a zero."""
        table, _ = self.pe.directories[_TLS]
        if not table:
            return []
        # AddressOfCallBacks is the fourth word of IMAGE_TLS_DIRECTORY64, an absolute address.
        (callbacks,) = self._numbers(table + 24, "Q", 1)
        return self._list(callbacks)[:_MAX_CALLBACKS] if callbacks else []

    def _list(self, address: int) -> list[int]:
        """Pointers to code from an address to the first word that is none."""
        pointers: list[int] = []
        while (
            len(pointers) < MAX_INITIALISERS
            and (word := self.word(address))
            and self.offset(word) is not None
        ):
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
        words = [
            word
            for (word,) in struct.iter_unpack("<Q", self.data[at : at + size - size % 8])
            if word
        ]
        if all(self.offset(word) is not None for word in words):
            return words
        return []
