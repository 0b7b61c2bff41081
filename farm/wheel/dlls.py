"""Who answers what the DLLs of a wheel need.

Python loads extension modules, and torch its DLLs, with `LoadLibraryExW(path, NULL, 0x1100)`: what a DLL needs is
looked for in its own folder, in the folder of python.exe, in folders added by `os.add_dll_directory` (`<name>.libs` by
delvewheel's code), and in System32; never in PATH. Source: Microsoft, "Dynamic-link library search order". Case does
not count.
"""

import posixpath
from collections.abc import Iterable, Iterator, Sequence

from farm.wheel.library import Library
from farm.wheel.needs import Answer, Need, installed_path
from farm.wheel.windows import added_folders, fits, owner


def wants(library: Library) -> Iterator[tuple[str, str]]:
    """(name, when) of every DLL that a library asks for; see `Need.when`."""
    yield from ((name, "load") for name in library.needed)
    yield from ((name, "call") for name in library.delay_needed)
    yield from ((name, "name") for name in library.named)


def resolve_dlls(
    libraries: Iterable[Library], exclude: Sequence[str], dependencies: Sequence[Library] = ()
) -> list[Need]:
    """Every need of every DLL, and who answers it.

    Args:
        libraries: The DLLs of the wheel (.pyd files too).
        exclude: Name patterns (`fnmatch`) of DLLs that may be missing, besides those that every machine has.
        dependencies: Those of the wheels that are installed beside it.
    """
    loadable = [library for library in libraries if library.is_loadable]
    places: dict[tuple[str, str, str], str] = {}
    names: dict[tuple[str, str], str] = {}
    added: set[str] = set()
    theirs = {library.path for library in dependencies}
    for library in (*loadable, *dependencies):
        # Windows' names do not tell cases apart, and neither does its loader.
        folder, name = posixpath.split(installed_path(library.path).lower())
        places[folder, name, library.machine] = library.path
        names.setdefault((name, library.machine), library.path)
        if fits(folder, added_folders()) or folder.endswith(".libs"):
            added.add(folder)
    needs = []
    for library in loadable:
        # Where the loader looks: the DLL's own folder (Python loads modules so), then those that packages add.
        path = installed_path(library.path).lower()
        folders = [posixpath.dirname(path), *sorted(added)]
        for name, when in wants(library):
            keys = ((folder, name.lower(), library.machine) for folder in folders)
            by = next((places[key] for key in keys if key in places), None)
            answer = Answer.DEPENDENCY if by in theirs else _answer(name, by, exclude)
            if answer is Answer.MISSING:
                # In the wheel all the same? Then it is where the loader does not look.
                by = names.get((name.lower(), library.machine))
                answer = Answer.UNREACHABLE if by else Answer.MISSING
            needs.append(Need(who=library.path, name=name, answer=answer, by=by, when=when))
    return needs


def _answer(name: str, by: str | None, exclude: Sequence[str]) -> Answer:
    if by is not None:
        return Answer.WHEEL
    if fits(name, tuple(exclude)):
        return Answer.EXCLUDED
    known = owner(name)
    return Answer.MISSING if known is None else Answer(known)
