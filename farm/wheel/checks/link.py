"""The check `link`: each library finds every name that it takes, looks nowhere else, and asks for
nothing that loaders refuse.
"""

import posixpath
import re
from collections.abc import Iterator

from farm.platforms.facts import split_platform, unread
from farm.wheel.checks.subject import Subject, not_run, outcome
from farm.wheel.library import Library
from farm.wheel.needs import foreign
from farm.wheel.pe import is_brought_along, owner
from farm.wheel.python_api import wrong_names
from farm.wheel.report import Check, Finding
from farm.wheel.symbols import NEWER_WINDOWS, given_names, missing_names
from farm.wheel.tags import LOADER

# The system's: a second copy in one process, or one that does not fit the kernel's or driver's
# version, crashes it.
_SYSTEM_ELF = re.compile(
    rf"{LOADER}|(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_\w+|libcuda|"
    r"libnvidia-[\w-]+)\.so(\.[\d.]+)?|"
    r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1"
)
_STATIC_TLS = 1664  # glibc, elf/dl-tls.c: TLS_STATIC_SURPLUS with the default tunables
_INTERPRETER = re.compile(rf"/lib(32|64|x32)?/({LOADER}|ld-musl-\w+\.so\.1)")
_ARM_PAGES = 64 << 10
_PYTHON_DLL = re.compile(r"python3\d*t?(_d)?\.dll")
_WINDOWS_LIBRARY = re.compile(r"\.(pyd|dll)$", re.IGNORECASE)
_LINUX_MODULE = re.compile(r"\.(abi3|cpython-3[^/]*)\.so$")


def check(subject: Subject) -> Check:
    """Check what each library takes from others, and what it asks of the loader."""
    contents = subject.contents
    findings: list[Finding] = []
    missing = missing_names(contents.libraries, subject.needs, contents.symbols, subject.tags)
    for path, problem in missing:
        findings.append(_symbols(path, problem))
    exported = given_names(contents.symbols)
    for library in subject.loadable:
        findings += _refused(library)
        findings += _shadows(library)
        symbols = contents.symbols.get(library.path)
        if symbols is None:
            continue
        for problem in wrong_names(library, symbols, exported, subject.tags):
            findings.append(_python_api(library.path, problem))
    for path in _not_libraries(subject):
        findings.append(_no_library(path))

    if not findings and not contents.libraries:
        reason = unread(subject.tags)
        if reason:
            return not_run("link", reason)
    return outcome("link", findings, f"{len(contents.symbols)} libraries looked into")


def _not_libraries(subject: Subject) -> list[str]:
    """Files with a library's name that are none: damaged, empty, or a link that was unpacked as a
    file.
    """
    if subject.policy.platform is None:
        return []
    # On Linux only extension modules: other files called .so may be linker scripts, which nothing
    # loads.
    for_linux = split_platform(subject.policy.platform)[0].in_images
    pattern = _LINUX_MODULE if for_linux else _WINDOWS_LIBRARY
    libraries = {library.path for library in subject.contents.libraries}
    named_so = filter(pattern.search, subject.contents.files)
    return [path for path in named_so if path not in libraries]


def _refused(library: Library) -> Iterator[Finding]:
    """RUNPATHs that lead out of the wheel, and requests of the file that loaders refuse."""
    for entry in dict.fromkeys(library.search_path):
        if problem := foreign(library.path, entry):
            yield _runpath(library.path, problem)
    if library.executable_stack:
        yield _executable_stack(library.path)
    if library.static_tls > _STATIC_TLS:
        yield _static_tls(library.path, library.static_tls)
    if library.interpreter and not _INTERPRETER.fullmatch(library.interpreter):
        yield _interpreter(library.path, library.interpreter)
    if library.machine == "aarch64" and library.page_size < _ARM_PAGES:
        yield _page_size(library.path, library.page_size)


def _shadows(library: Library) -> Iterator[Finding]:
    """A copy of what the machine has itself."""
    name = posixpath.basename(library.path)
    lower = name.lower()
    whose = None
    if library.format == "elf":
        if _SYSTEM_ELF.fullmatch(name):
            whose = "the system's"
    elif _PYTHON_DLL.fullmatch(lower):
        whose = "Python's"
    elif not is_brought_along(lower):
        whose = {"system": "Windows'", "driver": "the GPU driver's"}.get(owner(lower) or "")
    if whose:
        yield _shadow(library.path, whose, name)


def _symbols(where: str, what: str) -> Finding:
    if what.endswith(NEWER_WINDOWS):
        return Finding(
            check="link",
            where=where,
            what=what,
            why="loading it fails with error 127 on each Windows whose DLL lacks the function",
            fix="compile for the oldest Windows that the wheel is for: define _WIN32_WINNT=0x0A00, "
            "or ask GetProcAddress for the function",
        )
    return Finding(
        check="link",
        where=where,
        what=what,
        why="loading it fails: error 127 on Windows, 'undefined symbol' on Linux",
        fix="build all libraries of the wheel from one tree; vendor the version that was linked "
        "against",
    )


def _python_api(where: str, what: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=what,
        why="importing it fails in a Python of the tag: 'undefined symbol', error 127 on Windows; "
        "what the stable ABI does not have may go with any release",
        fix="define Py_LIMITED_API as the oldest Python that the tag names, or give the wheel the "
        "tag of what it takes",
    )


def _no_library(where: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what="is named as a library, and is none",
        why="importing or loading it fails: error 193 on Windows, 'invalid ELF header' on Linux",
        fix="build the wheel again; look at what writes this file",
    )


def _runpath(where: str, what: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=what,
        why="the loader takes libraries from there: others than those that were tested, or "
        "someone else's",
        fix="link with an RUNPATH relative to $ORIGIN that stays inside site-packages, or none",
    )


def _executable_stack(where: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what="asks for an executable stack (by PT_GNU_STACK, or without one)",
        why="glibc 2.41 and newer refuse to load it, as systems with SELinux do",
        fix="link with -Wl,-z,noexecstack; assembly files need a .note.GNU-stack section",
    )


def _static_tls(where: str, size: int) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=f"has {size} bytes of thread-local variables in the initial-exec model",
        why=f"glibc keeps {_STATIC_TLS} bytes for all libraries that are loaded later: 'cannot "
        "allocate memory in static TLS block'",
        fix="compile it with -ftls-model=global-dynamic, or keep large buffers in allocated memory",
    )


def _interpreter(where: str, loader: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=f"is a program for the loader {loader}, which other machines do not have",
        why="starting it fails: 'No such file or directory'",
        fix="link it on a system whose loader has its usual place, or patchelf --set-interpreter",
    )


def _page_size(where: str, size: int) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=f"is for pages of {max(size, 1) / 1024:g} KiB at most",
        why="kernels for Arm have pages of 4, 16 or 64 KiB; larger ones refuse it: ELF load "
        "command alignment not page-aligned",
        fix="link with -Wl,-z,max-page-size=65536, and edit it with patchelf --page-size 65536",
    )


def _shadow(where: str, whose: str, name: str) -> Finding:
    return Finding(
        check="link",
        where=where,
        what=f"is a copy of {whose} own {name}",
        why="the machine has its own: two of them in one process, or one of another version, "
        "crash it",
        fix="leave it out of the wheel (--exclude)",
    )
