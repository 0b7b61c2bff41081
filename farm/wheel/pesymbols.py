"""Which functions a DLL takes from which other, and which it gives (PE).

Where a name that is taken is not given, Windows reports error 127, "The specified procedure could not be found".
Source: Microsoft, "PE Format", sections "The .edata Section" and "The .idata Section".
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.pe import Pe

_EXPORTS, _IMPORTS, _DELAYED = 0, 1, 13
_MAX_FUNCTIONS = 500_000
_MAX_NAME = 4096  # of a C++ function, decorated


@dataclass(frozen=True)
class DllSymbols:
    """The functions of a DLL.

    Attributes:
        imports: DLL (in lower case) to the names and ordinals (`#12`) taken from it, on loading or on the first call.
        exports: The names and ordinals that it gives.
        forwards: Exported name to `DLL.name`, for those that are in another DLL.
    """

    imports: dict[str, frozenset[str]] = field(default_factory=dict)
    exports: frozenset[str] = frozenset()
    forwards: dict[str, str] = field(default_factory=dict)


def read_dll_symbols(data: Buffer, pe: Pe) -> DllSymbols:
    """Read what a DLL imports and exports.

    Raises:
        VerificationFailedError: A table is damaged.
    """
    imports: dict[str, set[str]] = {}
    for name, thunks in chain(_descriptors(data, pe), _delayed(data, pe)):
        imports.setdefault(name.lower(), set()).update(_thunks(data, pe, thunks))
    exports, forwards = _exports(data, pe)
    return DllSymbols({name: frozenset(taken) for name, taken in imports.items()}, exports, forwards)


def _descriptors(data: Buffer, pe: Pe) -> Iterator[tuple[str, int]]:
    table = pe.directories[_IMPORTS][0]
    for index in range(4096 if table else 0):
        lookup, _, _, name, address = struct.unpack("<IIIII", pe.bytes_at(data, table + 20 * index, 20))
        if not name or not address:
            return
        # Old linkers leave the lookup table out; the address table holds the same until it is bound.
        yield _text(data, pe, name), lookup or address


def _delayed(data: Buffer, pe: Pe) -> Iterator[tuple[str, int]]:
    """Delay loads, without records whose lowest bit is not set: old linkers wrote absolute addresses into those."""
    table = pe.directories[_DELAYED][0]
    for index in range(4096 if table else 0):
        kind, name, _, address, lookup = struct.unpack("<IIIII", pe.bytes_at(data, table + 32 * index, 20))
        if not name or not address:
            return
        if kind & 1:
            yield _text(data, pe, name), lookup


def _thunks(data: Buffer, pe: Pe, table: int) -> Iterator[str]:
    width = 8 if pe.wide else 4
    # The highest bit of a thunk: the function is taken by its ordinal, in the low 16 bits.
    top = 1 << (8 * width - 1)
    start, end = pe.place(table)
    names: list[int] = []
    for index in range(_MAX_FUNCTIONS):
        at = start + index * width
        if at + width > end:
            raise _damaged("a table of imports has no end")
        value = int.from_bytes(data[at : at + width], "little")
        if not value:
            yield from _texts(data, pe, names)
            return
        if value & top and not value & (top - 0x10000):
            yield f"#{value & 0xFFFF}"
        elif value < 1 << 31:
            # Past the hint, two bytes before the name.
            names.append(value + 2)
        else:
            raise _damaged("a table of imports sets bits that must be zero")
    raise _damaged(f"more than {_MAX_FUNCTIONS} imports")


def _exports(data: Buffer, pe: Pe) -> tuple[frozenset[str], dict[str, str]]:
    table, size = pe.directories[_EXPORTS]
    if not table:
        return frozenset(), {}
    base, functions, names, addresses, name_table, ordinals = struct.unpack(
        "<IIIIII", pe.bytes_at(data, table + 16, 24)
    )
    if max(functions, names) > _MAX_FUNCTIONS:
        raise _damaged(f"more than {_MAX_FUNCTIONS} exports")
    places = struct.unpack(f"<{functions}I", pe.bytes_at(data, addresses, 4 * functions)) if functions else ()
    starts = struct.unpack(f"<{names}I", pe.bytes_at(data, name_table, 4 * names)) if names else ()
    indices = struct.unpack(f"<{names}H", pe.bytes_at(data, ordinals, 2 * names)) if names and ordinals else ()
    found = {f"#{base + index}" for index, place in enumerate(places) if place}
    if any(index >= functions for index in indices):
        raise _damaged("an exported name belongs to no function")
    forwards = {}
    # GetProcAddress halves the table until it has the name.
    texts = list(_texts(data, pe, starts))
    if texts != sorted(texts):
        raise _damaged("its exported names are not in order, so they are not found")
    for index, name in enumerate(texts):
        found.add(name)
        place = places[indices[index]] if index < len(indices) else 0
        # An address inside the export directory is no function but the text `DLL.name` (Microsoft, "Export Address
        # Table").
        if table <= place < table + size:
            forwards[name] = _text(data, pe, place)
    return frozenset(found), forwards


def _texts(data: Buffer, pe: Pe, addresses: Sequence[int]) -> Iterator[str]:
    """The names at many addresses: most are in one section, which is looked up once."""
    low = high = shift = end = 0
    for address in addresses:
        if not low <= address < high:
            start, end = pe.place(address)
            low, high, shift = address, address + end - start, start - address
        at = address + shift
        stop = data.find(b"\0", at, min(end, at + _MAX_NAME))
        if stop < 0:
            raise _damaged("a name without end")
        yield data[at:stop].decode("utf-8", "backslashreplace")


def _text(data: Buffer, pe: Pe, address: int) -> str:
    return next(_texts(data, pe, [address]))


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged PE file: {what}")
