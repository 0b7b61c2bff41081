"""Check of what the loader makes of a wheel's libraries once it has found them."""

import posixpath
import re

from farm.platforms.facts import split_platform, unread
from farm.wheel.contents import Contents
from farm.wheel.imports import resolve
from farm.wheel.library import Library
from farm.wheel.link import missing_names
from farm.wheel.needs import LOADER
from farm.wheel.policy import Policy
from farm.wheel.report import Check, Finding
from farm.wheel.searchpath import foreign
from farm.wheel.windows import is_brought_along, owner

# The system's: a second copy in one process, or one that does not fit the kernel's or driver's version, crashes it.
_SYSTEM_ELF = re.compile(
    rf"{LOADER}|(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_\w+|libcuda|libnvidia-[\w-]+)\.so(\.[\d.]+)?|"
    r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1"
)
_PYTHON_DLL = re.compile(r"python3\d*t?(_d)?\.dll")
_WINDOWS_LIBRARY = re.compile(r"\.(pyd|dll)$", re.IGNORECASE)
_MODULE = re.compile(r"\.(abi3|cpython-3[^/]*)\.so$")  # others may be linker scripts


def check_link(contents: Contents, policy: Policy, tags: frozenset[str]) -> Check:
    """Each library must find every name that it takes, look nowhere else, and ask for nothing that loaders refuse."""
    needs = resolve(contents.libraries, policy.exclude, contents.dependencies)
    findings = [
        Finding(
            check="link",
            where=where,
            what=what,
            why="loading it fails: error 127 on Windows, 'undefined symbol' on Linux",
            fix="build all libraries of the wheel from one tree; vendor the version that was linked against",
        )
        for where, what in missing_names(contents.libraries, needs, contents.symbols)
    ]
    for library in contents.libraries:
        if library.is_loadable:
            findings += [*_paths(library), *_stack(library), *_shadows(library)]
    findings += _no_libraries(contents, policy)
    if not findings and not contents.libraries and (reason := unread(tags)):
        return Check(id="link", status="not_run", note=reason)
    note = f"{len(contents.symbols)} libraries looked into"
    return Check(id="link", status="failed" if findings else "passed", findings=tuple(findings), note=note)


def _no_libraries(contents: Contents, policy: Policy) -> list[Finding]:
    """Files with a library's name that are none: damaged, empty, or a link that was unpacked as a file."""
    if policy.platform is None:
        return []
    # On Linux only extension modules: other files called .so may be linker scripts, which nothing loads.
    pattern = _MODULE if split_platform(policy.platform)[0].in_images else _WINDOWS_LIBRARY
    libraries = {library.path for library in contents.libraries}
    return [
        Finding(
            check="link",
            where=path,
            what="is named as a library, and is none",
            why="importing or loading it fails: error 193 on Windows, 'invalid ELF header' on Linux",
            fix="build the wheel again; look at what writes this file",
        )
        for path in contents.files
        if path not in libraries and pattern.search(path)
    ]


def _paths(library: Library) -> list[Finding]:
    why = "the loader takes libraries from there: others than those that were tested, or someone else's"
    fix = "link with an RUNPATH relative to $ORIGIN that stays inside site-packages, or none"
    return [
        Finding(check="link", where=library.path, what=what, why=why, fix=fix)
        for entry in dict.fromkeys(library.search_path)
        if (what := foreign(library.path, entry))
    ]


def _stack(library: Library) -> list[Finding]:
    if not library.executable_stack:
        return []
    return [
        Finding(
            check="link",
            where=library.path,
            what="asks for an executable stack",
            why="glibc 2.41 and newer refuse to load it, as systems with SELinux do",
            fix="link with -Wl,-z,noexecstack; assembly files need a .note.GNU-stack section",
        )
    ]


def _shadows(library: Library) -> list[Finding]:
    name = posixpath.basename(library.path)
    low = name.lower()
    if library.format == "pe":
        if is_brought_along(low):
            return []
        whose = "Python's" if _PYTHON_DLL.fullmatch(low) else None
        whose = whose or {"system": "Windows'", "driver": "the GPU driver's"}.get(owner(low) or "")
    else:
        whose = "the system's" if _SYSTEM_ELF.fullmatch(name) else None
    if whose is None:
        return []
    why = "the machine has its own: two of them in one process, or one of another version, crash it"
    fix = "leave it out of the wheel (--exclude)"
    return [Finding(check="link", where=library.path, what=f"is a copy of {whose} own {name}", why=why, fix=fix)]
