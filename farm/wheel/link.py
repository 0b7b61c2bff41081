"""Symbols that libraries take from one another by name.

A library that is found but lacks a function that is taken from it cannot be loaded: Windows reports error 127, Linux
`undefined symbol`. What the system's libraries give is not known here. So a name is missed where it should come from a
library of the wheel or of a dependency, or where nothing but the C and C++ runtime, whose names all carry versions, is
asked besides. glibc's own names may be taken without a version, too: they are in `glibc_symbols.txt`. Of Windows'
DLLs those are known that nearly every DLL takes from: kernel32 and the C runtime (`kernel32_symbols.txt`,
`ucrt_symbols.txt`).
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources

from farm.platforms.facts import split_platform, unread
from farm.wheel.elf import Symbols
from farm.wheel.library import Contents, Library
from farm.wheel.needs import Answer, Need, foreign, resolve
from farm.wheel.pe import DllSymbols
from farm.wheel.policy import Policy
from farm.wheel.report import Check, Finding
from farm.wheel.tags import LOADER
from farm.wheel.windows import is_brought_along, owner

# All their symbols carry a version (GLIBC_2.17, GCC_3.0, GLIBCXX_3.4): what has none is not theirs.
_VERSIONED = re.compile(rf"lib(c|m|dl|rt|pthread|util)\.so\.[0-9]+|libgcc_s\.so\.1|libstdc\+\+\.so\.6|{LOADER}")
# Names of libstdc++ and libgcc_s. A library that is linked without them, but loaded with them (libtorch.so of torch
# 1.12), takes these without a version.
_CXX = re.compile(
    r"_Z[A-Z]*S[stabiod]|_Z[NTVIK]*(9__gnu_cxx|10__cxxabiv1)|_Z[nd][wal]|__cxa_|__gxx_|__dynamic_cast|_Unwind_"
)
_PYTHON = re.compile(r"_?Py")  # the interpreter gives these to extension modules
_MOST = 5
_GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1")
_LISTED = 36  # the list is of glibc 2.36, which gives all that older ones gave


def missing_names(
    libraries: Iterable[Library], needs: Iterable[Need], symbols: Mapping[str, Symbols | DllSymbols]
) -> Iterator[tuple[str, str]]:
    """(member, what it misses) of each library that the loader would refuse for a name."""
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        by_who.setdefault(need.who, []).append(need)
    given = frozenset().union(*(each.defined for each in symbols.values() if isinstance(each, Symbols)))
    for library in libraries:
        own = symbols.get(library.path)
        if library.error or not library.is_loadable:
            continue
        if isinstance(own, Symbols) and own.error:
            yield library.path, own.error
        elif isinstance(own, Symbols):
            yield from _undefined(library, own, by_who, symbols, given)
        elif own is not None:
            yield from _not_exported(library, own, by_who.get(library.path, []), symbols)


def _undefined(
    library: Library,
    own: Symbols,
    needs: Mapping[str, list[Need]],
    symbols: Mapping[str, Symbols | DllSymbols],
    given: frozenset[str],
) -> Iterator[tuple[str, str]]:
    # A name without a version may come from any library that is loaded: it is missing only if all of them are known.
    closed = _all_known(library.path, needs)
    by_name = {need.name: need.by for need in needs.get(library.path, []) if need.answer is Answer.WHEEL}
    lost: list[str] = []
    for name, (file, version) in own.undefined.items():
        # A versioned name says which library it is to come from, so that one alone is asked.
        if file:
            theirs = symbols.get(by_name.get(file) or "")
            # An empty table proves nothing.
            lacks = isinstance(theirs, Symbols) and theirs.defined and name not in theirs.defined
            if lacks or (library.machine == "x86_64" and _lacks_glibc(file, version, name)):
                lost.append(f"{name}@{version} of {file}")
        elif (
            closed
            and name not in given
            and not _PYTHON.match(name)
            and not _CXX.match(name)
            and name not in _listed("glibc_symbols.txt")
        ):
            lost.append(name)
    if lost:
        more = f" and {len(lost) - _MOST} more" if len(lost) > _MOST else ""
        yield library.path, f"undefined symbol: {', '.join(sorted(lost)[:_MOST])}{more}"


def _lacks_glibc(file: str, version: str, name: str) -> bool:
    """True if glibc has no such name of this version, as far as it is known: the list has all of 2.36 and before."""
    found = re.fullmatch(r"GLIBC_2\.([0-9]+)(\.[0-9]+)?", version)
    known = file in _GLIBC and found is not None and int(found[1]) <= _LISTED
    return known and name not in _listed("glibc_symbols.txt")


@cache
def _listed(file: str) -> frozenset[str]:
    text = (resources.files("farm.wheel") / file).read_text(encoding="ascii")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _all_known(member: str, needs: Mapping[str, list[Need]]) -> bool:
    """True if all that a library brings in, needs of needs too, is of the wheel or carries versions."""
    waiting, reached = [member], {member}
    while waiting:
        for need in needs.get(waiting.pop(), []):
            if need.answer is Answer.WHEEL and need.by:
                if need.by not in reached:
                    reached.add(need.by)
                    waiting.append(need.by)
            elif not (need.answer is Answer.SYSTEM and _VERSIONED.fullmatch(need.name)):
                return False
    # A module that needs no library at all gets its names from the program that loads it.
    return len(reached) > 1 or bool(needs.get(member))


def _not_exported(
    library: Library, own: DllSymbols, needs: list[Need], symbols: Mapping[str, Symbols | DllSymbols]
) -> Iterator[tuple[str, str]]:
    by_name = {need.name.lower(): need.by for need in needs if need.answer is Answer.WHEEL}
    machine = library.machine
    for dll, taken in own.imports.items():
        theirs = symbols.get(by_name.get(dll) or "")
        if isinstance(theirs, DllSymbols):
            lost = sorted(taken - theirs.exports)
            lost += sorted(
                f"{name} (forwarded to {theirs.forwards[name]}, which is not there)"
                for name in taken & theirs.forwards.keys()
                if _leads_nowhere(theirs.forwards[name], symbols, machine)
            )
        else:
            lost = sorted(name for name in taken if _lacks(dll, name, machine))
        if lost:
            more = f" and {len(lost) - _MOST} more" if len(lost) > _MOST else ""
            yield library.path, f"takes {', '.join(lost[:_MOST])}{more} from {dll}, which does not export it"


def _leads_nowhere(target: str, symbols: Mapping[str, Symbols | DllSymbols], machine: str) -> bool:
    """True if a forwarder (`DLL.name`) names a function that its DLL lacks, or a DLL that no machine has."""
    stem, _, name = target.rpartition(".")
    dll = f"{stem.lower()}.dll"
    for path, each in symbols.items():
        if isinstance(each, DllSymbols) and posixpath.basename(path).lower() == dll:
            return name not in each.exports
    return owner(dll) is None or _lacks(dll, name, machine)


def _lacks(dll: str, name: str, machine: str) -> bool:
    """True if a DLL of Windows has no such function, as far as is known. Ordinals change with each Windows."""
    if machine != "amd64" or name.startswith("#"):
        return False
    if dll == "kernel32.dll":
        return name not in _listed("kernel32_symbols.txt")
    return dll.startswith(("api-ms-win-crt-", "ucrtbase.")) and name not in _listed("ucrt_symbols.txt")


# The system's: a second copy in one process, or one that does not fit the kernel's or driver's version, crashes it.
_SYSTEM_ELF = re.compile(
    rf"{LOADER}|(libc|libm|libdl|librt|libpthread|libresolv|libutil|libnss_\w+|libcuda|libnvidia-[\w-]+)\.so(\.[\d.]+)?|"
    r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1"
)
_STATIC_TLS = 1664  # glibc, elf/dl-tls.c: TLS_STATIC_SURPLUS with the default tunables
_INTERPRETER = re.compile(rf"/lib(32|64|x32)?/({LOADER}|ld-musl-\w+\.so\.1)")
_ARM_PAGES = 64 << 10
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
            findings += [*_paths(library), *_refused(library), *_shadows(library)]
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


def _refused(library: Library) -> Iterator[Finding]:
    """Requests of the file that loaders refuse."""
    if library.executable_stack:
        yield Finding(
            check="link",
            where=library.path,
            what="asks for an executable stack (by PT_GNU_STACK, or without one)",
            why="glibc 2.41 and newer refuse to load it, as systems with SELinux do",
            fix="link with -Wl,-z,noexecstack; assembly files need a .note.GNU-stack section",
        )
    if library.static_tls > _STATIC_TLS:
        yield Finding(
            check="link",
            where=library.path,
            what=f"has {library.static_tls} bytes of thread-local variables in the initial-exec model",
            why="glibc keeps 1664 bytes for all libraries that are loaded later: 'cannot allocate memory in static TLS "
            "block'",
            fix="compile it with -ftls-model=global-dynamic, or keep large buffers in allocated memory",
        )
    if library.interpreter and not _INTERPRETER.fullmatch(library.interpreter):
        yield Finding(
            check="link",
            where=library.path,
            what=f"is a program for the loader {library.interpreter}, which other machines do not have",
            why="starting it fails: 'No such file or directory'",
            fix="link it on a system whose loader has its usual place, or patchelf --set-interpreter",
        )
    if library.machine == "aarch64" and library.page_size < _ARM_PAGES:
        yield Finding(
            check="link",
            where=library.path,
            what=f"is for pages of {max(library.page_size, 1) / 1024:g} KiB at most",
            why="kernels for Arm have pages of 4, 16 or 64 KiB; larger ones refuse it: ELF load command alignment not "
            "page-aligned",
            fix="link with -Wl,-z,max-page-size=65536, and edit it with patchelf --page-size 65536",
        )


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
