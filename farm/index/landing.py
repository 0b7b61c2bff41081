"""Where installers put each member of a wheel, by the rules of pip and uv, on Linux and Windows.

Refused is what would land outside of the package's own places, replace an interpreter, the
environment's configuration or an installer, or be installed differently by pip and by uv. Sources:
the wheel format (packaging.python.org, "Binary distribution format"), the entry points
specification, pip's `operations/install/wheel.py`, uv's `install-wheel-rs`. pip 26.1 wrote scripts
of entry points outside of the environment (CVE-2026-8643).
"""

import configparser
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

SCHEMES = frozenset({"purelib", "platlib", "headers", "scripts", "data"})
"""Folders of `.data` that installers know; another is an error of pip's."""

_SCRIPT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", re.ASCII)
_ENTRY_POINT = re.compile(
    r"[^\W\d]\w*(\.[^\W\d]\w*)*\s*:\s*[^\W\d]\w*(\.[^\W\d]\w*)*\s*(\[[\w\s.,-]*\])?"
)
"""`package.module:function`, with extras or not; both installers write it into a program."""
_INTERPRETER = re.compile(
    r"(pythonw?|pypy|graalpy|pydoc|idle)[0-9.]*t?d?(-config)?"
    r"|(de)?activate(_this)?",
    re.IGNORECASE,
)
"""Programs of an interpreter or a virtual environment, without the ending."""
_PROGRAM_ENDING = re.compile(
    r"(\.(exe|bat|cmd|com|ps1|sh|csh|fish|nu|xsh|py|pyw))+$|-script\.pyw?$", re.IGNORECASE
)
_PROGRAM_FOLDERS = frozenset({"bin", "scripts"})
_STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})
"""Python imports them at each start."""
_INSTALLERS = {
    "pip": "pip",
    "uv": "uv",
    "setuptools": "setuptools",
    "pkg_resources": "setuptools",
    "_distutils_hack": "setuptools",
    "wheel": "wheel",
}
"""Packages that run while others are installed, and the project whose they are."""
_METADATA_FOLDERS = (".dist-info", ".egg-info", ".data")


class Fault(NamedTuple):
    """What is wrong with a member."""

    member: str
    why: str


class Landing(NamedTuple):
    """Where a member is installed: `scheme` is one of `SCHEMES`, `path` is below its folder."""

    scheme: str
    path: str


def landing_of(member: str, stem: str, *, purelib: bool) -> Landing | Fault:
    """Where installers put a member.

    Args:
        member: Its name in the archive.
        stem: `name-version` of the wheel's own folders.
        purelib: Root-Is-Purelib of WHEEL.
    """
    top, _, rest_of_name = member.partition("/")
    if not top.lower().endswith(".data"):
        return Landing("purelib" if purelib else "platlib", member)
    if top != f"{stem}.data":
        return Fault(
            member, f"pip unpacks {top!r:.80} and uv does not: the wheel's own is {stem}.data"
        )
    scheme, _, path = rest_of_name.partition("/")
    if scheme not in SCHEMES or not path:
        return Fault(member, f"installers have no place for it: only {', '.join(sorted(SCHEMES))}")
    return Landing(scheme, path)


def member_faults(
    members: Iterable[str], stem: str, project: str, *, purelib: bool
) -> Iterator[Fault]:
    """What is wrong with where the members of a wheel are installed.

    Args:
        members: Names of all files in the archive.
        stem: `name-version` of the wheel's own folders.
        project: The normalised name of the project.
        purelib: Root-Is-Purelib of WHEEL.
    """
    landed: dict[tuple[str, str], str] = {}
    for member in members:
        landing = landing_of(member, stem, purelib=purelib)
        if isinstance(landing, Fault):
            yield landing
            continue
        why = _fault_of(landing, stem, project)
        if why:
            yield Fault(member, why)
        scheme = "lib" if landing.scheme in {"purelib", "platlib"} else landing.scheme
        place = (scheme, landing.path.lower())
        first_member = landed.setdefault(place, member)
        if first_member != member:
            yield Fault(member, f"is installed at the same place as {first_member!r:.200}")


def _fault_of(landing: Landing, stem: str, project: str) -> str:
    """Why a file may not be installed there; empty if it may."""
    match landing.scheme:
        case "scripts":
            return _program_fault(landing.path)
        case "data":
            return _data_fault(landing.path)
        case "purelib" | "platlib":
            return _library_fault(landing.path, stem, project)
    return ""  # headers land in a folder of the project's own


def _program_fault(path: str) -> str:
    if not _SCRIPT_NAME.fullmatch(path) or path.endswith("."):
        return "is no plain file name for a program"
    name = _PROGRAM_ENDING.sub("", path)
    if _INTERPRETER.fullmatch(name):
        return "replaces a program of the interpreter or the environment"
    return ""


def _data_fault(path: str) -> str:
    """Of a file below the environment's own folder."""
    parts = [part.lower() for part in PurePosixPath(path).parts]
    if parts[-1] == "pyvenv.cfg" or parts[-1].endswith("._pth"):
        return "replaces the environment's configuration"
    if parts[0] in _PROGRAM_FOLDERS:
        return _program_fault(path.partition("/")[2])
    is_library = parts[0] in {"lib", "lib64"} and len(parts) > 1
    if not is_library:
        return ""
    if path.endswith(".py") or parts[1].startswith(("python", "site-packages")):
        return "is in the folder of other projects or of the standard library"
    return ""


def _library_fault(path: str, stem: str, project: str) -> str:
    """Of a file in site-packages."""
    top = path.partition("/")[0].lower()
    if top.endswith(_METADATA_FOLDERS) and top != f"{stem}.dist-info".lower():
        return "is in the metadata of another project"
    module = top.partition(".")[0]
    if module in _STARTUP_MODULES:
        return "is imported by Python at each start"
    owner = _INSTALLERS.get(top)
    if owner is not None and owner != project:
        return f"replaces files of {owner}"
    return ""


def entry_point_faults(text: str) -> Iterator[str]:
    """What is wrong with the programs that `entry_points.txt` asks installers to write."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    # Names are as they are written; the default would make them lower case.
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        yield f"cannot be read: {type(error).__name__}"
        return
    programs = set[str]()
    for group in ("console_scripts", "gui_scripts"):
        if not parser.has_section(group):
            continue
        for name, target in parser.items(group):
            why = _program_fault(name)
            if why:
                yield f"{name!r:.80} {why}"
            elif not _ENTRY_POINT.fullmatch(target):
                yield f"{name}: {target!r:.80} is not module:function"
            elif name.lower() in programs:
                yield f"{name} is there twice (Windows does not tell capitals apart)"
            programs.add(name.lower())


def is_unchecked_bytecode(header: bytes) -> bool:
    """Is this the head of a `.pyc` that Python runs without a look at its source (PEP 552)?"""
    flags = int.from_bytes(header[4:8], "little")
    return flags & 0b11 == 0b01


WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul"}
    | {f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)}
)
"""Names that no folder on Windows can have."""
