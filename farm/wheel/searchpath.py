"""Where an ELF file looks for libraries, entry by entry: what `verify` refuses there, and repair takes out."""

import posixpath
import re

from farm.wheel.needs import installed_path

# PyPA's manylinux images: RUNPATHs of official wheels name folders in it, and no user's machine has them.
_BUILD_IMAGE = "/opt/_internal/"
# Stands for site-packages and the folder above it: no entry holds a NUL, so none names them but by $ORIGIN.
_ABOVE = "/\0"
_SITE = f"{_ABOVE}/site"
# A name ends where no letter of it could follow (glibc, elf/dl-load.c: is_dst).
_ORIGIN = re.compile(r"\$(?:\{ORIGIN\}|ORIGIN(?![A-Za-z0-9_]))")


def _expanded(member: str, entry: str) -> str:
    """An entry with the folder of its library for $ORIGIN, in normal form where it is absolute."""
    folder = posixpath.join(_SITE, posixpath.dirname(installed_path(member)))
    path = _ORIGIN.sub(lambda _: folder, entry)
    return posixpath.normpath(path) if path.startswith("/") else path


def inside(member: str, entry: str) -> str | None:
    """Where an entry, or a needed file with a path, leads below site-packages; None where it leads elsewhere."""
    path = _expanded(member, entry)
    return path[len(_SITE) + 1 :] if path == _SITE or path.startswith(f"{_SITE}/") else None


def foreign(member: str, entry: str) -> str | None:
    """Why an entry of a wheel's library leads elsewhere than into site-packages; None where it stays inside.

    Args:
        member: The library's name in the wheel.
        entry: Of its RUNPATH or RPATH, as it is written there (ld.so(8)).
    """
    if entry.startswith(_BUILD_IMAGE):
        return None
    if not entry:
        return "an empty entry in its RUNPATH: the folder in which the program happens to be started"
    path = _expanded(member, entry)
    if not path.startswith("/"):
        return f"its RUNPATH names {entry}, relative to the folder in which the program happens to be started"
    if entry.startswith("/"):
        return f"its RUNPATH names {entry}, a folder of the machine that built it"
    # Official wheels of jaxlib miscount so. It is beside Python's own modules, from where the package itself would be
    # imported if it lay there: who can write there needs no RUNPATH.
    package = installed_path(member).split("/")[0]
    if not f"{path}/".startswith((f"{_SITE}/", f"{_ABOVE}/{package}/")):
        return f"its RUNPATH {entry} leads out of site-packages"
    return None
