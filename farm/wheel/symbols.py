"""Symbols that libraries take from one another by name. A library that is found but lacks a function
that is taken from it cannot be loaded. What the system's libraries give is not known here: so a
name is missed where it should come from a library of the wheel or of a dependency, or where
nothing but the C and C++ runtime is asked besides. Known are glibc's own names, which may be
taken without a version too (`glibc_symbols.txt`), and on Windows those of kernel32 and the C
runtime, from which nearly every DLL takes (`kernel32_symbols.txt`, `ucrt_symbols.txt`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources

from farm.wheel.elf import Symbols
from farm.wheel.library import Library
from farm.wheel.needs import (
    Answer,
    Need,
)
from farm.wheel.pe import DllSymbols
from farm.wheel.tags import (
    LOADER,
)

# All their symbols carry a version (GLIBC_2.17, GCC_3.0, GLIBCXX_3.4): what has none is not theirs.
_VERSIONED = re.compile(
    rf"lib(c|m|dl|rt|pthread|util)\.so\.[0-9]+|libgcc_s\.so\.1|libstdc\+\+\.so\.6|{LOADER}"
)
# Names of libstdc++ and libgcc_s. A library that is linked without them, but loaded with them
# (libtorch.so of torch
# 1.12), takes these without a version.
_CXX = re.compile(
    r"_Z[A-Z]*S[stabiod]|_Z[NTVIK]*(9__gnu_cxx|10__cxxabiv1)|_Z[nd][wal]|__cxa_|__gxx_|__dynamic_cast|_Unwind_"
)
_PYTHON_NAME = re.compile(r"_?Py")  # the interpreter gives these to extension modules
_MOST = 5
_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
_LISTED = 36  # the list is of glibc 2.36, which gives all that older ones gave


def missing_names(
    libraries: Iterable[Library], needs: Iterable[Need], symbols: Mapping[str, Symbols | DllSymbols]
) -> Iterator[tuple[str, str]]:
    """(member, what it misses) of each library that the loader would refuse for a name."""
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        by_who.setdefault(need.who, []).append(need)
    given = frozenset().union(
        *(each.exports for each in symbols.values() if isinstance(each, Symbols))
    )
    for library in libraries:
        own = symbols.get(library.path)
        if library.error or not library.is_loadable:
            continue
        if isinstance(own, Symbols) and own.error:
            yield library.path, own.error
        elif isinstance(own, Symbols):
            yield from _undefined(library, own, by_who, symbols, given)
        elif own is not None:
            yield from _not_exported(library, own, by_who.get(library.path, []), symbols)


def _undefined(
    library: Library,
    own: Symbols,
    needs: Mapping[str, list[Need]],
    symbols: Mapping[str, Symbols | DllSymbols],
    given: frozenset[str],
) -> Iterator[tuple[str, str]]:
    # A name without a version may come from any library that is loaded: it is missing only if all
    # of them are known.
    closed = _all_known(library.path, needs)
    by_name = {
        need.name: need.by for need in needs.get(library.path, []) if need.answer is Answer.WHEEL
    }
    lost: list[str] = []
    for name, (file, version) in own.undefined.items():
        # A versioned name says which library it is to come from, so that one alone is asked.
        if file:
            theirs = symbols.get(by_name.get(file) or "")
            # An empty table proves nothing.
            lacks = isinstance(theirs, Symbols) and theirs.exports and name not in theirs.exports
            if lacks or (library.machine == "x86_64" and _lacks_glibc(file, version, name)):
                lost.append(f"{name}@{version} of {file}")
        elif (
            closed
            and name not in given
            and not _PYTHON_NAME.match(name)
            and not _CXX.match(name)
            and name not in _listed("glibc_symbols.txt")
        ):
            lost.append(name)
    if lost:
        more = f" and {len(lost) - _MOST} more" if len(lost) > _MOST else ""
        yield library.path, f"undefined symbol: {', '.join(sorted(lost)[:_MOST])}{more}"


def _lacks_glibc(file: str, version: str, name: str) -> bool:
    """True if glibc has no such name of this version, as far as it is known: the list has all of
    2.36 and before.
    """
    found = re.fullmatch(r"GLIBC_2\.([0-9]+)(\.[0-9]+)?", version)
    known = file in _GLIBC and found is not None and int(found[1]) <= _LISTED
    return known and name not in _listed("glibc_symbols.txt")


@cache
def _listed(file: str) -> frozenset[str]:
    text = (resources.files("farm.wheel") / file).read_text(encoding="ascii")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _all_known(member: str, needs: Mapping[str, list[Need]]) -> bool:
    """True if all that a library brings in, needs of needs too, is of the wheel or carries
    versions.
    """
    waiting = [member]
    reached = {member}
    while waiting:
        for need in needs.get(waiting.pop(), []):
            if need.answer is Answer.WHEEL and need.by:
                if need.by not in reached:
                    reached.add(need.by)
                    waiting.append(need.by)
            elif not (need.answer is Answer.SYSTEM and _VERSIONED.fullmatch(need.name)):
                return False
    # A module that needs no library at all gets its names from the program that loads it.
    return len(reached) > 1 or bool(needs.get(member))


def _not_exported(
    library: Library,
    own: DllSymbols,
    needs: list[Need],
    symbols: Mapping[str, Symbols | DllSymbols],
) -> Iterator[tuple[str, str]]:
    by_name = {need.name.lower(): need.by for need in needs if need.answer is Answer.WHEEL}
    machine = library.machine
    for dll, taken in own.imports.items():
        theirs = symbols.get(by_name.get(dll) or "")
        if isinstance(theirs, DllSymbols):
            lost = sorted(taken - theirs.exports)
        else:
            lost = sorted(name for name in taken if _lacks(dll, name, machine))
        if lost:
            more = f" and {len(lost) - _MOST} more" if len(lost) > _MOST else ""
            yield (
                library.path,
                f"takes {', '.join(lost[:_MOST])}{more} from {dll}, which does not export it",
            )


def _lacks(dll: str, name: str, machine: str) -> bool:
    """True if a DLL of Windows has no such function, as far as is known. Ordinals change with each
    Windows.
    """
    if machine != "amd64" or name.startswith("#"):
        return False
    if dll == "kernel32.dll":
        return name not in _listed("kernel32_symbols.txt")
    return dll.startswith(("api-ms-win-crt-", "ucrtbase.")) and name not in _listed(
        "ucrt_symbols.txt"
    )
