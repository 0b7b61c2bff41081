#!/usr/bin/env python3
"""Write `farm/wheel/python_symbols.txt`: the names of Python's C API, by version.

    tools/python_symbols.py 3.9=FOLDER 3.11=FOLDER … > farm/wheel/python_symbols.txt

Each FOLDER holds one version: the unpacked Debian packages `libpython3.N` (whose exported names
are read by nm) and `libpython3.N-dev` (in whose headers stand names that only other builds export,
such as those of free-threaded ones). The stable ABI comes from the package `abi3info` (MIT), which
is made from CPython's `Misc/stable_abi.toml`; it has to be installed.
"""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import abi3info  # type: ignore[import-not-found]

_DECLARED = re.compile(r"\bPyAPI_(?:FUNC|DATA)\([^)]*\)\s*\*?\s*(?:const\s+)?(_?Py\w+)")
_NAME = re.compile(r"_?Py\w+")


def exported(library: Path) -> set[str]:
    """Read the names that a libpython exports."""
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = {line.split()[0].partition("@")[0] for line in lines}
    return {name for name in names if _NAME.fullmatch(name)}


def declared(folder: Path) -> set[str]:
    """Read the names that the headers of a folder declare as exported."""
    names: set[str] = set()
    for header in folder.rglob("*.h"):
        names.update(_DECLARED.findall(header.read_text(encoding="utf-8", errors="replace")))
    return names


def stable() -> dict[str, str]:
    """The names of the stable ABI, each with the minor version since when; `w` behind it: on
    Windows alone.
    """
    since = {}
    for table in (abi3info.FUNCTIONS, abi3info.DATAS):
        for symbol, row in table.items():
            on_windows = row.ifdef is not None and row.ifdef.name == "MS_WINDOWS"
            since[symbol.name] = f"{row.added.minor}{'w' if on_windows else ''}"
    return since


def main(arguments: list[str]) -> None:
    by_version: dict[int, set[str]] = {}
    for argument in arguments:
        python, _, folder = argument.partition("=")
        minor = int(python.removeprefix("3."))
        [library] = sorted(Path(folder).rglob(f"libpython3.{minor}.so.1.0"))
        by_version[minor] = exported(library) | declared(Path(folder))
    since = stable()
    versions = sorted(by_version)
    print("# Names of Python's C API: the first and the last version (3.N) that was looked at and")
    print("# has it, then since when it is in the stable ABI (- is not; w: on Windows alone).")
    print(
        "# Written by tools/python_symbols.py from Debian's libpython3.N and its headers and from"
    )
    print(f"# abi3info {version('abi3info')} (CPython's Misc/stable_abi.toml).")
    print("# versions:", *versions)
    for name in sorted(since.keys() | set().union(*by_version.values())):
        having = [minor for minor in versions if name in by_version[minor]]
        first, last = (having[0], having[-1]) if having else ("-", "-")
        print(name, first, last, since.get(name, "-"))


if __name__ == "__main__":
    main(sys.argv[1:])
