"""CPU features that the machine code of a DLL needs: all of it, or what runs when the DLL is imported.

Windows enters a DLL at the TLS callbacks and at its entry point; Python enters an extension module at `PyInit_NAME` and
at the slots of its module definition, as in `farm.wheel.initscan`. For Microsoft's linker the entry point is start-up
code which calls `_initterm` with the two ends of a table of pointers: the static initialisers, which compilers put into
the sections `.CRT$XI*` and `.CRT$XC*`. The table has no name in the file. It is found by following the code from the
entry point: two addresses loaded one after the other, between which stand nothing but zeros and pointers to code.
MinGW's table begins with -1 and ends with 0; its section `.CRT` holds further pointers.

All of the code is what the function table (`.pdata`) names. Functions that use no stack are not in it: of those, only
what runs on loading is seen. Data between functions are not taken for code. Otherwise as `farm.wheel.initscan` and
`farm.wheel.isa`, whose limits hold here too.

Sources: Microsoft, "PE Format" (export, exception and TLS directories) and "CRT initialization".
"""

import struct
from array import array
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Functions, symbol_name
from farm.wheel.initscan import ENTRY_NAMES, InitScan, Walk, module_slots
from farm.wheel.isa import IsaResult, Sweep
from farm.wheel.pe import Pe, imported

_EXPORTS, _FUNCTIONS, _TLS = 0, 3, 9
_FUNCTION = struct.Struct("<III")
_TO_INITTERM = 6  # levels of calls from the entry point to it
_MAX_EXPORTS = 500_000
_MAX_FUNCTIONS = 2_000_000
_MAX_TABLE = 100_000  # initialisers
_MAX_CALLBACKS = 1000
_ALL_ONES = (1 << 64) - 1


def scan_dll(data: Buffer, pe: Pe, level: str, *, on_load: bool, called: Collection[str] = ()) -> InitScan:
    """Find the instructions of a DLL beyond `level`; with `on_load` only in what runs when it is loaded.

    `called`: as for `farm.wheel.initscan.scan_starts`.
    """
    if pe.machine != "amd64":
        return InitScan(IsaResult(not_checked=f"machine code for {pe.machine} is not decoded"))
    image = _Image(data, pe)
    sweep = Sweep(level)
    starts = image.starts(level)
    walk = Walk(data, image, sweep)
    entries = image.entries()
    slots = module_slots(walk.addresses_in(entries), image)
    if not on_load:
        for low, high in image.functions():
            sweep.piece(data, low, high, image.address_of(low))
    if on_load or not sweep.counts:
        walk.descend(starts)
        walk.enter(entries, slots)
        walk.below |= dict.fromkeys(image.named(lambda name: symbol_name(data, name) in called) if called else ())
        walk.deepen(sweep)
    return walk.scan(sweep.result(data, image.exports()), {*starts, *entries, *slots})


class _Image:
    """A DLL where it would like to be in memory."""

    slots: dict[int, int] = {}

    def __init__(self, data: Buffer, pe: Pe) -> None:
        self.data, self.pe, self.base = data, pe, pe.image_base
        self.code = [
            (self.base + part.address, self.base + part.address + part.end - part.offset, part.offset)
            for part in pe.sections
            if part.is_code and part.end > part.offset
        ]
        self.elsewhere = {self.base + slot: name for slot, name in imported(data, pe)}

    def offset(self, address: int) -> tuple[int, int] | None:
        """The interface of `farm.wheel.initscan.Image`."""
        for first, behind, start in self.code:
            if first <= address < behind:
                return start + address - first, start + behind - first
        return None

    def address_of(self, offset: int) -> int:
        """The address of a file offset in a code section."""
        return next(first + offset - start for first, end, start in self.code if 0 <= offset - start < end - first)

    def starts(self, level: str) -> list[int]:
        """Addresses that run on loading, each once."""
        entries = [*self._callbacks(), *([self.base + self.pe.entry] if self.pe.entry else [])]
        loaded: list[int] = []
        # The CRT calls its tables of initialisers through _initterm(first, last): what is sought are the two addresses.
        Walk(self.data, self, Sweep(level), loaded).descend(entries, _TO_INITTERM)
        found = dict.fromkeys(entries)
        for part in self.pe.sections:
            # MinGW keeps this section, all of it pointers; Microsoft's linker merges it into `.rdata`.
            if part.name == ".CRT":
                found |= dict.fromkeys(self._pointers(self.base + part.address, self.base + part.address + part.size))
        # The two ends of a table are loaded one right after the other, in either order.
        for left, right in pairwise(loaded):
            low, high = sorted((left, right))
            if not low % 8 and not high % 8 and 0 < high - low <= 8 * _MAX_TABLE:
                found |= dict.fromkeys(self._pointers(low, high))
        for address in dict.fromkeys(loaded):
            # MinGW's __CTOR_LIST__ begins with -1 and ends with 0.
            if self._word(address) == _ALL_ONES:
                found |= dict.fromkeys(self._list(address + 8))
        return [address for address in found if self.offset(address) is not None]

    def entries(self) -> list[int]:
        """The exported functions that an interpreter calls on import."""
        return self.named(lambda name: bytes(self.data[name : name + 8]).startswith(ENTRY_NAMES))

    def named(self, fits: Callable[[int], bool]) -> list[int]:
        """The exported functions whose names fit; a name is given by its place in the file."""
        exports = self.exports()
        return [address for address, name in zip(exports.addresses, exports.names, strict=True) if fits(name)]

    def name(self, slot: int) -> str:
        """The interface of `farm.wheel.initscan.Image`."""
        return self.elsewhere.get(slot, "")

    def word(self, address: int) -> int | None:
        """The eight bytes at an address; None where the file has none."""
        return self._word(address)

    def pointer(self, slot: int) -> int | None:
        """The interface of `farm.wheel.initscan.Image`: as the file has it for where the DLL would like to lie."""
        return self._word(slot) or None

    def functions(self) -> Iterator[tuple[int, int]]:
        """(offset, end) of the functions in `.pdata`, each piece of code once; all code where there is no table."""
        table, size = self.pe.directories[_FUNCTIONS]
        # No table: a DLL without unwinding data. All code counts, data between it included.
        if not table or size < _FUNCTION.size:
            yield from ((start, start + behind - first) for first, behind, start in self.code)
            return
        if size // _FUNCTION.size > _MAX_FUNCTIONS:
            raise _damaged(f"{size // _FUNCTION.size} functions; more than {_MAX_FUNCTIONS} are refused")
        at, end = self.pe.place(table)
        if at + size > end:
            raise _damaged("its table of functions reaches beyond the section")
        reached = 0
        for low, high, _ in sorted(_FUNCTION.iter_unpack(self.data[at : at + size - size % _FUNCTION.size])):
            place = self.offset(self.base + low)
            if place is None or high <= low:
                continue
            # Entries may overlap; each byte is decoded once.
            start, stop = max(place[0], reached), min(place[0] + high - low, place[1])
            if start < stop:
                yield start, stop
                reached = stop

    def exports(self) -> Functions:
        """The exported functions, by address."""
        table, _ = self.pe.directories[_EXPORTS]
        if not table:
            return Functions((), ())
        at, end = self.pe.place(table)
        if at + 40 > end:
            raise _damaged("its export directory is cut off")
        # Behind the flags, time, versions, name and base of the export directory: two counts and three tables.
        functions, count, addresses, names, ordinals = struct.unpack_from("<5I", self.data, at + 20)
        if count > _MAX_EXPORTS or functions > _MAX_EXPORTS:
            raise _damaged(f"more than {_MAX_EXPORTS} exports")
        if not count or not functions:
            return Functions((), ())
        where = self._numbers(addresses, "I", functions)
        found = []
        low = high = shift = 0  # of the section that holds the names, most often all of them
        for name, ordinal in zip(self._numbers(names, "I", count), self._numbers(ordinals, "H", count), strict=True):
            if ordinal < functions and self.offset(self.base + where[ordinal]) is not None:
                if not low <= name < high:
                    start, stop = self.pe.place(name)
                    low, high, shift = name, name + stop - start, start - name
                found.append((self.base + where[ordinal], name + shift))
        found.sort()
        return Functions(array("Q", (address for address, _ in found)), array("Q", (name for _, name in found)))

    def _numbers(self, address: int, layout: str, count: int) -> tuple[int, ...]:
        at, end = self.pe.place(address)
        packed = struct.Struct(f"<{count}{layout}")
        if at + packed.size > end:
            raise _damaged("a table reaches beyond its section")
        return packed.unpack_from(self.data, at)

    def _callbacks(self) -> list[int]:
        """TLS callbacks: pointers up to a zero."""
        table, _ = self.pe.directories[_TLS]
        if not table:
            return []
        at, end = self.pe.place(table)
        if at + 32 > end:
            raise _damaged("its TLS directory is cut off")
        # AddressOfCallBacks is the fourth word of IMAGE_TLS_DIRECTORY64, an absolute address.
        (callbacks,) = struct.unpack_from("<Q", self.data, at + 24)
        return self._list(callbacks)[:_MAX_CALLBACKS] if callbacks else []

    def _list(self, address: int) -> list[int]:
        """Pointers to code from an address to the first word that is none."""
        found: list[int] = []
        while len(found) < _MAX_TABLE and (word := self._word(address)) and self.offset(word) is not None:
            found.append(word)
            address += 8
        return found

    def _pointers(self, low: int, high: int) -> list[int]:
        """The pointers between two addresses; none if anything else than pointers to code and zeros is there."""
        try:
            at, end = self.pe.place(low - self.base)
        except VerificationFailedError:
            return []
        size = min(high - low, 8 * _MAX_TABLE, end - at)
        words = [word for (word,) in struct.iter_unpack("<Q", self.data[at : at + size - size % 8]) if word]
        return words if all(self.offset(word) is not None for word in words) else []

    def _word(self, address: int) -> int:
        """The 8 bytes at an address; 0 where there are none."""
        try:
            at, end = self.pe.place(address - self.base)
        except VerificationFailedError:
            return 0
        return int.from_bytes(self.data[at : min(at + 8, end)], "little")


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged PE file: {what}")
