"""Where an ELF file looks for libraries, entry by entry: what `verify` refuses there, and repair takes out."""

import posixpath
import re
from fnmatch import fnmatchcase

from farm.wheel.needs import installed_path
from farm.wheel.policy import defaults


def foreign(member: str, entry: str) -> str | None:
    """Why an entry of a wheel's library leads elsewhere than into site-packages; None where it stays inside.

    Args:
        member: The library's name in the wheel.
        entry: Of its RUNPATH or RPATH, as it stands there (ld.so(8)).
    """
    folder = posixpath.dirname(installed_path(member))
    depth = len(folder.split("/")) if folder else 0
    rest = re.sub(r"^\$(ORIGIN|\{ORIGIN\})(?=/|$)", "", entry)
    # As if $ORIGIN were so many folders deep: a path that climbs higher begins with `..`.
    inside = posixpath.normpath("/".join(["x"] * depth) + rest) if depth else posixpath.normpath("." + rest)
    if any(fnmatchcase(entry, pattern) for pattern in defaults("build_folders")):
        return None
    if not entry:
        return "an empty entry in its RUNPATH: the folder in which the program happens to be started"
    if rest == entry and entry.startswith("/"):
        return f"its RUNPATH names {entry}, a folder of the machine that built it"
    if rest == entry:
        return f"its RUNPATH names {entry}, relative to the folder in which the program happens to be started"
    if inside == ".." or inside.startswith("../"):
        return f"its RUNPATH {entry} leads out of site-packages"
    return None
