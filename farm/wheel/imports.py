"""Who answers what the libraries of a wheel need.

The loader looks for a needed library in the folders of RUNPATH (or RPATH), then in the system's. RPATH that is
inherited from the program that loads, LD_LIBRARY_PATH, and libraries that another one happened to load first are
not counted on: a wheel that works by such luck works until the order of imports changes.
"""

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from farm.wheel.dlls import resolve_dlls
from farm.wheel.library import Library
from farm.wheel.needs import Answer, Need, installed_path

if TYPE_CHECKING:
    from farm.wheel.manylinux import SystemNeed

__all__ = ["Answer", "Need", "installed_path", "resolve", "search_folders", "system_needs"]

# The NVIDIA driver: it belongs to the machine, and a wheel must not bring its own.
DRIVER = ("libcuda.so.1", "libnvidia-*")


def resolve(libraries: Iterable[Library], exclude: Sequence[str], dependencies: Iterable[Library] = ()) -> list[Need]:
    """Every need of every loadable library, and who answers it.

    Since every library of the wheel is looked at, needs of needs are covered.

    Args:
        libraries: All libraries of the wheel.
        dependencies: Those of the wheels that are installed beside it. Their own needs are not looked at.
        exclude: Name patterns (`fnmatch`) of libraries that may be missing, besides the NVIDIA driver's.
    """
    everything = list(libraries)
    loadable = [library for library in everything if library.is_loadable and library.format == "elf"]
    others = [library for library in dependencies if library.is_loadable]
    places = {(installed_path(library.path), library.machine): library.path for library in loadable}
    names: dict[tuple[str, str], str] = {}
    beside = {(installed_path(each.path), each.machine): each.path for each in others if each.format == "elf"}
    for library in (*loadable, *others):
        for name in (posixpath.basename(library.path), library.soname):
            if name:
                names.setdefault((name, library.machine), library.path)
    patterns = (*DRIVER, *exclude)
    needs = []
    for library in loadable:
        inside = search_folders(library)
        needs += [_resolve(library, name, inside, (places, beside), names, patterns) for name in library.needed]
    dlls = (library for library in everything if library.format == "pe")
    return needs + resolve_dlls(dlls, exclude, [library for library in others if library.format == "pe"])


def _resolve(
    library: Library,
    name: str,
    inside: list[str],
    places: tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]],
    names: dict[tuple[str, str], str],
    exclude: Sequence[str],
) -> Need:
    for folder in inside:
        for answer, where in zip((Answer.WHEEL, Answer.DEPENDENCY), places, strict=True):
            by = where.get((posixpath.join(folder, name), library.machine))
            if by is not None:
                return Need(who=library.path, name=name, answer=answer, by=by)
    by = names.get((name, library.machine))
    # Where the wheel or a dependency that was given holds it, the loader must find it there: no exclusion hides that.
    if by is None and any(fnmatchcase(name, pattern) for pattern in exclude):
        return Need(who=library.path, name=name, answer=Answer.EXCLUDED)
    from farm.wheel.manylinux import is_system_library  # noqa: PLC0415 (wheels for Windows do without)

    if is_system_library(name):
        return Need(who=library.path, name=name, answer=Answer.SYSTEM)
    answer = Answer.MISSING if by is None else Answer.UNREACHABLE
    return Need(who=library.path, name=name, answer=answer, by=by)


def search_folders(library: Library) -> list[str]:
    """The folders inside the installed wheel where the loader looks for what `library` needs."""
    origin = posixpath.dirname(installed_path(library.path))
    folders = []
    for entry in library.search_path:
        for word in ("$ORIGIN", "${ORIGIN}"):
            rest = entry.removeprefix(word)
            if rest != entry and (not rest or rest.startswith("/")):
                folder = posixpath.normpath(posixpath.join(origin, rest.lstrip("/")))
                folders.append("" if folder == "." else folder)
    return folders


def system_needs(libraries: Iterable[Library], needs: Iterable[Need]) -> "list[SystemNeed]":
    """What each library asks of the system: all that the wheel itself does not answer."""
    from farm.wheel.manylinux import SystemNeed  # noqa: PLC0415

    inside: dict[str, set[str]] = {}
    for need in needs:
        if need.answer in (Answer.WHEEL, Answer.DEPENDENCY, Answer.UNREACHABLE):
            inside.setdefault(need.who, set()).add(need.name)
    result = []
    for library in libraries:
        if library.is_loadable and library.format == "elf":
            own = inside.get(library.path, set())
            versions = {name for file, names in library.versions.items() if file not in own for name in names}
            asked = frozenset(library.needed) - own
            result.append(SystemNeed(library.path, asked, frozenset(versions)))
    return result
