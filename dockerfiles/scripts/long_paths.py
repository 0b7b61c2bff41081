"""Names the paths of a folder that are too long for programs on Windows. Ends with 1 where there
are any.

Usage: long_paths.py FOLDER. cl.exe, nvcc and CMake take 259 characters, whatever LongPathsEnabled
says; git makes longer ones (core.longpaths). The build folder is not looked at: CMake shortens
the names of objects itself (CMAKE_OBJECT_PATH_MAX); the pinned Ninja takes no longer paths.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 259  # MAX_PATH is 260, with the NUL behind it
SHOWN = 20


def too_long(folder: str) -> Iterator[str]:
    """The paths of files below `folder` with more than LONGEST characters."""
    if os.name == "nt":
        beginning = "\\\\?\\"
    else:
        beginning = ""
    for where, folders, names in os.walk(beginning + str(Path(folder).absolute())):
        if ".git" in folders:
            folders.remove(".git")  # nobody but git reads it
        plain = where.removeprefix(beginning)
        if len(plain) + 1 + max(map(len, names), default=0) > LONGEST:
            yield from (path for name in names if len(path := os.path.join(plain, name)) > LONGEST)  # noqa: PTH118


def main(argv: list[str]) -> int:
    found = sorted(too_long(argv[0]))
    for path in found[:SHOWN]:
        print(f"{len(path)} characters, {LONGEST} are possible: {path}")
    if len(found) > SHOWN:
        print(f"and {len(found) - SHOWN} more")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
