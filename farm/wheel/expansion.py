"""What loaders put for `$ORIGIN`, `$LIB` and `$PLATFORM` in a RUNPATH or a needed file's path (ld.so(8))."""

import posixpath
import re
from collections.abc import Iterable
from enum import Enum

from farm.wheel.needs import installed_path

# Stands for site-packages and the folder above it: no entry holds a NUL, so none names them but by $ORIGIN.
ABOVE = "/\0"
SITE = f"{ABOVE}/site"
# A name ends where no letter of it could follow (glibc, elf/dl-load.c: is_dst).
_TOKEN = re.compile(r"\$(?:\{(ORIGIN|LIB|PLATFORM)\}|(ORIGIN|LIB|PLATFORM)(?![A-Za-z0-9_]))")
# What glibc puts for $LIB, the folder of its own libraries: `lib64` or these, on Debian one named after the machine.
_LIB = {"i686": "lib", "armv7l": "lib", "riscv64": "lib64/lp64d"}
_MULTIARCH = {"i686": "i386-linux-gnu", "armv7l": "arm-linux-gnueabihf", "ppc64le": "powerpc64le-linux-gnu"}
# And for $PLATFORM: on x86-64 that depends on the CPU (sysdeps/x86/cpu-features.c); others are not known here.
_PLATFORM = {"x86_64": ("x86_64", "haswell"), "aarch64": ("aarch64", "aarch64")}


class System(Enum):
    """Systems that differ in what their loader puts for $LIB and $PLATFORM."""

    FEDORA = 0
    DEBIAN = 1
    MUSL = 2  # knows $ORIGIN alone


def systems(entries: Iterable[str], *, musl: bool) -> tuple[System, ...]:
    """Those on which such entries and names may lead to different folders."""
    if musl:
        return (System.MUSL,)
    differ = any("ORIGIN" not in found[0] for entry in entries for found in _TOKEN.finditer(entry))
    return (System.FEDORA, System.DEBIAN) if differ else (System.FEDORA,)


def expanded(member: str, entry: str, machine: str, system: System) -> str:
    """An entry as the loader reads it, in normal form where it begins at `SITE` or at the root of the system."""
    values = {"ORIGIN": posixpath.join(SITE, posixpath.dirname(installed_path(member)))}
    if system is not System.MUSL:
        multiarch = f"lib/{_MULTIARCH.get(machine, f'{machine}-linux-gnu')}"
        values["LIB"] = multiarch if system is System.DEBIAN else _LIB.get(machine, "lib64")
        if machine in _PLATFORM:
            values["PLATFORM"] = _PLATFORM[machine][system.value]
    path = _TOKEN.sub(lambda found: values.get(found[1] or found[2], found[0]), entry)
    return posixpath.normpath(path) if path.startswith("/") else path


def inside(member: str, entry: str, machine: str, system: System) -> str | None:
    """Where an entry, or a needed file with a path, lies below site-packages; None where it lies elsewhere."""
    path = expanded(member, entry, machine, system)
    return path[len(SITE) + 1 :] if path == SITE or path.startswith(f"{SITE}/") else None
