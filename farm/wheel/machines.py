"""Libraries that say in their path which machine they are for: the package chooses, or another process loads them."""

import posixpath
import re
from collections.abc import Iterable

from farm.wheel.abi import SUFFIX
from farm.wheel.library import Library

# Not behind other letters and digits, unlike the longer words: "prefix86" says nothing.
_X86 = r"(?<![a-z0-9])(?:x86(?![-_]?64)|i[3-6]86|win32)|(?<![0-9])32[-_]?bit"
_X86_64 = r"(?<![a-z0-9])(?:x64|x86[-_]64|win64)|amd64|(?<![0-9])64[-_]?bit"
_ARM64 = r"arm64|aarch64"
_NAMES = {"win32": _X86, "i686": _X86, "amd64": _X86_64, "x86_64": _X86_64, "arm64": _ARM64, "aarch64": _ARM64}
"""By `Library.machine`."""


def says_its_machine(library: Library) -> bool:
    """Whether its name or a folder says for which machine it is, so that it may lie in a wheel for another one.

    debugpy has another process load `attach_x86.dll`, sounddevice chooses between `libportaudio32bit.dll` and others.
    Never an extension module, which the interpreter itself loads. What needs such a library for itself finds none:
    names are looked for among the libraries of a machine.
    """
    path = library.path.lower()
    words = _NAMES.get(library.machine or "")
    if not words or path.endswith(".pyd") or SUFFIX.search(posixpath.basename(path)):
        return False
    return re.search(rf"(?:{words})(?![a-z0-9])", path) is not None


def chosen_by_machine(libraries: Iterable[Library]) -> frozenset[str]:
    """Paths of what a wheel for every machine may hold: libraries for several, each of which says its own."""
    found = [library for library in libraries if library.is_loadable and says_its_machine(library)]
    several = len({library.machine for library in found}) > 1  # as clr_loader's
    return frozenset(library.path for library in found) if several else frozenset()
