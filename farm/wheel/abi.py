"""Is a wheel for the Python that its tags name? Suffixes of extension modules, and the Python library they load.

Sources: PEP 3149 and PEP 720 (suffixes), PEP 384 (abi3), CPython's `importlib.machinery.EXTENSION_SUFFIXES` and
`PC/pyconfig.h` (python311.dll, python3.dll).
"""

import posixpath
import re
from collections.abc import Iterator

from farm.wheel.contents import Contents
from farm.wheel.library import Library
from farm.wheel.report import Check, Finding

SUFFIX = re.compile(
    r"\.(?P<tag>cpython-(?P<cpython>\d{2,4}[tdmu]*)|cp(?P<cp>\d{2,4}[td]*)|(?P<abi3>abi3))"
    r"(-(?P<platform>[\w-]+))?\.(so|pyd)",
)
_PYTHON_DLL = re.compile(r"python(?P<version>3\d{1,2})(?P<flags>t?(_d)?)\.dll", re.IGNORECASE)
_PYTHON_SO = re.compile(r"libpython3\.(?P<minor>\d{1,2})(?P<flags>[tdm]*)\.so(\.[\d.]+)?")
_MACHINES = {
    "x86_64": ("x86_64",),
    "aarch64": ("aarch64",),
    "amd64": ("win_amd64",),
    "arm64": ("win_arm64",),
}


def check_abi(contents: Contents, tags: frozenset[str]) -> Check:
    """Each extension module can be imported by each Python that a tag names, and loads no other Python."""
    pairs = {(python, abi) for python, abi, _ in (tag.split("-") for tag in tags)}
    findings = []
    modules = 0
    for library in contents.libraries:
        if not library.is_loadable:
            continue
        match = SUFFIX.search(posixpath.basename(library.path))
        modules += match is not None
        wrong = [*_suffix(match, library, pairs), *_python_of(library, pairs)]
        findings += [
            Finding(
                check="abi",
                where=library.path,
                what=what,
                why="importing it fails, or it runs in a Python of another ABI and crashes",
                fix="build the wheel with the Python that the tag names; never retag a binary wheel by hand",
            )
            for what in wrong
        ]
    note = f"{modules} extension modules named after their Python"
    return Check(id="abi", status="failed" if findings else "passed", findings=tuple(findings), note=note)


def _suffix(match: re.Match[str] | None, library: Library, pairs: set[tuple[str, str]]) -> Iterator[str]:
    if match is None:
        return
    suffix = match[0]
    for python, abi in sorted(pairs):
        if not _importable(match, python, abi):
            yield f"its suffix {suffix} is not one that {python}-{abi} imports"
    wanted = _MACHINES.get(library.machine)
    platform = (match["platform"] or "").replace("-", "_")
    if wanted and platform and not any(word in platform for word in wanted):
        yield f"its suffix {suffix} names another machine than {library.machine}, which it is for"


def _importable(match: re.Match[str], python: str, abi: str) -> bool:
    """True if the interpreter of a tag looks for this suffix.

    A wheel for any Python (`py3-none`) may hold modules for some: its package chooses.
    """
    if python.startswith("py") or abi == "none":
        return True
    if match["abi3"]:
        return python.startswith("cp")
    version = match["cpython"] or match["cp"]
    if abi == "abi3":  # only one of the Pythons that the tag is for could import it
        return False
    # m (pymalloc) and u (wide Unicode), flags of PEP 3149, do not count: CPython 3.8 and newer has neither.
    return python.startswith("cp") and (version or "").rstrip("mu") == abi.removeprefix("cp").rstrip("mu")


def _python_of(library: Library, pairs: set[tuple[str, str]]) -> Iterator[str]:
    for name in (*library.needed, *library.delay_needed):
        dll, so = _PYTHON_DLL.fullmatch(name), _PYTHON_SO.fullmatch(name)
        if dll:
            version, flags = dll["version"], dll["flags"].lower()
        elif so:
            version, flags = "3" + so["minor"], so["flags"]
        else:
            continue
        for python, abi in sorted(pairs):
            if python.startswith("py") or abi == "none":
                continue
            if abi in ("abi3", "abi3t"):
                yield f"loads {name}, the library of one Python; {python}-{abi} is for many (python3.dll)"
            elif python.startswith("cp") and (version, "t" in flags) != (
                python.removeprefix("cp"),
                abi.endswith("t"),
            ):
                yield f"loads {name}, another Python's library than that of {python}-{abi}"
