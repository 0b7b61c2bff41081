"""Which DLL is really missing behind "[WinError 126] The specified module could not be found".

Windows does not say which file it missed. Python names the file that it was asked to load; torch/__init__.py loads
torch/lib/*.dll one by one in the order of the folder, which NTFS keeps sorted without regard to case. So the file
named is the first one with a broken chain of imports, and usually a bystander.
"""

import posixpath
from collections import deque
from functools import cache
from importlib import resources
from pathlib import Path

import yaml

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.contents import read_needs
from farm.wheel.dlls import resolve_dlls
from farm.wheel.folder import PREFIX, library_files, read_file
from farm.wheel.library import Library
from farm.wheel.models import Frozen, Printable
from farm.wheel.needs import Answer, Need
from farm.wheel.windows import added_folders, fits


class MissingDll(Frozen):
    """A DLL that nothing provides.

    Attributes:
        name: As the file that needs it writes it.
        needed_by: The members that import it.
        when: `load`: without it nothing works (error 126); `call` or `name`: a later function fails.
        chain: From the first DLL that is loaded and fails because of it to it; empty if none does.
        source: Where to get it; empty if that is not known.
        elsewhere: The member that has this name, in a folder where Windows does not look.
    """

    name: Printable
    needed_by: tuple[Printable, ...]
    when: str
    chain: tuple[Printable, ...]
    source: str
    elsewhere: Printable | None


class Diagnosis(Frozen):
    """DLLs that a wheel or an installation lacks.

    Attributes:
        where: Name of the file or folder.
        named: The file that Python's message names; None if everything loads.
        innocent: It imports nothing itself that is missing.
        missing: What breaks the import first, then the rest.
    """

    where: str
    named: Printable | None
    innocent: bool
    missing: tuple[MissingDll, ...]


class _Source(Frozen):
    names: tuple[str, ...]
    source: str


def why_126(path: Path) -> Diagnosis:
    """Find what is missing in a Windows wheel, or in an installed package's folder (`site-packages/torch`).

    Raises:
        UsageError: There is no such file or folder, or it holds no DLL.
        VerificationFailedError: The wheel or a DLL is damaged.
    """
    libraries = _of_folder(path) if path.is_dir() else _of_wheel(path)
    broken = next((library for library in libraries if library.error), None)
    if broken is not None:
        raise VerificationFailedError(f"{broken.path}: {broken.error}", hint="install or build it again")
    loadable = [library for library in libraries if library.is_loadable]
    if not loadable:
        raise UsageError(f"{path}: no DLL and no .pyd in it", hint="give a Windows wheel, or the folder torch")
    needs = resolve_dlls(loadable, ())
    named, chains, reached = _walk(loadable, needs)
    missing: dict[str, list[Need]] = {}
    for need in needs:
        if need.who in reached and need.answer in (Answer.MISSING, Answer.UNREACHABLE):
            missing.setdefault(need.name.lower(), []).append(need)
    found = [_missing(group, chains.get(key, ())) for key, group in sorted(missing.items())]
    found.sort(key=lambda item: (not item.chain, item.when != "load", item.name.lower()))
    guilty = {who for item in found if item.when == "load" for who in item.needed_by}
    return Diagnosis(
        where=path.name, named=named, innocent=named is not None and named not in guilty, missing=tuple(found)
    )


def _missing(group: list[Need], chain: tuple[str, ...]) -> MissingDll:
    whens = [need.when for need in group]
    return MissingDll(
        name=group[0].name,
        needed_by=tuple(dict.fromkeys(need.who for need in group)),
        when="load" if "load" in whens else whens[0],
        chain=chain,
        source=source_of(group[0].name),
        elsewhere=group[0].by,
    )


def source_of(name: str) -> str:
    """Which package or component holds a DLL; empty if that is not known."""
    return next((source.source for source in _sources() if fits(name, source.names)), "")


@cache
def _sources() -> tuple[_Source, ...]:
    text = (resources.files("farm.wheel") / "dll_sources.yaml").read_text(encoding="utf-8")
    return tuple(_Source.model_validate(raw) for raw in yaml.safe_load(text))


def _order(library: Library) -> tuple[bool, bool, str]:
    """As they are loaded: the DLLs of the folder that the package adds, then extension modules; NTFS sorts so."""
    folder, name = posixpath.split(library.path)
    return not fits(folder, added_folders()), not name.lower().endswith(".dll"), library.path.upper()


def _walk(libraries: list[Library], needs: list[Need]) -> tuple[str | None, dict[str, tuple[str, ...]], frozenset[str]]:
    """Load everything: the first file that fails; for each missing DLL the shortest way to it from the first file
    that fails because of it; all files that were come to. The prefix's DLLs are loaded only if something needs them.
    """
    by_who: dict[str, list[Need]] = {}
    for need in needs:
        if need.when == "load":
            by_who.setdefault(need.who, []).append(need)
    named = None
    chains: dict[str, tuple[str, ...]] = {}
    reached: set[str] = set()
    for root in sorted(libraries, key=_order):
        if root.path.startswith(f"{PREFIX}/"):
            continue
        seen = {root.path}
        ways: deque[tuple[str, ...]] = deque([(root.path,)])
        while ways:
            way = ways.popleft()
            for need in by_who.get(way[-1], []):
                if need.answer in (Answer.MISSING, Answer.UNREACHABLE):
                    named = named or root.path
                    chains.setdefault(need.name.lower(), (*way, need.name))
                elif need.answer is Answer.WHEEL and need.by and need.by not in seen:
                    seen.add(need.by)
                    ways.append((*way, need.by))
        reached |= seen
    return named, chains, frozenset(reached)


def _of_wheel(path: Path) -> list[Library]:
    with Archive(path) as archive:
        known = {name: ("", entry.size) for name, entry in archive.members.items()}  # no hash is wanted
        return [library for library in read_needs(archive, known).libraries if library.format == "pe"]


def _of_folder(path: Path) -> list[Library]:
    return [read_file(file, name)[0] for name, file in library_files(path, (".dll", ".pyd"))]
