"""The symbols of an ELF library that the loader sees: what it takes, and what it gives.

Their table is found by the dynamic section, as the loader finds it; its length is in the hash
tables (DT_HASH, DT_GNU_HASH), else it ends where the names begin.

Sources: System V gABI chapters 4 and 5; Linux Standard Base 5, "Symbol Versioning"; "GNU hash ELF
sections" (the layout of DT_GNU_HASH).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from farm.wheel.archive import Buffer
from farm.wheel.elf import (
    DT_STRTAB,
    MAX_SYMBOLS,
    MAX_VERSIONS,
    SHT_DYNSYM,
    SYMBOL,
    Elf,
    damaged,
    decoded,
    first_value,
)

_DT_HASH = 4
_DT_SYMTAB = 6
_DT_STRSZ = 10
_DT_GNU_HASH = 0x6FFFFEF5
_DT_VERSYM = 0x6FFFFFF0
_DT_VERDEF = 0x6FFFFFFC
_DT_VERDEFNUM = 0x6FFFFFFD
_VERDEF = struct.Struct("<HHHHIII")
_VER_FLG_BASE = 1
_GLOBAL = 1  # index of symbols without a version
_WEAK = 2
_LOCAL = 0


@dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a library.

    `undefined`: What must be found elsewhere: name to (library, version), both empty for one
    without version. Weak ones are left out: they may stay undefined.
    """

    undefined: dict[str, tuple[str, str]] = field(default_factory=dict)
    exports: frozenset[str] = frozenset()  # the names that it gives to others
    # The versions in which it gives a name, where its symbols have versions and this one has some.
    versions_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    error: str | None = None  # why they could not be read; then there are none

    def source(self, name: str) -> str | None:
        """The library that a name is taken from, in words, empty for any; None for a name that it
        does not take.
        """
        if name not in self.undefined:
            return None
        library, version = self.undefined[name]
        return f" from {library}, version {version}" if library else ""


class _SymbolTable(NamedTuple):
    """The dynamic symbols of a library as they are in the file.

    Attributes:
        rows: The symbols.
        text: Their names.
        versions: The index of the version of each, empty where there are none.
        defined_versions: The versions that the library defines, by their index.
    """

    rows: bytes
    text: bytes
    versions: Sequence[int]
    defined_versions: Mapping[int, str]

    def name(self, offset: int) -> str:
        """A symbol's name."""
        end = self.text.find(b"\0", offset)
        if offset >= len(self.text) or end < 0:
            raise damaged("a symbol's name is outside its table")
        return self.text[offset:end].decode("utf-8", "backslashreplace")

    def version(self, index: int) -> int:
        """The index of a symbol's version; 0 where there are none."""
        if not self.versions:
            return 0
        # The highest bit hides a symbol from plain references.
        return self.versions[index] & 0x7FFF


def _symbol_table(data: Buffer, elf: Elf) -> _SymbolTable | None:
    """Find the dynamic symbols of a library; None where it has none."""
    tags = dict(elf.dynamic)
    if _DT_SYMTAB not in tags or DT_STRTAB not in tags:
        return None
    start = elf.file_offset(tags[_DT_SYMTAB])
    names = elf.file_offset(tags[DT_STRTAB])
    # The dynamic table has no tag for its length: it follows from the hash table.
    count = symbol_count(data, elf, tags)
    if count > MAX_SYMBOLS:
        raise damaged(f"{count} symbols; more than {MAX_SYMBOLS} are refused")
    end = start + count * SYMBOL.size
    if end > len(data):
        raise damaged("its symbols reach beyond the end")
    text = data[names : names + tags.get(_DT_STRSZ, 0)]
    versions = _versions(data, elf, tags, count)
    count_of_defined = tags.get(_DT_VERDEFNUM, 0)
    highest = max(_GLOBAL, count_of_defined, *elf.version_names)
    for word in set(versions):
        number = word & 0x7FFF
        if number > highest:
            raise damaged(f"a symbol is of version {number}, which is none")
    defined_versions: dict[int, str] = {}
    if versions:
        defined_versions = _defined_versions(data, elf, tags, text)
    return _SymbolTable(data[start:end], text, versions, defined_versions)


def read_symbols(data: Buffer, elf: Elf) -> Symbols:
    """Read the dynamic symbols of a library."""
    table = _symbol_table(data, elf)
    if table is None:
        return Symbols()
    defines_versions = first_value(elf.dynamic, _DT_VERDEF) is not None
    undefined: dict[str, tuple[str, str]] = {}
    defined: set[str] = set()
    unversioned: set[str] = set()
    versions_of: dict[str, set[str]] = {}
    rows = SYMBOL.iter_unpack(table.rows)
    for index, (name, info, _, section, _, _) in enumerate(rows):
        binding = info >> 4
        # The first symbol is empty, and local ones are no offer to others.
        if not name or binding == _LOCAL:
            continue
        symbol = table.name(name)
        number = table.version(index)
        if section:
            defined.add(symbol)
            version = table.defined_versions.get(number)
            if version is None:
                unversioned.add(symbol)
            else:
                versions_of.setdefault(symbol, set()).add(version)
        elif binding != _WEAK:
            if number > _GLOBAL and number not in elf.version_names and not defines_versions:
                raise damaged(f"a symbol is of version {number}, which is none")
            undefined[symbol] = elf.version_names.get(number, ("", ""))
    given_versions = {}
    for symbol, names in versions_of.items():
        if symbol not in unversioned:
            given_versions[symbol] = frozenset(names)
    return Symbols(undefined, frozenset(defined), given_versions)


def _defined_versions(
    data: Buffer,
    elf: Elf,
    tags: Mapping[int, int],
    text: bytes,
) -> dict[int, str]:
    """The versions that a library defines, by the index that its symbols use."""
    count = min(tags.get(_DT_VERDEFNUM, 0), MAX_VERSIONS)
    if _DT_VERDEF not in tags or not count:
        return {}
    names: dict[int, str] = {}
    position = elf.file_offset(tags[_DT_VERDEF])
    for _ in range(count):
        # Elf_Verdef: version, flags, index, count of names, hash, offset of the first Elf_Verdaux
        # (name, offset of the next), offset of the next entry (0: last).
        if position + _VERDEF.size > len(data):
            raise damaged("the versions that it defines reach beyond the end")
        _, flags, index, _, _, first, following = _VERDEF.unpack_from(data, position)
        entry = position + first
        if entry + 4 > len(data):
            raise damaged("the versions that it defines reach beyond the end")
        start = int.from_bytes(data[entry : entry + 4], "little")
        end = text.find(b"\0", start)
        if start >= len(text) or end < 0:
            raise damaged("the name of a version is outside its table")
        # The first one is the name of the file itself.
        if not flags & _VER_FLG_BASE:
            names[index & 0x7FFF] = decoded(text[start:end])
        if not following:
            break
        position += following
    return names


def _versions(
    data: Buffer,
    elf: Elf,
    tags: dict[int, int],
    count: int,
) -> tuple[int, ...]:
    """The index of each symbol's version; empty where there are none."""
    if _DT_VERSYM not in tags:
        return ()
    at = elf.file_offset(tags[_DT_VERSYM])
    if at + 2 * count > len(data):
        raise damaged("its symbols' versions reach beyond the end")
    return struct.unpack(f"<{count}H", data[at : at + 2 * count])


def symbol_count(data: Buffer, elf: Elf, tags: Mapping[int, int]) -> int:
    """How many symbols there are; 1 where that is not known: none is given to others, no hash table
    and no section.
    """
    if _DT_HASH in tags:
        # The second word of the classic hash table is the number of its chains: one for each
        # symbol.
        at = elf.file_offset(tags[_DT_HASH])
        return int.from_bytes(data[at + 4 : at + 8], "little")
    if _DT_GNU_HASH in tags:
        count = _gnu_count(data, elf.file_offset(tags[_DT_GNU_HASH]))
        # It counts what is given to others; where that is nothing, it does not say how many are
        # taken.
        for section in elf.sections:
            if section.kind == SHT_DYNSYM:
                return max(count, section.size // SYMBOL.size)
        return max(count, 1)
    # Neither table: linkers put the names right behind the symbols.
    return max(0, tags[DT_STRTAB] - tags[_DT_SYMTAB]) // SYMBOL.size


def _gnu_count(data: Buffer, at: int) -> int:
    """One more than the highest index: the end of the chain that begins last."""
    if at + 16 > len(data):
        raise damaged("its hash table is cut off")
    # GNU's hash table: buckets, index of the first hashed symbol, words of the Bloom filter, its
    # shift.
    buckets, first, bloom, _ = struct.unpack("<IIII", data[at : at + 16])
    table = at + 16 + 8 * bloom
    chains = table + 4 * buckets
    if buckets > MAX_SYMBOLS or chains > len(data):
        raise damaged("its hash table is cut off")
    last: int = max(struct.unpack(f"<{buckets}I", data[table:chains]), default=0)
    if last < first:
        return int(first)
    while True:
        place = chains + 4 * (last - first)
        if place + 4 > len(data) or last > MAX_SYMBOLS:
            raise damaged("its hash table has no end")
        # The lowest bit of a chain's word marks its end.
        if int(data[place]) & 1:
            return last + 1
        last += 1
