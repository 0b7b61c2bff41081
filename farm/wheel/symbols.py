"""Which symbols a library takes from others and gives to them, as the loader sees it (ELF).

The table is found by the dynamic section, as the loader finds it; its length is in the hash tables (DT_HASH,
DT_GNU_HASH), else it ends where the names begin. Sources: System V gABI chapter 5; "GNU hash ELF sections" (the
layout of DT_GNU_HASH); Linux Standard Base 5, "Symbol Versioning".
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import Elf

_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
_GLOBAL = 1  # index of symbols without a version
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_SYMBOLS = 2_000_000
_WEAK = 2
_LOCAL = 0


@dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a library.

    Attributes:
        undefined: What must be found elsewhere: name to (library, version), both empty for one without version.
            Weak ones are left out: they may stay undefined.
        defined: The names that it gives to others.
        error: Why they could not be read; then there are none.
    """

    undefined: dict[str, tuple[str, str]] = field(default_factory=dict)
    defined: frozenset[str] = frozenset()
    error: str | None = None


def read_symbols(data: Buffer, elf: Elf) -> Symbols:
    """Read the dynamic symbols of a 64-bit little-endian library; of others nothing.

    Raises:
        VerificationFailedError: A table is damaged.
    """
    tags = dict(elf.dynamic)
    if elf.bits != 64 or not elf.little or _DT_SYMTAB not in tags or _DT_STRTAB not in tags:
        return Symbols()
    start, names = elf.file_offset(tags[_DT_SYMTAB]), elf.file_offset(tags[_DT_STRTAB])
    # The dynamic table has no tag for its length: it follows from the hash table.
    count = symbol_count(data, elf, tags)
    if count > _MAX_SYMBOLS:
        raise _damaged(f"{count} symbols; more than {_MAX_SYMBOLS} are refused")
    if start + count * _SYMBOL.size > len(data):
        raise _damaged("its symbols reach beyond the end")
    text = data[names : names + tags.get(_DT_STRSZ, 0)]
    versions = _versions(data, elf, tags, count)
    highest = max([_GLOBAL, tags.get(_DT_VERDEFNUM, 0), *elf.version_names])
    for number in {each & 0x7FFF for each in set(versions)}:
        if number > highest:
            raise _damaged(f"a symbol is of version {number}, which is none")
    undefined: dict[str, tuple[str, str]] = {}
    defined: set[str] = set()
    for index, (name, info, _, section, _, _) in enumerate(
        _SYMBOL.iter_unpack(data[start : start + count * _SYMBOL.size])
    ):
        binding = info >> 4
        # The first symbol is empty, and local ones are no offer to others.
        if not name or binding == _LOCAL:
            continue
        end = text.find(b"\0", name)
        if name >= len(text) or end < 0:
            raise _damaged("a symbol's name is outside its table")
        symbol = text[name:end].decode("utf-8", "backslashreplace")
        if section:
            defined.add(symbol)
        elif binding != _WEAK:
            # The highest bit hides a symbol from plain references; the rest is the version's index.
            number = versions[index] & 0x7FFF if versions else 0
            if number > _GLOBAL and number not in elf.version_names and _DT_VERDEF not in tags:
                raise _damaged(f"a symbol is of version {number}, which is none")
            undefined[symbol] = elf.version_names.get(number, ("", ""))
    return Symbols(undefined, frozenset(defined))


def _versions(data: Buffer, elf: Elf, tags: dict[int, int], count: int) -> tuple[int, ...]:
    if _DT_VERSYM not in tags:
        return ()
    at = elf.file_offset(tags[_DT_VERSYM])
    if at + 2 * count > len(data):
        raise _damaged("its symbols' versions reach beyond the end")
    return struct.unpack(f"<{count}H", data[at : at + 2 * count])


def symbol_count(data: Buffer, elf: Elf, tags: Mapping[int, int]) -> int:
    """How many symbols there are; 1 where that is not known: none is given to others, no classic hash table."""
    if _DT_HASH in tags:
        # The second word of the classic hash table is the number of its chains: one for each symbol.
        at = elf.file_offset(tags[_DT_HASH])
        return int.from_bytes(data[at + 4 : at + 8], "little")
    if _DT_GNU_HASH in tags:
        return _gnu_count(data, elf.file_offset(tags[_DT_GNU_HASH]))
    # Neither table: linkers put the names right behind the symbols.
    return max(0, tags[_DT_STRTAB] - tags[_DT_SYMTAB]) // _SYMBOL.size


def _gnu_count(data: Buffer, at: int) -> int:
    """One more than the highest index: the end of the chain that begins last."""
    if at + 16 > len(data):
        raise _damaged("its hash table is cut off")
    # GNU's hash table: buckets, index of the first hashed symbol, words of the Bloom filter, its shift.
    buckets, first, bloom, _ = struct.unpack("<IIII", data[at : at + 16])
    table = at + 16 + 8 * bloom
    chains = table + 4 * buckets
    if buckets > _MAX_SYMBOLS or chains > len(data):
        raise _damaged("its hash table is cut off")
    last = max((int(each) for each in struct.unpack(f"<{buckets}I", data[table:chains])), default=0)
    if last < first:
        return int(first)
    while True:
        place = chains + 4 * (last - first)
        if place + 4 > len(data) or last > _MAX_SYMBOLS:
            raise _damaged("its hash table has no end")
        # The lowest bit of a chain's word marks its end.
        if int(data[place]) & 1:
            return last + 1
        last += 1


def _damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged ELF file: {what}")
