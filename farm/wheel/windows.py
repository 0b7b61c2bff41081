"""Facts about Windows: the DLLs that a machine has without the wheel, and those that are loaded by name.

Lists: `windows.yaml`, and delvewheel's list of Windows' own DLLs.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from farm.base import yamlfile
from farm.base.errors import InfrastructureError
from farm.wheel.archive import Buffer

Owner = Literal["driver", "python", "vc runtime", "system"]
_MAX_MENTIONS = 10_000
_LONGEST = 64
_WILD = frozenset("*?[")
# Microsoft, "Windows API sets": names that stand for functions of Windows' own DLLs. Those of the C runtime are known.
_API_SET = re.compile(r"(?:api-ms-(?!win-crt-)|ext-ms-)[a-z0-9-]+-l[0-9]+-[0-9]+-[0-9]+\.dll")
_CRT = re.compile(
    r"api-ms-win-crt-(?:conio|convert|environment|filesystem|heap|locale|math|multibyte|private|process|runtime|stdio|"
    r"string|time|utility)-l1-1-0\.dll"
)


class _Lists(NamedTuple):
    system: tuple[str, ...]
    driver: tuple[str, ...]
    python: tuple[str, ...]
    runtime: tuple[str, ...]
    brought_along: tuple[str, ...]
    openmp: tuple[str, ...]
    folders: tuple[str, ...]
    loaded_by_name: tuple[tuple[str, tuple[str, ...]], ...]  # (in which file, names)


@cache
def _lists() -> _Lists:
    raw = yamlfile.plain(Path(__file__).with_name("windows.yaml"))
    by_name = tuple((rule["in"], tuple(rule["names"])) for rule in raw.pop("loaded_by_name"))
    return _Lists(**{key: tuple(names) for key, names in raw.items()}, loaded_by_name=by_name)


@cache
def windows_dlls() -> frozenset[str]:
    """Windows' own DLLs of 64-bit x86, in lower case: what delvewheel leaves out of every wheel.

    Raises:
        InfrastructureError: The installed delvewheel keeps the list elsewhere.
    """
    try:
        lists = import_module("delvewheel._dll_list")
        return frozenset(name.lower() for name in lists.ignore_names[lists.MachineType.AMD64])
    except (ImportError, AttributeError, KeyError) as error:
        raise InfrastructureError(
            f"the list of Windows' DLLs cannot be read from delvewheel ({error})",
            hint="pip install 'delvewheel>=1.13.1'",
        ) from error


@lru_cache(maxsize=10_000)
def owner(name: str) -> Owner | None:
    """Who brings a DLL to every machine that a wheel may be installed on; None: the wheel has to."""
    lists = _lists()
    known: tuple[tuple[Owner, tuple[str, ...]], ...] = (
        ("driver", lists.driver),
        ("python", lists.python),
        ("vc runtime", lists.runtime),
        ("system", lists.system),
    )
    low = name.lower()
    for who, patterns in known:
        if fits(low, patterns):
            return who
    return "system" if _CRT.fullmatch(low) or _API_SET.fullmatch(low) or low in windows_dlls() else None


def of_the_machine() -> tuple[str, ...]:
    """Name patterns of DLLs that go into no wheel: the driver's, Python's, the Visual C++ runtime, newer Windows'."""
    return (*_lists().driver, *_lists().python, *_lists().runtime, *_lists().system)


def is_brought_along(name: str) -> bool:
    """True if programs may bring their own of a DLL that Windows has too."""
    return fits(name, _lists().brought_along)


def added_folders() -> tuple[str, ...]:
    """Patterns of folders below site-packages that packages add to the search for DLLs."""
    return _lists().folders


def openmp_runtimes(needed: Iterable[str]) -> list[str]:
    """The OpenMP runtimes among the DLLs that a library imports."""
    return [name for name in needed if fits(name, _lists().openmp)]


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a name fits one of the patterns, by Windows' rules: case does not count."""
    low = name.lower()
    lows = [pattern.lower() for pattern in patterns]
    # Most are names: to make regular expressions of them takes longer than all the rest.
    return low in lows or any(fnmatchcase(low, pattern) for pattern in lows if not _WILD.isdisjoint(pattern))


def loaded_by_name(data: Buffer, filename: str) -> tuple[str, ...]:
    """DLLs that a file is known to load by name, as far as their names are in it, sorted; in lower case.

    `filename` decides which names are looked for: a name in a file proves nothing about files that are not known.
    """
    wanted = tuple(name for where, names in _lists().loaded_by_name if fits(filename, (where,)) for name in names)
    found: set[str] = set()
    if wanted:
        # LoadLibraryA takes single bytes, LoadLibraryW takes UTF-16.
        for ending, step in ((b".dll", 1), (".dll".encode("utf-16-le"), 2)):
            position = -1
            for _ in range(_MAX_MENTIONS):
                position = data.find(ending, position + 1, len(data))
                if position < 0:
                    break
                name = _name_before(data[max(0, position - _LONGEST * step) : position], step)
                if fits(name + ".dll", wanted) and name + ".dll" != filename.lower():
                    found.add(name + ".dll")
    return tuple(sorted(found))


def _name_before(raw: bytes, step: int) -> str:
    """The file name, without its ending, that ends where `raw` ends; each character takes `step` bytes."""
    raw = raw[len(raw) % step :]
    characters = [raw[at : at + step] for at in range(0, len(raw), step)]
    name = ""
    for character in reversed(characters):
        letter = chr(int.from_bytes(character, "little"))
        if not (letter.isascii() and (letter.isalnum() or letter in "_-.")):
            break
        name = letter + name
    return name.lower()
