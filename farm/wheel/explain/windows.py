"""Causes of what Windows' loader says."""

import posixpath
import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice

from farm.base.errors import VerificationFailedError
from farm.wheel.explain.files import MAX_CULPRITS, SHARED, Cause, Files, is_called, paths_called
from farm.wheel.explain.tables import where_from
from farm.wheel.library import (
    Library,
)
from farm.wheel.needs import Answer, Need
from farm.wheel.pe import added_folders, fits
from farm.wheel.symbols import missing_names

_OF_THE_SYSTEM = ("api-ms-", "kernel32", "ucrtbase")
_OPENMP = re.compile(r"(libiomp5md|libomp|vcomp\d+)[^/]*\.dll$")


def missing_dlls(files: Files, match: re.Match[str]) -> Cause:
    """WinError 126: every DLL that is missing, the chain to it from the first file that fails,
    where to get it.
    """
    dlls = _own_dlls(files)
    if not dlls:
        cause = "a DLL is missing on Windows, and there is none among these files to look into"
        cure = (
            "give the Windows wheel, or the installed folder, of the package that the message names"
        )
        return cause, (), cure
    name = _named_dll(match)
    first, chains, reached = _chains(dlls, files.needs)
    missing = _missing_needs(files.needs, reached)
    if not missing:
        return _nothing_missing(files, name)
    culprits = []
    for key in sorted(missing, key=lambda key: (key not in chains, key)):
        culprits.append(_culprit(missing[key], chains.get(key, ())))
    cures = []
    for needs in islice(missing.values(), MAX_CULPRITS):
        cures.append(where_from(needs[0].name))
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


def _missing_needs(
    needs: Iterable[Need],
    reached: frozenset[str],
) -> dict[str, list[Need]]:
    """Needs that nothing meets, by the name of the DLL in lower case.

    What is missing for a later call counts where nothing breaks the import.
    """
    missing: dict[str, list[Need]] = {}
    on_loading: dict[str, list[Need]] = {}
    for need in needs:
        if need.who not in reached or not _is_unmet(need):
            continue
        name = need.name.lower()
        missing.setdefault(name, []).append(need)
        if need.when == "load":
            on_loading[name] = missing[name]
    return on_loading or missing


def _is_unmet(need: Need) -> bool:
    return need.answer in (Answer.MISSING, Answer.UNREACHABLE)


def _nothing_missing(files: Files, name: str) -> Cause:
    """The cause where these files bring each DLL that they need."""
    cause = "a DLL is missing, but none of those that these files need"
    runtime = _first_of_runtime(files.needs)
    if name and not paths_called(files.libraries, name):
        cause = f"{name}, which the message names, is not among these files"
    elif runtime:
        cause = (
            f"these files bring all that they need but Microsoft's runtime, such as {runtime}, "
            "which a fresh Windows does not have"
        )
    cure = "install the Microsoft Visual C++ Redistributable; pip install --force-reinstall "
    return cause, (), cure + "the package"


def _detail(
    files: Files,
    name: str,
    first: str | None,
    missing: dict[str, list[Need]],
) -> str:
    """What is said of the first file that fails, and of the DLL that the message names."""
    if name and name.lower() not in missing and not (first and is_called(first, name)):
        state = "there" if paths_called(files.libraries, name) else "not among these files"
        return f"; {name}, which the message names, is {state}"
    if first is None:
        return ""
    detail = f"; {first} is the first that fails"
    for needs in missing.values():
        if any(need.who == first for need in needs):
            return detail
    return f"{detail} (it is innocent: a bystander)"


def _culprit(needs: list[Need], chain: tuple[str, ...]) -> str:
    """A missing DLL, which files need it, and how loading comes to it."""
    askers = dict.fromkeys(need.who for need in needs)
    text = f"{needs[0].name}, needed by {', '.join(islice(askers, 3))}"
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
    libraries: list[Library],
    needs: list[Need],
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
        to_missing, visited = _load(root.path, by_who)
        reached |= visited
        if to_missing:
            first = first or root.path
        for name, chain in to_missing.items():
            chains.setdefault(name, chain)
    return first, chains, frozenset(reached)


def _load(
    root: str,
    by_who: Mapping[str, list[Need]],
) -> tuple[dict[str, tuple[str, ...]], set[str]]:
    """Load a DLL and what it needs, breadth first.

    Args:
        root: The DLL.
        by_who: The needs of each library.

    Returns:
        The shortest way to each DLL that is missing, by its name in lower case; the files that were
        come to.
    """
    to_missing: dict[str, tuple[str, ...]] = {}
    visited = {root}
    ways: deque[tuple[str, ...]] = deque([(root,)])
    while ways:
        way = ways.popleft()
        for need in by_who.get(way[-1], []):
            if _is_unmet(need):
                to_missing.setdefault(need.name.lower(), (*way, need.name))
            elif need.answer is Answer.WHEEL and need.by and need.by not in visited:
                visited.add(need.by)
                ways.append((*way, need.by))
    return to_missing, visited


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
    culprits = []
    missing = missing_names(files.libraries, files.needs, files.contents.symbols)
    for member, function in missing:
        culprits.append(f"{member} {function}")
    if culprits:
        cause = "a DLL lacks a function that another one takes from it"
        cure = (
            "these files are of different builds: install the package anew (pip install "
            "--force-reinstall), or build it from one tree"
        )
        return cause, culprits, cure
    cause = (
        "a DLL lacks a function that another one takes from it; all DLLs of these files fit one "
        "another, so another "
        "copy was loaded in place of one: from System32, an older Visual C++ runtime, or another "
        "package"
    )
    cure = "update the Visual C++ Redistributable and the driver"
    candidates = _dlls_from_elsewhere(files.needs)
    if candidates:
        cure += f"; look at {', '.join(candidates[:MAX_CULPRITS])}"
    return cause, (), cure


def _dlls_from_elsewhere(needs: Iterable[Need]) -> list[str]:
    """The DLLs that other packages or drivers bring, those that most libraries need first.

    Of a wheel for Linux there are none: the message came from another package, or another machine.
    """
    counts = Counter(need.name.lower() for need in needs if need.answer is not Answer.WHEEL)
    names = []
    for name, _ in counts.most_common():
        if name.endswith(".dll") and not name.startswith(_OF_THE_SYSTEM):
            names.append(name)
    return names


def runtimes(files: Files, match: re.Match[str]) -> Cause:
    """WinError 1114, or a crash on loading: the table's words, with the Visual C++ runtime that is
    new enough.
    """
    message = match.string.lower()
    dlls = []
    mentioned = []
    openmp = []
    for library in files.libraries:
        if library.format != "pe":
            continue
        dlls.append(library)
        path = library.path.lower()
        if posixpath.basename(path) in message:
            mentioned.append(library)
        if _OPENMP.search(path):
            openmp.append(f"{library.path}: an OpenMP runtime")

    newest = _linked_by_newest(mentioned or dlls)
    culprits = []
    cure = ""
    if newest:
        culprits.append(f"{newest.path}: linked by Visual C++ {newest.linker}")
        minor = str(newest.linker).partition(".")[2]
        cure = f"; the Redistributable must be of version 14.{minor} or newer"
    # One OpenMP runtime is usual; two in one process are a reason to fail.
    if len(openmp) > 1:
        culprits += openmp
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
