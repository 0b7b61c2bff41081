"""Where an ELF file looks for libraries, entry by entry: what `verify` refuses there, and repair takes out."""

import posixpath
import re
from collections.abc import Iterable
from enum import Enum
from fnmatch import fnmatchcase

from farm.wheel.needs import installed_path
from farm.wheel.policy import defaults

# Stands for site-packages and the folder above it: no entry holds a NUL, so none names them but by $ORIGIN.
_ABOVE = "/\0"
_SITE = f"{_ABOVE}/site"
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


def _expanded(member: str, entry: str, machine: str, system: System) -> str:
    values = {"ORIGIN": posixpath.join(_SITE, posixpath.dirname(installed_path(member)))}
    if system is not System.MUSL:
        multiarch = f"lib/{_MULTIARCH.get(machine, f'{machine}-linux-gnu')}"
        values["LIB"] = multiarch if system is System.DEBIAN else _LIB.get(machine, "lib64")
        if machine in _PLATFORM:
            values["PLATFORM"] = _PLATFORM[machine][system.value]
    path = _TOKEN.sub(lambda found: values.get(found[1] or found[2], found[0]), entry)
    return posixpath.normpath(path) if path.startswith("/") else path


def inside(member: str, entry: str, machine: str, system: System) -> str | None:
    """Where an entry, or a needed file with a path, lies below site-packages; None where it lies elsewhere."""
    path = _expanded(member, entry, machine, system)
    return path[len(_SITE) + 1 :] if path == _SITE or path.startswith(f"{_SITE}/") else None


def foreign(member: str, entry: str) -> str | None:
    """Why an entry of a wheel's library leads elsewhere than into site-packages; None where it stays inside.

    Args:
        member: The library's name in the wheel.
        entry: Of its RUNPATH or RPATH, as it stands there (ld.so(8)).
    """
    if any(fnmatchcase(entry, pattern) for pattern in defaults("build_folders")):
        return None
    if not entry:
        return "an empty entry in its RUNPATH: the folder in which the program happens to be started"
    path = _expanded(member, entry, "", System.FEDORA)
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
