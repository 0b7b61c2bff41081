"""What loaders put for `$ORIGIN`, `$LIB` and `$PLATFORM` in a RUNPATH or a needed file's path (ld.so(8))."""

import posixpath
import re
from collections.abc import Iterable
from enum import Enum

from farm.wheel.elfloaders import elf_loaders
from farm.wheel.needs import installed_path

# Stands for site-packages and the folder above it: no entry holds a NUL, so none names them but by $ORIGIN.
ABOVE = "/\0"
SITE = f"{ABOVE}/site"
# A name ends where no letter of it could follow (glibc, elf/dl-load.c: is_dst).
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")


class System(Enum):
    """Systems that differ in what their loader puts for $LIB and $PLATFORM."""

    FEDORA = "fedora"
    DEBIAN = "debian"
    MUSL = "musl"  # knows $ORIGIN alone


def systems(entries: Iterable[str], *, musl: bool) -> tuple[System, ...]:
    """Those on which such entries and names may lead to different folders."""
    if musl:
        return (System.MUSL,)
    differ = any("ORIGIN" not in found[0] for entry in entries for found in _TOKEN.finditer(entry))
    return (System.FEDORA, System.DEBIAN) if differ else (System.FEDORA,)


def expanded(member: str, entry: str, machine: str, system: System) -> str:
    """An entry as the loader reads it, in normal form where it begins at `SITE` or at the root of the system."""
    path = _TOKEN.sub(lambda found: _value(found[1] or found[2], member, machine, system) or found[0], entry)
    return posixpath.normpath(path) if path.startswith("/") else path


def _value(name: str, member: str, machine: str, system: System) -> str | None:
    """What is put for ORIGIN, LIB or PLATFORM; None: nothing, or it is not known."""
    if name == "ORIGIN":
        return posixpath.join(SITE, posixpath.dirname(installed_path(member)))
    if system is System.MUSL or (loader := elf_loaders().get(machine)) is None:
        return None
    if name == "LIB":
        return loader.lib[system.value]
    # It depends on the CPU, not on the system: where two systems are asked about, both values are.
    return loader.platform[0 if system is System.FEDORA else -1] if loader.platform else None


def inside(member: str, entry: str, machine: str, system: System) -> str | None:
    """Where an entry, or a needed file with a path, lies below site-packages; None where it lies elsewhere."""
    path = expanded(member, entry, machine, system)
    return path[len(SITE) + 1 :] if path == SITE or path.startswith(f"{SITE}/") else None
