"""Symbols that libraries take from one another by name.

A library that is found but lacks a function that is taken from it cannot be loaded. What the
system's libraries give is not known here. So a name is missed where it should come from a library
of the wheel or of a dependency, or where nothing but the C and C++ runtime, and for extension
modules the interpreter, is asked. Known are

- glibc's names (`glibc_symbols.txt`) and those of libstdc++ and libgcc_s (`cxx_symbols.txt`), which
  may be taken without a version too;
- the API of Python (`farm.wheel.python_api`);
- on Windows the names of kernel32 and of the C runtime, from which nearly every DLL takes
  (`kernel32_symbols.txt`, `ucrt_symbols.txt`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib import resources

from farm.base.text import first_of
from farm.wheel.elf_symbols import Symbols
from farm.wheel.library import Library, SymbolTable
from farm.wheel.needs import Answer, Need
from farm.wheel.pe import DllSymbols
from farm.wheel.python_api import is_invented
from farm.wheel.tags import LOADER

# All their symbols carry a version (GLIBC_2.17, GCC_3.0, GLIBCXX_3.4): what has none is not theirs.
_VERSIONED = re.compile(
    rf"lib(c|m|dl|rt|pthread|util)\.so\.[0-9]+|libgcc_s\.so\.1|libstdc\+\+\.so\.6|{LOADER}"
)
# Names of libstdc++ and libgcc_s. A library that is linked without them, but loaded with them
# (libtorch.so of torch 1.12), takes these without a version.
_CXX = re.compile(
    r"_Z[A-Z]*S[stabiod]|_Z[NTVIK]*(9__gnu_cxx|10__cxxabiv1)|_Z[nd][wal]|"
    r"__cxa_|__gxx_|__dynamic_cast|_Unwind_"
)
_PYTHON = re.compile(r"_?Py")
_MAX_LISTED = 5
_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
_CXX_RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1")
_NEWEST_GLIBC = 36  # the list is of glibc 2.36, which gives all that older ones gave

NEWER_WINDOWS = "which has it in no Windows that is known here: of a newer one, or misspelt"
"""The end of a problem that is not of the wheel's own libraries."""

_Tables = Mapping[str, SymbolTable]


def missing_names(
    libraries: Iterable[Library],
    needs: Iterable[Need],
    symbols: _Tables,
    tags: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """What the loader would miss.

    Args:
        libraries: The libraries of a wheel.
        needs: The libraries that they need, with who answers.
        symbols: What each takes and gives, by member.
        tags: The tags of the wheel: a newer Python than those known here may give other names.

    Yields:
        The member of each library that the loader would refuse, and the names that it misses.
    """
    needs_of: dict[str, list[Need]] = {}
    for need in needs:
        needs_of.setdefault(need.who, []).append(need)
    exported = given_names(symbols)
    for library in libraries:
        table = symbols.get(library.path)
        if library.error or not library.is_loadable or table is None:
            continue
        library_needs = needs_of.get(library.path, [])
        if isinstance(table, DllSymbols):
            yield from _not_exported(library, table, library_needs, symbols)
        elif table.error:
            yield library.path, table.error
        else:
            missing = list(_missing_versioned(library, table, library_needs, symbols))
            missing += _missing_unversioned(library, table, needs_of, exported, tags)
            if missing:
                yield library.path, f"undefined symbol: {first_of(sorted(missing), _MAX_LISTED)}"


def given_names(symbols: _Tables) -> frozenset[str]:
    """All names that the ELF libraries give to others."""
    names: set[str] = set()
    for table in symbols.values():
        if isinstance(table, Symbols):
            names.update(table.exports)
    return frozenset(names)


def _missing_versioned(
    library: Library,
    table: Symbols,
    needs: list[Need],
    symbols: _Tables,
) -> Iterator[str]:
    """Names with a version, which says the library that they come from: that one alone is asked."""
    inside = {need.name: need.by for need in needs if need.answer is Answer.WHEEL}
    for name, (file, version) in table.undefined.items():
        if not file:
            continue
        giver = symbols.get(inside.get(file) or "")
        is_missing = False
        if isinstance(giver, Symbols):
            is_missing = _does_not_give(giver, name, version)
        elif library.machine == "x86_64":
            is_missing = _lacks_glibc(file, version, name) or _lacks_cxx(file, version, name)
        if is_missing:
            yield f"{name}@{version} of {file}"


def _does_not_give(giver: Symbols, name: str, version: str) -> bool:
    """True if a library does not give a name in this version.

    The loader takes an unversioned definition for every version (glibc, elf/dl-lookup.c,
    check_match).
    """
    if not giver.exports:  # an empty table proves nothing
        return False
    if name not in giver.exports:
        return True
    versions = giver.versions_of.get(name)
    return versions is not None and version not in versions


def _missing_unversioned(
    library: Library,
    table: Symbols,
    needs_of: Mapping[str, list[Need]],
    given: frozenset[str],
    tags: Collection[str],
) -> Iterator[str]:
    """Names without a version, which may come from any library that is loaded.

    They are missing only if all of these are known.
    """
    if not _all_known(library.path, table, needs_of):
        return
    for name, (file, _) in table.undefined.items():
        if file or name in given or name in _names_in("glibc_symbols.txt"):
            continue
        if _CXX.match(name):
            names_of_runtime = _names_in("cxx_symbols.txt")
            is_missing = library.machine == "x86_64" and name not in names_of_runtime
        elif _PYTHON.match(name):
            is_missing = is_invented(name, library.path, tags)
        else:
            is_missing = True
        if is_missing:
            yield name


def _lacks_glibc(file: str, version: str, name: str) -> bool:
    """True if glibc has no such name, as far as is known: the list has all of 2.36 and before."""
    match = re.fullmatch(r"GLIBC_2\.([0-9]+)(\.[0-9]+)?", version)
    if file not in _GLIBC or match is None or int(match[1]) > _NEWEST_GLIBC:
        return False
    return name not in _names_in("glibc_symbols.txt")


def _lacks_cxx(file: str, version: str, name: str) -> bool:
    """True if libstdc++ or libgcc_s has no such name: of versions that are not listed it may."""
    names = _names_in("cxx_symbols.txt")
    return file in _CXX_RUNTIME and version in names and name not in names


@cache
def _names_in(file: str) -> frozenset[str]:
    """The names of a list that lies beside this module; lines that begin with # are comments."""
    text = (resources.files("farm.wheel") / file).read_text(encoding="ascii")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _all_known(member: str, table: Symbols, needs_of: Mapping[str, list[Need]]) -> bool:
    """True if all that a library brings in, needs of needs too, is of the wheel or carries
    versions.
    """
    if not needs_of.get(member):
        # It gets its names from the program that loads it: of an extension module that is Python.
        return any(name.startswith("PyInit_") for name in table.exports)
    waiting = [member]
    reached = {member}
    while waiting:
        for need in needs_of.get(waiting.pop(), []):
            if need.answer is Answer.WHEEL and need.by:
                if need.by not in reached:
                    reached.add(need.by)
                    waiting.append(need.by)
            elif need.answer is not Answer.SYSTEM or not _VERSIONED.fullmatch(need.name):
                return False
    return True


def _not_exported(
    library: Library,
    table: DllSymbols,
    needs: list[Need],
    symbols: _Tables,
) -> Iterator[tuple[str, str]]:
    """Functions that a DLL takes from others that do not export them."""
    inside = {need.name.lower(): need.by for need in needs if need.answer is Answer.WHEEL}
    for dll, imported in table.imports.items():
        giver = symbols.get(inside.get(dll) or "")
        if isinstance(giver, DllSymbols):
            missing = imported - giver.exports
            reason = "which does not export it"
        else:
            missing = frozenset(
                name for name in imported if _windows_lacks(dll, name, library.machine)
            )
            reason = NEWER_WINDOWS
        if missing:
            names = first_of(sorted(missing), _MAX_LISTED)
            yield library.path, f"takes {names} from {dll}, {reason}"


def _windows_lacks(dll: str, name: str, machine: str) -> bool:
    """True if a DLL of Windows has no such function, as far as is known.

    Ordinals change with each Windows.
    """
    if machine != "amd64" or name.startswith("#"):
        return False
    if dll == "kernel32.dll":
        return name not in _names_in("kernel32_symbols.txt")
    is_runtime = dll.startswith(("api-ms-win-crt-", "ucrtbase."))
    return is_runtime and name not in _names_in("ucrt_symbols.txt")
