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


def missing_dlls(files: Files, match: re.Match[str]) -> Cause:
    """WinError 126: every DLL that is missing, the chain to it from the first file that fails,
    where to get it.
    """
    dlls = [
        library
        for library in files.libraries
        if library.format == "pe" and not library.path.startswith(SHARED)
    ]
    if broken := next((library for library in dlls if library.error), None):
        raise VerificationFailedError(
            f"{broken.path}: {broken.error}", hint="install or build it again"
        )
    if not dlls:
        cure = (
            "give the Windows wheel, or the installed folder, of the package that the message names"
        )
        return (
            "a DLL is missing on Windows, and there is none among these files to look into",
            (),
            cure,
        )
    # PyTorch and ctypes name the DLL that they were loading; messages of others name none.
    dll_match = re.search(r"([\w.-]+\.(?:dll|pyd))[\"']", match.string, re.IGNORECASE)
    name = dll_match[1] if dll_match else ""
    absent = bool(name) and not any(is_called(library.path, name) for library in files.libraries)
    first, chains, reached = _chains(dlls, files.needs)
    missing: dict[str, list[Need]] = {}
    for need in files.needs:
        if need.who in reached and need.answer in (Answer.MISSING, Answer.UNREACHABLE):
            missing.setdefault(need.name.lower(), []).append(need)
    if not missing:
        cause = "a DLL is missing, but none of those that these files need"
        runtime = _first_of_runtime(files.needs)
        if absent:
            cause = f"{name}, which the message names, is not among these files"
        elif runtime:
            cause = (
                f"these files bring all that they need but Microsoft's runtime, such as {runtime}, "
                "which a fresh Windows does not have"
            )
        cure = (
            "install the Microsoft Visual C++ Redistributable; pip install --force-reinstall "
            "the package"
        )
        return cause, (), cure
    # What breaks the import comes first; what is missing for a later call counts where nothing else
    # does.
    loading = {
        key: group for key, group in missing.items() if any(need.when == "load" for need in group)
    } or missing
    innocent = first and not any(need.who == first for group in loading.values() for need in group)
    if first:
        detail = (
            f"; {first} is the first that "
            f"fails{' (it is innocent: a bystander)' if innocent else ''}"
        )
    else:
        detail = ""
    if name and name.lower() not in missing and not (first and is_called(first, name)):
        detail = (
            f"; {name}, which the message names, is "
            f"{'not among these files' if absent else 'there'}"
        )
    culprits = []
    for key, group in sorted(loading.items(), key=lambda item: (item[0] not in chains, item[0])):
        who = ", ".join(list(dict.fromkeys(need.who for need in group))[:3])
        if len(chains.get(key, ())) > 2:
            chain = f" (chain: {' -> '.join(chains[key])})"
        else:
            chain = ""
        if group[0].by:
            elsewhere = f"; there is one at {group[0].by}, where Windows does not look"
        else:
            elsewhere = ""
        culprits.append(f"{group[0].name}, needed by {who}{chain}{elsewhere}")
    cure = "; ".join(where_from(group[0].name) for group in list(loading.values())[:MAX_CULPRITS])
    return f"Windows cannot find a DLL that is needed{detail}", culprits, cure


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
    mentioned = [
        dll for dll in dlls if posixpath.basename(dll.path).lower() in match.string.lower()
    ] or dlls
    linked = [
        dll
        for dll in mentioned
        if dll.linker and any(fits(name, ("msvcp140*",)) for name in dll.needed)
    ]
    newest = max(linked, key=lambda dll: tuple(map(int, str(dll.linker).split("."))), default=None)
    openmp = [
        dll.path
        for dll in dlls
        if re.search(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$", dll.path.lower())
    ]
    if newest:
        culprits = [f"{newest.path}: linked by Visual C++ {newest.linker}"]
    else:
        culprits = []
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    if len(openmp) > 1:
        culprits += [f"{path}: an OpenMP runtime" for path in openmp]
    version = f"14.{str(newest.linker).partition('.')[2]}" if newest else ""
    return (
        "",
        culprits,
        f"; the Redistributable must be of version {version} or newer" if newest else "",
    )
