"""Packs a package of the farm into one file that runs on a machine without the farm: `python
FILE.pyz …`.

    python -m farm.base.zipapps farm.smoke.probe.main:main -o probe.pyz

The file is a zip application (PEP 441). The package must need the standard library only and import
its own modules relatively. The same sources give the same bytes; a Python without zlib reads them
as well. This module itself runs on Python 3.7 and needs nothing of the farm, so that a checkout on
any machine can pack.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHEBANG = b"#!/usr/bin/env python3\n"
OLDEST = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold
MAIN = "import sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"


def pack(entry: str, carried: tuple[str, ...] = ()) -> bytes:
    """The file for an entry point: module and function to call; a module called `main` brings its
    package along.

    Of a package also files of data; compiled Python does not. `carried`: files of the farm, as
    paths below the repository, that it imports by their own names.
    """
    path, _, function = entry.partition(":")
    package, _, module = path.rpartition(".")
    folder = ROOT / package.replace(".", "/")
    if module == "main":
        name = f"farm_{folder.name}"
        members = _files_of(folder, name)
        name += ".main"
    else:
        name = f"farm_{module}"
        members = {f"{name}.py": (folder / f"{module}.py").read_bytes()}
    for file in carried:
        members[file] = (ROOT / file).read_bytes()
    members["__main__.py"] = MAIN.format(module=name, function=function).encode()
    packed = io.BytesIO()
    packed.write(SHEBANG)
    # A zip is read from its end, so a line for the shell may stand before it.
    with zipfile.ZipFile(packed, "a") as archive:
        for inside, data in sorted(members.items()):
            archive.writestr(zipfile.ZipInfo(inside, OLDEST), data)
    return packed.getvalue()


def _files_of(folder: Path, name: str) -> dict[str, bytes]:
    """The files of a package, each by its place below `name`."""
    members = {}
    for file in folder.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            inside = file.relative_to(folder).as_posix()
            members[f"{name}/{inside}"] = file.read_bytes()
    return members


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m farm.base.zipapps",
        description="One file for a machine without the farm.",
    )
    parser.add_argument(
        "entry", metavar="PACKAGE.MODULE:FUNCTION", help="such as farm.smoke.probe.main:main"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    args.output.write_bytes(pack(args.entry))
    args.output.chmod(0o755)


if __name__ == "__main__":
    main()
