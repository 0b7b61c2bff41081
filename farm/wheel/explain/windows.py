"""Causes of what Windows' loader says."""

import posixpath
import re
from collections import Counter, deque
from collections.abc import Iterable

from farm.base.errors import VerificationFailedError
from farm.wheel.explain.files import MAX_CULPRITS, SHARED, Cause, Files, is_called
from farm.wheel.explain.tables import where_from
from farm.wheel.library import (
    Library,
)
from farm.wheel.needs import Answer, Need
from farm.wheel.pe import added_folders, fits
from farm.wheel.symbols import missing_names

_OPENMP = re.compile(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$")


def missing_dlls(files: Files, match: re.Match[str]) -> Cause:
    """WinError 126: every DLL that is missing, the chain to it from the first file that fails,
    where to get it.
    """
    dlls = _own_dlls(files)
    if not dlls:
        return (
            "a DLL is missing on Windows, and there is none among these files to look into",
            (),
            (
                "give the Windows wheel, or the installed folder, of the package that the message "
                "names"
            ),
        )
    name = _named_dll(match)
    first, chains, reached = _chains(dlls, files.needs)
    missing = _missing_needs(files.needs, reached)
    if not missing:
        return _nothing_missing(files, name)
    culprits = []
    for key in sorted(missing, key=lambda key: (key not in chains, key)):
        culprits.append(_culprit(missing[key], chains.get(key, ())))
    cures = [where_from(needs[0].name) for needs in list(missing.values())[:MAX_CULPRITS]]
    cause = "Windows cannot find a DLL that is needed" + _detail(files, name, first, missing)
    return cause, culprits, "; ".join(cures)


def _own_dlls(files: Files) -> list[Library]:
    """The DLLs of the package; VerificationFailedError where one is damaged."""
    dlls = []
    for library in files.libraries:
        if library.format != "pe" or library.path.startswith(SHARED):
            continue
        if library.error:
            raise VerificationFailedError(
                f"{library.path}: {library.error}", hint="install or build it again"
            )
        dlls.append(library)
    return dlls


def _named_dll(match: re.Match[str]) -> str:
    """The DLL that the message names: PyTorch and ctypes name the one that they were loading."""
    dll_match = re.search(r"([\w.-]+\.(?:dll|pyd))[\"']", match.string, re.IGNORECASE)
    return dll_match[1] if dll_match else ""


def _is_there(files: Files, name: str) -> bool:
    return any(is_called(library.path, name) for library in files.libraries)


def _missing_needs(needs: Iterable[Need], reached: frozenset[str]) -> dict[str, list[Need]]:
    """Needs that nothing meets, by the name of the DLL in lower case.

    What is missing for a later call counts where nothing breaks the import.
    """
    on_loading: dict[str, list[Need]] = {}
    missing: dict[str, list[Need]] = {}
    for need in needs:
        if need.who in reached and need.answer in (Answer.MISSING, Answer.UNREACHABLE):
            missing.setdefault(need.name.lower(), []).append(need)
            if need.when == "load":
                on_loading[need.name.lower()] = missing[need.name.lower()]
    return on_loading or missing


def _nothing_missing(files: Files, name: str) -> Cause:
    """The cause where these files bring each DLL that they need."""
    cause = "a DLL is missing, but none of those that these files need"
    runtime = _first_of_runtime(files.needs)
    if name and not _is_there(files, name):
        cause = f"{name}, which the message names, is not among these files"
    elif runtime:
        cause = (
            f"these files bring all that they need but Microsoft's runtime, such as {runtime}, "
            "which a fresh Windows does not have"
        )
    cure = "install the Microsoft Visual C++ Redistributable; pip install --force-reinstall "
    return cause, (), cure + "the package"


def _detail(files: Files, name: str, first: str | None, missing: dict[str, list[Need]]) -> str:
    """What is said of the first file that fails, and of the DLL that the message names."""
    if name and name.lower() not in missing and not (first and is_called(first, name)):
        state = "there" if _is_there(files, name) else "not among these files"
        return f"; {name}, which the message names, is {state}"
    if first is None:
        return ""
    detail = f"; {first} is the first that fails"
    if any(need.who == first for needs in missing.values() for need in needs):
        return detail
    return f"{detail} (it is innocent: a bystander)"


def _culprit(needs: list[Need], chain: tuple[str, ...]) -> str:
    """A missing DLL, which files need it, and how loading comes to it."""
    who = ", ".join(list(dict.fromkeys(need.who for need in needs))[:3])
    text = f"{needs[0].name}, needed by {who}"
    if len(chain) > 2:
        text += f" (chain: {' -> '.join(chain)})"
    if needs[0].by:
        text += f"; there is one at {needs[0].by}, where Windows does not look"
    return text


def _first_of_runtime(needs: Iterable[Need]) -> str:
    """Return the DLL of the Visual C++ runtime that most libraries need; empty if none does."""
    names = Counter(need.name for need in needs if need.answer is Answer.RUNTIME)
    return max(names, key=lambda name: (names[name], name), default="")


def _chains(
    libraries: list[Library], needs: list[Need]
) -> tuple[str | None, dict[str, tuple[str, ...]], frozenset[str]]:
    """Load everything: the first file that fails; for each missing DLL the shortest way to it; what
    was come to.
    """
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        if need.when == "load":
            by_who.setdefault(need.who, []).append(need)
    first = None
    chains: dict[str, tuple[str, ...]] = {}
    reached: set[str] = set()
    for root in sorted(libraries, key=_loading_order):
        visited = {root.path}
        ways: deque[tuple[str, ...]] = deque([(root.path,)])
        while ways:
            way = ways.popleft()
            for need in by_who.get(way[-1], []):
                if need.answer in (Answer.MISSING, Answer.UNREACHABLE):
                    first = first or root.path
                    chains.setdefault(need.name.lower(), (*way, need.name))
                elif need.answer is Answer.WHEEL and need.by and need.by not in visited:
                    visited.add(need.by)
                    ways.append((*way, need.by))
        reached |= visited
    return first, chains, frozenset(reached)


def _loading_order(library: Library) -> tuple[bool, bool, str]:
    """The DLLs of the folder that the package adds, then extension modules; NTFS sorts without
    regard to case.
    """
    folder, name = posixpath.split(library.path)
    return (
        not fits(folder, added_folders()),
        not name.lower().endswith(".dll"),
        library.path.upper(),
    )


def missing_functions(files: Files, _: re.Match[str]) -> Cause:
    """WinError 127."""
    missing = list(missing_names(files.libraries, files.needs, files.contents.symbols))
    if missing:
        cause = "a DLL lacks a function that another one takes from it"
        cure = (
            "these files are of different builds: install the package anew (pip install "
            "--force-reinstall), or "
        )
        return (
            cause,
            [f"{member} {function}" for member, function in missing],
            cure + "build it from one tree",
        )
    outside = Counter(need.name.lower() for need in files.needs if need.answer is not Answer.WHEEL)
    system = ("api-ms-", "kernel32", "ucrtbase")
    # Of a wheel for Linux there are none: the message came from another package, or another
    # machine.
    candidates = [
        name
        for name, _ in outside.most_common()
        if name.endswith(".dll") and not name.startswith(system)
    ]
    look = f"; look at {', '.join(candidates[:MAX_CULPRITS])}" if candidates else ""
    cause = (
        "a DLL lacks a function that another one takes from it; all DLLs of these files fit one "
        "another, so another "
        "copy was loaded in place of one: from System32, an older Visual C++ runtime, or another "
        "package"
    )
    return cause, (), f"update the Visual C++ Redistributable and the driver{look}"


def runtimes(files: Files, match: re.Match[str]) -> Cause:
    """WinError 1114, or a crash on loading: the table's words, with the Visual C++ runtime that is
    new enough.
    """
    dlls = [dll for dll in files.libraries if dll.format == "pe"]
    message = match.string.lower()
    mentioned = [dll for dll in dlls if posixpath.basename(dll.path).lower() in message]
    newest = _linked_by_newest(mentioned or dlls)
    culprits = []
    cure = ""
    if newest:
        culprits.append(f"{newest.path}: linked by Visual C++ {newest.linker}")
        minor = str(newest.linker).partition(".")[2]
        cure = f"; the Redistributable must be of version 14.{minor} or newer"
    openmp = [dll.path for dll in dlls if _OPENMP.search(dll.path.lower())]
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    if len(openmp) > 1:
        culprits += [f"{path}: an OpenMP runtime" for path in openmp]
    return "", culprits, cure


def _linked_by_newest(dlls: Iterable[Library]) -> Library | None:
    """The DLL with the newest linker, of those that need Visual C++'s library."""
    newest = None
    for dll in dlls:
        needs_runtime = any(fits(name, ("msvcp140*",)) for name in dll.needed)
        if not dll.linker or not needs_runtime:
            continue
        if newest is None or _version(dll) > _version(newest):
            newest = dll
    return newest


def _version(dll: Library) -> tuple[int, ...]:
    return tuple(map(int, str(dll.linker).split(".")))
