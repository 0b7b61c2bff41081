"""Do the libraries of a wheel for the stable ABI (`cp38-abi3`) keep to it? What they take of Python by name.

The names, each with the Python since which the stable ABI has it, are those of CPython's `Misc/stable_abi.toml`, of
which the package `abi3info` is a copy. abi3audit judges by it too, one file at a time: here, what another library of
the wheel gives is not taken of Python.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache

from farm.wheel.contents import Contents
from farm.wheel.imports import Answer, resolve
from farm.wheel.pesymbols import DllSymbols
from farm.wheel.report import Finding
from farm.wheel.symbols import Symbols

_OF_PYTHON = re.compile(r"_?Py_?[A-Z]\w*")
_OF_ONE = re.compile(r"\.(?:cpython-|cp)\d[^/]*$")
# What comes from there has names that are not known here.
_ELSEWHERE = (Answer.MISSING, Answer.EXCLUDED, Answer.DEPENDENCY, Answer.UNREACHABLE)
_MOST = 5


def beyond_stable(contents: Contents, minor: int, tag: str, exclude: Sequence[str]) -> Iterator[Finding]:
    """What libraries take that some Python from 3.`minor` on need not have."""
    given = frozenset[str]().union(
        *(each.defined if isinstance(each, Symbols) else each.exports for each in contents.symbols.values())
    )
    closed = all(need.answer not in _ELSEWHERE for need in resolve(contents.libraries, exclude, contents.dependencies))
    known = _since()
    # A later Python has names that are not known here.
    closed = closed and minor <= max(known.values())
    for library in contents.libraries:
        # What is named after one Python is refused for that.
        if not library.is_loadable or _OF_ONE.search(library.path):
            continue
        taken = _taken(contents.symbols.get(library.path)) - given
        later = sorted(name for name in taken if known.get(name, 0) > minor)
        if later:
            names = _some([f"{name} (3.{known[name]})" for name in later])
            yield Finding(
                check="abi",
                where=library.path,
                what=f"takes {names}, which the stable ABI has since these versions; {tag} begins with 3.{minor}",
                why="an older Python need not have them: importing or calling fails there, on Windows always",
                fix="compile with Py_LIMITED_API of the tag's Python, or give the wheel the tag and Requires-Python of "
                f"the newest of them (cp3{max(known[name] for name in later)}-abi3)",
            )
        outside = sorted(taken - known.keys())
        if closed and outside:
            yield Finding(
                check="abi",
                where=library.path,
                what=f"takes {_some(outside)}, which is not in the stable ABI",
                why="the wheel is for every later Python, and any of them may lack it",
                fix="compile with Py_LIMITED_API, or build a wheel for each Python without it (cp311-cp311)",
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(name[:100] for name in names[:_MOST]) + more


def _taken(symbols: Symbols | DllSymbols | None) -> frozenset[str]:
    if symbols is None:
        return frozenset()
    if isinstance(symbols, DllSymbols):
        names = symbols.imports.get("python3.dll", frozenset[str]())
    else:
        names = frozenset(name for name, (file, _) in symbols.undefined.items() if not file)
    return frozenset(filter(_OF_PYTHON.fullmatch, names))


@cache
def _since() -> dict[str, int]:
    """Each name of the stable ABI: the minor version of the Python 3 that it came with."""
    from abi3info import DATAS, FUNCTIONS  # noqa: PLC0415 (slow to import, and needed for few wheels)

    return {symbol.name: each.added.minor for table in (FUNCTIONS, DATAS) for symbol, each in table.items()}
