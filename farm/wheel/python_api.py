"""Names of Python's C API: which Python has which, and which are in the stable ABI.

The data are `python_symbols.txt`, written by `tools/python_symbols.py`. Some versions were looked
at, not all: a name that 3.11 has and 3.9 has not may be in 3.10 or not, and is accepted there.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from farm.base.text import first_of
from farm.wheel.elf_symbols import Symbols
from farm.wheel.library import Library, SymbolTable

_MODULE_OF = re.compile(r"\.(?:cpython-|cp)3(\d{1,2})t?-[^/]*\.(?:so|pyd)$")
_PYTHON_TAG = re.compile(r"cp3(\d{1,2})")
_STABLE_DLL = "python3.dll"
_MAX_LISTED = 5


class ApiName(NamedTuple):
    """A name of the API.

    Attributes:
        first: The first of the versions (3.N) that were looked at and have it.
        last: The last of them.
        stable_since: The version since when it is in the stable ABI, None if it is not.
        windows_only: It is in the stable ABI of Windows alone.
    """

    first: int
    last: int
    stable_since: int | None
    windows_only: bool


class Target(NamedTuple):
    """The Pythons that a library is for: 3.`minor`, and with `stable` all later ones too."""

    minor: int
    stable: bool


@cache
def api_names() -> tuple[Mapping[str, ApiName], tuple[int, ...]]:
    """The names of the API, and the versions that were looked at."""
    names = {}
    versions: tuple[int, ...] = ()
    text = (resources.files("farm.wheel") / "python_symbols.txt").read_text(encoding="ascii")
    for line in text.splitlines():
        if line.startswith("# versions: "):
            versions = tuple(map(int, line.split()[2:]))
        elif not line.startswith("#"):
            name, first, last, stable = line.split()
            since = None
            if stable != "-":
                since = int(stable.removesuffix("w"))
            names[name] = ApiName(
                first=int(first),
                last=int(last),
                stable_since=since,
                windows_only=stable.endswith("w"),
            )
    return names, versions


def targets(path: str, tags: Collection[str]) -> list[Target]:
    """The Pythons that a member of a wheel is for, by its suffix, else by the wheel's tags."""
    match = _MODULE_OF.search(posixpath.basename(path))
    if match:
        return [Target(int(match[1]), stable=False)]
    pythons = set()
    for tag in tags:
        python, abi, _ = tag.split("-")
        match = _PYTHON_TAG.fullmatch(python)
        if match and abi in ("abi3", "abi3t"):
            pythons.add(Target(int(match[1]), stable=True))
        elif match and abi.startswith("cp") and not abi.endswith("d"):
            pythons.add(Target(int(match[1]), stable=False))
    return sorted(pythons)


def is_invented(name: str, path: str, tags: Collection[str]) -> bool:
    """True if a name looks like one of the API and no Python that a library is for can have it.

    Args:
        name: A name that begins with Py or _Py.
        path: The library that takes it.
        tags: The tags of the wheel.
    """
    names, versions = api_names()
    pythons = targets(path, tags)
    if name in names or not pythons:
        return False
    minors = {python.minor for python in pythons}
    # A name may be newer than the data. Private ones live for one release at times.
    if max(minors) > versions[-1]:
        return False
    return not name.startswith("_") or minors.issubset(versions)


def wrong_names(
    library: Library,
    symbols: SymbolTable,
    given: frozenset[str],
    tags: Collection[str],
) -> Iterator[str]:
    """What a library takes of Python that a Python of the wheel's tags does not have.

    Args:
        library: The library.
        symbols: What it takes.
        given: Names that libraries of the wheel give.
        tags: The tags of the wheel.
    """
    on_linux = isinstance(symbols, Symbols)
    if isinstance(symbols, Symbols):
        imported = set(symbols.undefined) - given
    else:
        imported = set(symbols.imports.get(_STABLE_DLL, ()))
    names, _ = api_names()
    entries = {}
    for name in sorted(imported):
        if name in names:
            entries[name] = names[name]
    for target in targets(library.path, tags):
        if target.stable:
            yield from _outside_stable_abi(entries, target.minor, on_linux=on_linux)
        elif on_linux:
            absent = [name for name, entry in entries.items() if _is_absent(entry, target.minor)]
            if absent:
                yield (
                    f"takes {first_of(absent, _MAX_LISTED)}, which Python 3.{target.minor} does "
                    "not have"
                )


def _outside_stable_abi(
    entries: Mapping[str, ApiName],
    minor: int,
    *,
    on_linux: bool,
) -> Iterator[str]:
    """What is taken and is not in the stable ABI of the tag.

    Args:
        entries: The names that are taken.
        minor: The tag is for 3.`minor` and newer.
        on_linux: The library is for Linux, whose stable ABI lacks some names of Windows'.
    """
    outside = []
    newer: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if entry.stable_since is None or (entry.windows_only and on_linux):
            outside.append(name)
        elif entry.stable_since > minor:
            newer.setdefault(entry.stable_since, []).append(name)
    if outside:
        yield (
            f"takes {first_of(outside, _MAX_LISTED)}, not in the stable ABI that the tag "
            "abi3 promises"
        )
    for since, names in sorted(newer.items()):
        yield (
            f"takes {first_of(names, _MAX_LISTED)}, in the stable ABI since 3.{since}; the "
            "tag is for "
            f"3.{minor} and newer"
        )


def _is_absent(entry: ApiName, minor: int) -> bool:
    """True if a version is known not to have a name."""
    _, versions = api_names()
    for version in versions:
        if version < entry.first and minor <= version:
            return True
        if version > entry.last and minor >= version:
            return True
    return False
