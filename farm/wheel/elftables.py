"""The tables that the loader follows: are they whole, where they belong, and do they lead anywhere?

A library whose tables lead astray is refused by the loader, or kills the process. What a relocation or a function does
afterwards is not seen. Sources: glibc, elf/get-dynamic-info.h, elf/dl-load.c, elf/dl-version.c, elf/dl-setup_hash.c,
sysdeps/x86_64/dl-machine.h; System V gABI chapter 5. 64-bit little-endian libraries; relocations of x86-64.
"""

import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from farm.wheel.archive import View
from farm.wheel.elf import Elf
from farm.wheel.symbols import symbol_count

_LOAD, _DYNAMIC, _RELRO = 1, 2, 0x6474E552
_R, _W, _X = 4, 2, 1
_PAGE = 4096
# Tags of the dynamic section: glibc's <elf.h>.
_PLTRELSZ, _STRTAB, _SYMTAB, _RELA, _RELASZ, _RELAENT, _SYMENT, _INIT, _FINI = 2, 5, 6, 7, 8, 9, 11, 12, 13
_PLTREL, _JMPREL, _INIT_ARRAY, _FINI_ARRAY, _INIT_ARRAYSZ, _FINI_ARRAYSZ, _RELR = 20, 23, 25, 26, 27, 28, 36
_GNU_HASH, _VERSYM, _RELACOUNT, _VERDEF, _VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9, 0x6FFFFFFC, 0x6FFFFFFE
_TEXTREL, _FLAGS, _DF_TEXTREL = 22, 30, 4
_RELOCATION, _SYMBOL = 24, 24  # bytes of one
_HASHES = {4, _GNU_HASH}
_PACKED = {_RELR, 0x6000000F, 0x60000011, 0x6FFFE000}  # the last three: DT_ANDROID_REL, RELA, RELR
_RELATIVE = 8
_KNOWN = frozenset((0, 1, 2, 5, 6, 7, 8, 10, 16, 17, 18, 32, 33, 36, 37, 38))
_KNOWN_OF_CALLS = frozenset((7, 36, 37))
# A tag, and the one that must stand beside it.
_PAIRS = (
    (_RELA, _RELASZ),
    (_RELASZ, _RELA),
    (_RELA, _RELAENT),
    (_JMPREL, _PLTRELSZ),
    (_JMPREL, _PLTREL),
    (_INIT_ARRAY, _INIT_ARRAYSZ),
    (_FINI_ARRAY, _FINI_ARRAYSZ),
    (_VERNEED, _VERSYM),
)
_FIXED = {_RELAENT: _RELOCATION, _SYMENT: _SYMBOL, _PLTREL: _RELA}


@dataclass(frozen=True)
class _Part:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    stored: int
    size: int
    alignment: int


def astray(data: View, elf: Elf, headers: list[bytes]) -> str | None:
    """What is wrong with the tables of a library, given its program headers; None: nothing that is seen here."""
    if elf.bits != 64 or not elf.little:
        return None
    # Without the fifth field: p_paddr means nothing to a loader in a process.
    parts = [_Part(*fields[:4], *fields[5:]) for fields in (struct.unpack("<IIQQQQQQ", raw) for raw in headers)]
    loads = [part for part in parts if part.kind == _LOAD]
    tags = dict(elf.dynamic)
    return (
        _parts(parts, loads)
        or _tags(tags)
        or _tables(data, elf, tags, loads)
        or (_relocations(data, elf, tags, loads) if elf.machine == "x86_64" else None)
    )


def _parts(parts: list[_Part], loads: list[_Part]) -> str | None:
    end = 0
    for part in loads:
        if part.alignment % _PAGE or part.alignment & (part.alignment - 1):
            return f"a segment is aligned to {part.alignment} bytes, not to pages"
        if not part.flags & _R or (part.size > part.stored and not part.flags & _W):
            return "a segment that cannot be read, or not be written where it must be"
        if part.address < end:
            return "its segments overlap, or are out of order"
        end = part.address + part.size
    for part in parts:
        if part.kind == _DYNAMIC and _offset(loads, part.address, part.stored) != part.offset:
            return "its dynamic section is not where its header says"
        if part.kind == _RELRO and part.size:
            around = [
                load
                for load in loads
                if load.flags & _W
                and load.address - load.address % _PAGE <= part.address
                and part.address + part.size <= load.address + load.size + _PAGE
            ]
            if not around:
                return "what is to be protected (RELRO) lies outside its data"
    return None


def _tags(tags: Mapping[int, int]) -> str | None:
    if _SYMTAB not in tags or _STRTAB not in tags:
        return "it has no table of symbols, or of their names"
    for tag, other in _PAIRS:
        if tags.get(tag) and other not in tags:
            return f"its dynamic section has tag {tag:#x} without {other:#x}"
    for tag, value in _FIXED.items():
        if tags.get(tag, value) != value:
            return f"its dynamic section says {tags[tag]} for tag {tag:#x}; it must be {value}"
    return None


def _offset(loads: list[_Part], address: int, size: int, flags: int = 0) -> int | None:
    """Where in the file bytes lie that are loaded from it, into a segment that has these flags."""
    for part in loads:
        if part.address <= address and address + size <= part.address + part.stored and part.flags & flags == flags:
            return part.offset + address - part.address
    return None


def _tables(data: View, elf: Elf, tags: Mapping[int, int], loads: list[_Part]) -> str | None:
    first = _offset(loads, tags[_SYMTAB], _SYMBOL)
    if first is None or tags[_SYMTAB] % 8 or any(data[first : first + _SYMBOL]):
        return "its table of symbols does not begin with the empty one"
    for tag in (_INIT, _FINI):
        if tag in tags and _offset(loads, tags[tag], 1, _X) is None:
            return "a function that runs on loading or unloading lies outside its code"
    for tag, size in ((_INIT_ARRAY, _INIT_ARRAYSZ), (_FINI_ARRAY, _FINI_ARRAYSZ)):
        if tags.get(size) and (_offset(loads, tags.get(tag, 0), tags[size]) is None or tags.get(tag, 0) % 8):
            return "a table of functions that run on loading or unloading lies outside its data"
    if _GNU_HASH in tags:
        at = _offset(loads, tags[_GNU_HASH], 16)
        words = struct.unpack("<IIII", data[at : at + 16]) if at is not None else (0, 0, 0, 0)
        if not words[2] or words[2] & (words[2] - 1) or tags[_GNU_HASH] % 4:
            return "its hash table is damaged"
    if tags.get(_VERSYM, 0) % 2:
        return "its table of versions is not aligned"
    if not elf.versions.keys() <= set(elf.needed):
        return "it asks for versions of a library that it does not need"
    return None


def _relocations(data: View, elf: Elf, tags: Mapping[int, int], loads: list[_Part]) -> str | None:
    moved: dict[int, int] = {}  # place to value, of what is moved with the library
    tables = ((_RELA, _RELASZ, _KNOWN), (_JMPREL, _PLTRELSZ, _KNOWN_OF_CALLS))
    pairs = ((_INIT_ARRAY, _INIT_ARRAYSZ), (_FINI_ARRAY, _FINI_ARRAYSZ))
    arrays = [(tags.get(tag, 0), tags[size]) for tag, size in pairs if tags.get(size)]
    for tag, size_tag, known in tables:
        size = tags.get(size_tag, 0)
        if not size:
            continue
        at = _offset(loads, tags.get(tag, 0), size)
        if at is None or size % _RELOCATION or tags.get(tag, 0) % 8:
            return "a table of relocations lies outside what is loaded"
        raw = data[at : at + size]
        # Bytes 8 to 11 of an entry hold the type (low half of r_info). By slices, since a library may have millions:
        # Python's loop over them takes too long.
        if not set(raw[8::24]) <= known or any(set(raw[byte::24]) != {0} for byte in (9, 10, 11)):
            return "a relocation of a kind that the loader does not know"
        words = array("Q", raw)
        places = words[0::3]
        # The upper half of r_info is a symbol's index.
        if _HASHES & tags.keys() and 1 < symbol_count(data, elf, tags) <= max(words[1::3]) >> 32:
            return "a relocation names a symbol that is not in its table"
        if not _written(loads, min(places), max(places), all_code=_moves_code(tags)):
            return "a relocation changes what lies outside its data"
        if tag == _RELA:
            count = tags.get(_RELACOUNT, 0)
            if count > len(places) or (count and set(raw[8 : 24 * count : 24]) != {_RELATIVE}):
                return "its dynamic section counts relocations that are none of that kind (DT_RELACOUNT)"
            low = min((start for start, _ in arrays), default=0)
            high = max((start + length for start, length in arrays), default=0)
            for index in [index for index, place in enumerate(places) if low <= place < high]:
                moved[places[index]] = words[3 * index + 2] if raw[24 * index + 8] == _RELATIVE else -1
    if _PACKED & tags.keys():
        return None  # packed relocations move the arrays too
    for start, length in arrays:
        for place in range(start, start + length - length % 8, 8):
            value = moved.get(place)
            if value is None or (value >= 0 and _offset(loads, value, 1, _X) is None):
                return "a function that runs on loading or unloading lies outside its code"
    return None


def _moves_code(tags: Mapping[int, int]) -> bool:
    return _TEXTREL in tags or bool(tags.get(_FLAGS, 0) & _DF_TEXTREL)


def _written(loads: list[_Part], low: int, high: int, *, all_code: bool) -> bool:
    parts = [part for part in loads if all_code or part.flags & _W]
    return any(part.address <= low < part.address + part.size for part in parts) and any(
        part.address <= high and high + 4 <= part.address + part.size for part in parts
    )
