"""Changes of one ELF library or DLL, of the fields that loaders look at. All are 64-bit and little-endian."""

import re
import struct

from farm.wheel.elf import read_elf
from farm.wheel.symbols import read_symbols

_PROGRAM = 56  # bytes of a program header
LOAD, DYNAMIC = 1, 2
_STRINGS, _STRINGS_SIZE = 5, 10


def put(data: bytes, at: int, layout: str, *values: int) -> bytes:
    """The same with these fields at an offset."""
    changed = bytearray(data)
    struct.pack_into("<" + layout, changed, at, *values)
    return bytes(changed)


def _headers(data: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """(offset, (type, flags, offset, address, physical, in file, in memory, alignment)) of each program header."""
    (start,) = struct.unpack_from("<Q", data, 32)
    (count,) = struct.unpack_from("<H", data, 56)
    places = [start + _PROGRAM * index for index in range(count)]
    return [(at, struct.unpack_from("<IIQQQQQQ", data, at)) for at in places]


def header_of(data: bytes, kind: int) -> tuple[int, tuple[int, ...]]:
    """The first program header of this type."""
    return next(each for each in _headers(data) if each[1][0] == kind)


def with_kind(data: bytes, kind: int, new: int) -> bytes:
    """Another type for all program headers of this one."""
    for at, fields in _headers(data):
        data = put(data, at, "I", new) if fields[0] == kind else data
    return data


def _place(data: bytes, address: int) -> int:
    """Where in the file an address lies."""
    for _, (kind, _, offset, start, _, size, *_) in _headers(data):
        if kind == LOAD and start <= address < start + size:
            return offset + address - start
    raise LookupError(hex(address))


def _tags(data: bytes) -> dict[int, tuple[int, int]]:
    """(offset, value) of each row of the dynamic section by its tag."""
    _, (_, _, offset, _, _, size, *_) = header_of(data, DYNAMIC)
    rows = {}
    for at in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        rows.setdefault(tag, (at, value))
    return rows


def with_tag(data: bytes, tag: int, value: int) -> bytes:
    return put(data, _tags(data)[tag][0] + 8, "Q", value)


def with_rows(data: bytes, *rows: tuple[int, int]) -> bytes:
    """With more rows (tag, value) in the dynamic section, where linkers leave some free."""
    at = _tags(data)[0][0]
    assert not any(data[at : at + 16 * (len(rows) + 1)])
    for index, row in enumerate(rows):
        data = put(data, at + 16 * index, "QQ", *row)
    return data


def place_of(data: bytes, tag: int) -> int:
    """Where in the file the table of a tag lies."""
    return _place(data, _tags(data)[tag][1])


def _names(data: bytes) -> tuple[int, bytes]:
    """The place of the table of names, and the table."""
    tags = _tags(data)
    start = _place(data, tags[_STRINGS][1])
    return start, data[start : start + tags[_STRINGS_SIZE][1]]


def renamed(data: bytes, name: bytes, new: bytes) -> bytes:
    """Another name, of the same length or shorter, for a library, a version or a symbol."""
    start, table = _names(data)
    at = start + table.index(b"\0" + name + b"\0") + 1
    return data[:at] + new.ljust(len(name), b"\0") + data[at + len(name) :]


def python_name(data: bytes) -> bytes:
    """A function that the library takes from Python."""
    found = re.search(rb"\0(Py[A-Z]\w+)\0", _names(data)[1])
    assert found
    return found[1]


def libc_name(data: bytes) -> bytes:
    """A function that the library takes from libc."""
    undefined = read_symbols(data, read_elf(data)).undefined
    return next(name.encode() for name, (file, _) in sorted(undefined.items()) if file == "libc.so.6")


def pe_at(data: bytes) -> int:
    """Where the file header of a DLL begins, behind its signature."""
    return int(struct.unpack_from("<I", data, 0x3C)[0]) + 4


def pe_sections(data: bytes) -> list[int]:
    """Where the section headers lie."""
    start = pe_at(data)
    count, optional = struct.unpack_from("<H", data, start + 2)[0], struct.unpack_from("<H", data, start + 16)[0]
    return [start + 20 + optional + 40 * index for index in range(count)]
