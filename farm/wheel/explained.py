"""Facts for explanations of loaders' messages: the files of a wheel or package, and what is known besides."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from farm.base.errors import UsageError
from farm.wheel.archive import Archive
from farm.wheel.contents import Contents, read_contents
from farm.wheel.folder import read_folder
from farm.wheel.imports import resolve
from farm.wheel.isalevels import level_names
from farm.wheel.library import Library
from farm.wheel.models import Frozen, Printable
from farm.wheel.needs import Need
from farm.wheel.pesymbols import DllSymbols
from farm.wheel.symbols import Symbols
from farm.wheel.why126 import source_of

MOST = 8


class Explanation(Frozen):
    """One message, explained.

    Attributes:
        message: What was recognised, such as `error 126`.
        cause: What it means here.
        culprits: The files that cause it, each with what is wrong; empty: none of these files does.
        cure: What to do.
    """

    message: str
    cause: Printable
    culprits: tuple[Printable, ...] = ()
    cure: Printable


@dataclass(frozen=True)
class Files:
    """The wheel or the installed package, read when it is asked for."""

    path: Path

    @cached_property
    def contents(self) -> Contents:
        return self._read(None)

    @cached_property
    def on_load(self) -> Contents:
        """With what the code that runs on loading needs beyond the oldest CPU."""
        return self._read(level_names()[0])

    def _read(self, level: str | None) -> Contents:
        if self.path.is_dir():
            return read_folder(self.path, level)
        with Archive(self.path) as archive:
            # `*`: of every library only what runs on loading, for that is when a loader's message comes.
            return read_contents(archive, lambda _: level, ("*",), with_symbols=True)

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        found = tuple(each for each in self.contents.libraries if each.is_loadable or each.error)
        if not found:
            raise UsageError(f"{self.path}: no library in it", hint="give the wheel, or the folder of the package")
        return found

    @cached_property
    def needs(self) -> list[Need]:
        return resolve(self.contents.libraries, (), self.contents.dependencies)


def where_from(name: str) -> str:
    """The library, and where to get it."""
    source = source_of(name) or next(
        (each["source"] for each in known()["libraries"] if any(fnmatchcase(name, one) for one in each["names"])), ""
    )
    return f"{name}: {source or 'look for the name in the environment of the build'}"


@cache
def known() -> dict[str, Any]:
    """The tables of loader_messages.yaml."""
    text = (resources.files("farm.wheel") / "loader_messages.yaml").read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.safe_load(text)
    return tables


def given(match: re.Match[str]) -> str:
    """The name in a message, whichever of the pattern's groups holds it."""
    return next((text for text in match.groupdict().values() if text), "")


def undefined_symbol(files: Files, symbol: str) -> Explanation:
    """A name that a library takes and none gives."""
    symbols = files.contents.symbols
    takers = [path for path, each in symbols.items() if isinstance(each, Symbols) and symbol in each.undefined]
    takers += [path for path, each in symbols.items() if isinstance(each, DllSymbols) and _takes(each, symbol)]
    givers = [
        path
        for path, each in symbols.items()
        if symbol in (each.defined if isinstance(each, Symbols) else each.exports)
    ]
    owned = next((each for each in known()["symbols"] if re.match(each["pattern"], symbol)), None)
    owner = owned["owner"] if owned else "a library that these files need"
    if givers:
        cause = f"{symbol} is given by {', '.join(givers[:3])}, but another copy of that library was loaded first"
        cure = "take other copies out of LD_LIBRARY_PATH and PATH, and import nothing before that brings its own"
    else:
        cause = f"{symbol} should come from {owner}, and the version that was loaded does not have it"
        cure = owned["cure"] if owned else "install the versions that METADATA pins, or build the wheel again"
    return Explanation(
        message="undefined symbol",
        cause=cause,
        culprits=tuple(f"{path} takes it" + _from(symbols[path], symbol) for path in takers[:MOST]),
        cure=cure,
    )


def _takes(dll: DllSymbols, symbol: str) -> bool:
    return any(symbol in taken for taken in dll.imports.values())


def _from(each: Symbols | DllSymbols, symbol: str) -> str:
    if isinstance(each, DllSymbols):
        return " from " + next(dll for dll, taken in each.imports.items() if symbol in taken)
    library, version = each.undefined[symbol]
    return f" from {library}, version {version}" if library else ""
