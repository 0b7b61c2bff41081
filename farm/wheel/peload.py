"""Would Windows' loader map this DLL, move it and enter it? What it checks or follows before it looks for functions.

A DLL that breaks one of these rules is refused (errors 193, 487, 998) or ends the process. Sources: Microsoft, "PE
Format", sections "Optional Header", "The .reloc Section", "The .tls Section" and "The Load Configuration Structure";
Wine, dlls/ntdll/loader.c and unix/virtual.c, which was asked about each of them (tests/e2e/wine).
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.pe import Pe

_IMPORTS, _RESOURCES, _RELOCATIONS, _TLS, _LOAD_CONFIG = 1, 2, 5, 9, 10
_STRIPPED = 1  # IMAGE_FILE_RELOCS_STRIPPED
_WRITE = 0x80000000  # IMAGE_SCN_MEM_WRITE
_PAGE, _GRANULARITY = 4096, 0x10000
_COOKIE = 88  # SecurityCookie in IMAGE_LOAD_CONFIG_DIRECTORY64
_ABSOLUTE, _DIR64 = 0, 10  # IMAGE_REL_BASED_*: all that 64-bit DLLs have
_KIND = bytes(byte >> 4 for byte in range(256))  # of a relocation, from the upper byte of its entry
_MAX_CALLBACKS = 1000
_MAX_IMPORTS = 4096
_MOVED = "it cannot be moved (no relocations), and its address may be taken"


class _Headers(NamedTuple):
    """What only the loader needs: flags of the file, alignment and length in memory, and the sections' flags."""

    flags: int
    alignment: int
    size: int
    sections: tuple[int, ...]


def refusal(data: Buffer, pe: Pe) -> str | None:
    """Why Windows' loader refuses a DLL, or dies of it; None: it goes on to look for functions. 64-bit DLLs only."""
    if not pe.is_dll:
        return "it is a program, not a library"
    if not pe.wide:
        return None
    headers = _headers(data, pe)
    checks: tuple[Callable[[Buffer, Pe, _Headers], str | None], ...] = (
        _layout, _entry, _relocations, _tls, _cookie, _resources, _addresses
    )  # fmt: skip
    try:
        return next((said for check in checks if (said := check(data, pe, headers))), None)
    except VerificationFailedError as error:
        return str(error)


def _headers(data: Buffer, pe: Pe) -> _Headers:
    (start,) = struct.unpack("<I", data[0x3C:0x40])
    size, flags = struct.unpack("<HH", data[start + 20 : start + 24])
    alignment, length = struct.unpack("<I20xI", data[start + 56 : start + 84])
    table = start + 24 + size
    places = [table + 40 * index + 36 for index in range(len(pe.sections))]
    return _Headers(flags, alignment, length, tuple(struct.unpack("<I", data[at : at + 4])[0] for at in places))


def _layout(_: Buffer, pe: Pe, headers: _Headers) -> str | None:
    if pe.image_base % _GRANULARITY:
        return f"its address 0x{pe.image_base:x} is not a multiple of 64 KiB"
    if headers.alignment < _PAGE:
        return None
    if headers.alignment & (headers.alignment - 1):
        return f"its sections are aligned to {headers.alignment} bytes, not to pages"
    end = None
    for section in pe.sections:
        if section.address % headers.alignment or section.address != (section.address if end is None else end):
            return f"its section {section.name} is not where the one before it ends"
        end = section.address + (section.size or section.raw_size)
        end += -end % headers.alignment
    if end is not None and end > headers.size + -headers.size % headers.alignment:
        return "its sections reach beyond the length that its header declares"
    return None


def _entry(_: Buffer, pe: Pe, __: _Headers) -> str | None:
    if pe.entry and not _is_code(pe, pe.entry):
        return "it is entered outside its code"
    return None


def _is_code(pe: Pe, address: int) -> bool:
    return any(part.is_code and part.address <= address < part.address + part.end - part.offset for part in pe.sections)


def _relocations(data: Buffer, pe: Pe, headers: _Headers) -> str | None:
    address, size = pe.directories[_RELOCATIONS]
    if not address or not size:
        # The places of thread-local variables and of the security cookie are addresses, which must be moved.
        needs = pe.directories[_TLS][0] or _cookie_address(data, pe)
        moved = headers.flags & _STRIPPED and any(part.is_code for part in pe.sections)
        return _MOVED if needs or moved else None
    start, end = pe.place(address)
    if start + size > end:
        return "its table of relocations reaches beyond its section"
    raw = data[start : start + size]
    first, last = pe.sections[0].address, headers.size
    at = 0
    while at + 8 <= size:
        page, length = struct.unpack_from("<II", raw, at)
        if not page and not length:
            break  # padding
        if length < 8 or length % 2 or at + length > size:
            return "its table of relocations is damaged"
        if page % _PAGE or not first <= page < last:
            return "a relocation changes what lies outside its sections"
        # By slices: a large library has millions.
        if set(raw[at + 9 : at + length : 2].translate(_KIND)) - {_ABSOLUTE, _DIR64}:
            return "a relocation of a kind that the loader does not know"
        at += length
    return None


def _tls(data: Buffer, pe: Pe, headers: _Headers) -> str | None:
    address = pe.directories[_TLS][0]
    if not address:
        return None
    first, last, index, callbacks = struct.unpack("<4Q", pe.bytes_at(data, address, 32))
    if first > last or (last > first and not pe.image_base <= first <= last <= pe.image_base + headers.size):
        return "its thread-local variables lie outside it"
    if not _is_written(pe, headers, index - pe.image_base):
        return "the number of its thread-local variables lies outside its data"
    if callbacks and not all(_is_code(pe, each - pe.image_base) for each in _callbacks(data, pe, callbacks)):
        return "a function that runs on loading lies outside its code"
    return None


def _callbacks(data: Buffer, pe: Pe, start: int) -> Iterator[int]:
    for number in range(_MAX_CALLBACKS):
        (address,) = struct.unpack("<Q", pe.bytes_at(data, start - pe.image_base + 8 * number, 8))
        if not address:
            return
        yield address


def _is_written(pe: Pe, headers: _Headers, address: int) -> bool:
    return any(
        flags & _WRITE and part.address <= address < part.address + (part.size or part.raw_size)
        for part, flags in zip(pe.sections, headers.sections, strict=True)
    )


def _cookie_address(data: Buffer, pe: Pe) -> int:
    """Where the number lies that guards the stack, as an address; 0: there is none."""
    address = pe.directories[_LOAD_CONFIG][0]
    if not address:
        return 0
    (size,) = struct.unpack("<I", pe.bytes_at(data, address, 4))
    return struct.unpack("<Q", pe.bytes_at(data, address + _COOKIE, 8))[0] if size >= _COOKIE + 8 else 0


def _cookie(data: Buffer, pe: Pe, headers: _Headers) -> str | None:
    address = _cookie_address(data, pe)
    if address and not _is_written(pe, headers, address - pe.image_base):
        return "its security cookie lies outside its data"
    return None


def _resources(data: Buffer, pe: Pe, _: _Headers) -> str | None:
    """The loader looks there for a manifest."""
    address = pe.directories[_RESOURCES][0]
    if not address:
        return None
    zero, _, _, _, named, numbered = struct.unpack("<IIHHHH", pe.bytes_at(data, address, 16))
    pe.bytes_at(data, address, 16 + 8 * (named + numbered))
    return "its table of resources is damaged" if zero else None


def _addresses(data: Buffer, pe: Pe, _: _Headers) -> str | None:
    """Each import needs a place that the loader can write functions' addresses to."""
    table = pe.directories[_IMPORTS][0]
    for index in range(_MAX_IMPORTS if table else 0):
        lookup, _, _, name, addresses = struct.unpack("<5I", pe.bytes_at(data, table + 20 * index, 20))
        if not name or not addresses:
            break
        if _length(data, pe, lookup) > _length(data, pe, addresses):
            return "the addresses of functions that it takes lie outside its tables"
    return None


def _length(data: Buffer, pe: Pe, table: int) -> int:
    """How many functions stand in a table of imports."""
    if not table:
        return 0
    start, end = pe.place(table)
    at = start
    while at + 8 <= end and any(data[at : at + 8]):
        at += 8
    return (at - start) // 8
