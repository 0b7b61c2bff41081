"""One library needs another: the words for it, the same for every operating system."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

# `libc.so` is how musl calls itself, and what cross compilers link with; glibc has a linker script of this name.
_MUSL = r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1|libc\.so"
LOADER = r"(?:ld-linux[-\w]*|ld64)\.so\.\d+"
"""The names of glibc's loader, a regular expression: it is on every system, so no policy lists it."""
_GLIBC = rf"libc\.so\.6|{LOADER}"
_MUSL_MODULE = r"-linux-musl(eabihf)?\.so$"  # PEP 720: the suffix of extension modules


class Answer(StrEnum):
    """Where a needed library comes from."""

    WHEEL = "wheel"
    DEPENDENCY = "dependency"  # another wheel, which METADATA requires, brings it
    SYSTEM = "system"
    PYTHON = "python"  # the interpreter brings it (Windows)
    RUNTIME = "vc runtime"  # Microsoft's redistributable package, which users install
    DRIVER = "driver"  # the GPU driver's (Windows; on Linux it is excluded)
    EXCLUDED = "excluded"
    UNREACHABLE = "unreachable"  # in the wheel, but the loader does not look there
    MISSING = "missing"


class Need(NamedTuple):
    """`who` needs `name`; `by` is the member that answers or, if unreachable, could.

    `when`: `load`; `call` for delay loads; `name` for what the code asks LoadLibrary for.
    """

    who: str
    name: str
    answer: Answer
    by: str | None = None
    when: str = "load"


def installed_path(member: str) -> str:
    """Where a member is below site-packages: `x.data/platlib/` and `x.data/purelib/` are unpacked there."""
    parts = member.split("/", 2)
    if len(parts) == 3 and parts[0].endswith(".data") and parts[1] in ("platlib", "purelib"):
        return parts[2]
    return member


def is_musl_library(name: str) -> bool:
    """True if this is musl itself: its library of C, or its loader."""
    return re.fullmatch(_MUSL, name) is not None


def for_musl(member: str, needed: Iterable[str]) -> bool:
    """True if a library is for musl (Alpine Linux): it needs musl, or no libc and has a module's name for musl."""
    names = list(needed)
    if any(map(is_musl_library, names)):
        return True
    return re.search(_MUSL_MODULE, member) is not None and not any(re.fullmatch(_GLIBC, name) for name in names)
