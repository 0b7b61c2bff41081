"""Who answers what the libraries of a wheel need.

The loader looks for a needed library in the folders of RUNPATH, or else of RPATH and of the RPATHs of those that
brought the library in (ld.so(8): DT_RPATH is inherited, DT_RUNPATH is not), then in the system's. So a library of
`scipy.libs` without a path of its own finds its neighbours, by the RPATH of the extension modules. LD_LIBRARY_PATH
and libraries that another module happened to load first are not counted on: a wheel that works by such luck works
until the order of imports changes.
"""

import posixpath
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from farm.wheel.dlls import resolve_dlls
from farm.wheel.library import Library
from farm.wheel.needs import Answer, Need, for_musl, installed_path
from farm.wheel.searchpath import inside

if TYPE_CHECKING:
    from farm.wheel.manylinux import SystemNeed

__all__ = ["Answer", "Need", "installed_path", "resolve", "search_folders", "system_needs"]

_MAX_ROUNDS = 20  # for each library: RPATHs lead into few folders
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
                # By file name and by SONAME: the loader compares needs with the SONAMEs of what is loaded already.
                names.setdefault((name, library.machine), library.path)
    patterns = (*DRIVER, *exclude)
    musl = is_musl(loadable)
    inherited = _inherited(loadable, places)
    needs = []
    for library in loadable:
        folders = [*search_folders(library), *inherited.get(library.path, ())]
        for name in library.needed:
            paths = _paths(library, name, folders)
            needs.append(_resolve(library, name, paths, (places, beside), names, patterns, musl=musl))
    dlls = (library for library in everything if library.format == "pe")
    return needs + resolve_dlls(dlls, exclude, [library for library in others if library.format == "pe"])


def _paths(library: Library, name: str, folders: Iterable[str]) -> list[str]:
    """Where the loader looks for a needed file, from site-packages on: one with a path is there or nowhere."""
    if "/" not in name:
        return [posixpath.join(folder, name) for folder in folders]
    path = inside(library.path, name)
    return [] if path is None else [path]


def _resolve(
    library: Library,
    name: str,
    paths: list[str],
    places: tuple[dict[tuple[str, str], str], dict[tuple[str, str], str]],
    names: dict[tuple[str, str], str],
    exclude: Sequence[str],
    *,
    musl: bool,
) -> Need:
    # In the loader's order. The wheel's own file comes before one of another wheel at the same place.
    for path in paths:
        for answer, where in zip((Answer.WHEEL, Answer.DEPENDENCY), places, strict=True):
            by = where.get((path, library.machine))
            if by is not None:
                return Need(who=library.path, name=name, answer=answer, by=by)
    by = names.get((name, library.machine))
    # Where a dependency that was given holds it, the loader must find it there: no exclusion hides that.
    if by not in places[1].values() and any(fnmatchcase(name, pattern) for pattern in exclude):
        return Need(who=library.path, name=name, answer=Answer.EXCLUDED)
    from farm.wheel.manylinux import is_system_library  # noqa: PLC0415 (wheels for Windows do without)

    if is_system_library(name, musl=musl):
        return Need(who=library.path, name=name, answer=Answer.SYSTEM)
    answer = Answer.MISSING if by is None else Answer.UNREACHABLE
    return Need(who=library.path, name=name, answer=answer, by=by)


def is_musl(libraries: Iterable[Library]) -> bool:
    """True if a wheel's libraries are for musl (Alpine Linux) instead of glibc."""
    return any(for_musl(library.path, library.needed) for library in libraries)


def _inherited(libraries: list[Library], places: dict[tuple[str, str], str]) -> dict[str, list[str]]:
    """Folders that libraries without RUNPATH inherit as RPATH from those that need them, directly or in turn."""
    by_path = {library.path: library for library in libraries}
    found: dict[str, list[str]] = {}
    waiting = [library for library in libraries if not library.has_runpath and library.search_path]
    # RPATHs pass from library to library until nothing new arrives; the bound is for wheels that are made to go on.
    for _ in range(len(libraries) * _MAX_ROUNDS):
        if not waiting:
            break
        library = waiting.pop()
        # What has a RUNPATH asks no RPATH, neither its own nor an inherited one, but hands those of its loaders on.
        folders = list(found.get(library.path, ()))
        own = search_folders(library)
        folders += [] if library.has_runpath else own
        for name in library.needed:
            for place in _paths(library, name, [*own, *folders]):
                path = places.get((place, library.machine))
                if path is None or path == library.path or by_path[path].has_runpath:
                    continue
                known = found.setdefault(path, [])
                new = [each for each in folders if each not in known]
                if new:
                    known += new
                    waiting.append(by_path[path])
                break
    return found


def search_folders(library: Library) -> list[str]:
    """The folders inside the installed wheel where the loader looks for what `library` needs."""
    # Other entries lead out of the wheel: to the system, or to the machine that built it.
    found = (inside(library.path, entry) for entry in library.search_path)
    return [folder for folder in found if folder is not None]


def system_needs(libraries: Iterable[Library], needs: Iterable[Need]) -> "list[SystemNeed]":
    """Needs of each library that the system must meet: all that the wheel itself does not."""
    from farm.wheel.manylinux import SystemNeed  # noqa: PLC0415 (reads auditwheel's policies)

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
