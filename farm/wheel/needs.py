"""Who answers what the libraries of a wheel need.

Linux' loader looks for a needed library in the folders of RUNPATH, or else of RPATH and of the
RPATHs of those that brought the library in (ld.so(8): DT_RPATH is inherited, DT_RUNPATH is not),
then in the system's. So a library of `scipy.libs` without a path of its own finds its neighbours,
by the RPATH of the extension modules. LD_LIBRARY_PATH and libraries that another module happened to
load first are not counted on: a wheel that works by such luck works until the order of imports
changes.

On Windows, Python loads extension modules, and torch its DLLs, with `LoadLibraryExW(path, NULL,
0x1100)`: what a DLL needs is looked for in its own folder, in the folder of python.exe, in folders
added by `os.add_dll_directory` (`<name>.libs` by delvewheel's code, others by the package's own:
dll_folders.py), and in System32; never in PATH. Case does not count. Source: Microsoft, "Dynamic-link library search order".

The wheels that a wheel leaves some of its libraries to, as PyTorch's Linux wheels do with NVIDIA's,
are unpacked beside it, so its RUNPATHs lead from one into the other
(`$ORIGIN/../../nvidia/cublas/lib`): what it imports from them is looked up in them, and what they
hold is judged with it.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.hashes import sha256_of
from farm.base.requirement import read_requirement
from farm.policy.rules import defaults
from farm.wheel.archive import Archive
from farm.wheel.library import Library, read_contents
from farm.wheel.metadata import DistInfo, parse_wheel_name, read_dist_info, same_name
from farm.wheel.pe import added_folders, fits, openmp_runtimes, owner
from farm.wheel.tags import SystemNeed, is_system_library


class Answer(StrEnum):
    """Where a needed library comes from."""

    WHEEL = "wheel"
    DEPENDENCY = "dependency"  # another wheel, which METADATA requires, brings it
    SYSTEM = "system"
    PYTHON = "python"  # the interpreter brings it (Windows)
    RUNTIME = "vc runtime"  # Microsoft's redistributable package, which users install
    DRIVER = "driver"  # the GPU driver's (Windows; on Linux it is excluded)
    EXCLUDED = "excluded"
    UNREACHABLE = "unreachable"  # in the wheel, but the loader does not look there
    MISSING = "missing"


class Need(NamedTuple):
    """`who` needs `name`; `by` is the member that answers or, if unreachable, could.

    `when`: `load`; `call` for delay loads; `name` for what the code asks LoadLibrary for.
    """

    who: str
    name: str
    answer: Answer
    by: str | None = None
    when: str = "load"


TWO_OPENMP = (
    "link one: Microsoft's vcomp140 (/openmp), or another with /NODEFAULTLIB:vcomp; CMake takes "
    "whichever libomp.lib "
    "it finds first (OpenMP_libomp_LIBRARY)"
)


def two_openmp(library: Library) -> str | None:
    """The OpenMP runtimes that a DLL imports, where there is more than one."""
    if library.format == "pe":
        runtimes = openmp_runtimes((*library.needed, *library.delay_needed))
    else:
        runtimes = []
    return ", ".join(runtimes) if len(runtimes) > 1 else None


def installed_path(member: str) -> str:
    """Where a member is below site-packages: `x.data/platlib/` and `x.data/purelib/` are unpacked
    there.
    """
    parts = member.split("/", 2)
    if len(parts) == 3 and parts[0].endswith(".data") and parts[1] in ("platlib", "purelib"):
        return parts[2]
    return member


# PyPA's manylinux images: RUNPATHs of official wheels name folders in it, and no user's machine has
# them.
_BUILD_IMAGE = "/opt/_internal/"
# Stands for site-packages and the folder above it: no entry holds a NUL, so none names them but by
# $ORIGIN.
_ABOVE = "/\0"
_SITE = f"{_ABOVE}/site"
# A name ends where no letter of it could follow (glibc, elf/dl-load.c: is_dst).
_ORIGIN = re.compile(r"\$(?:\{ORIGIN\}|ORIGIN(?![A-Za-z0-9_]))")


def _expanded(member: str, entry: str) -> str:
    """An entry with the folder of its library for $ORIGIN, in normal form where it is absolute."""
    folder = posixpath.join(_SITE, posixpath.dirname(installed_path(member)))
    path = _ORIGIN.sub(lambda _: folder, entry)
    return posixpath.normpath(path) if path.startswith("/") else path


def inside(member: str, entry: str) -> str | None:
    """Where an entry, or a needed file with a path, leads below site-packages; None where it leads
    elsewhere.
    """
    path = _expanded(member, entry)
    if path == _SITE or path.startswith(f"{_SITE}/"):
        return path[len(_SITE) + 1 :]
    return None


def foreign(member: str, entry: str) -> str | None:
    """Why an entry of a library's RUNPATH or RPATH leads out of site-packages; None where it stays
    inside.
    """
    if entry.startswith(_BUILD_IMAGE):
        return None
    if not entry:
        return (
            "an empty entry in its RUNPATH: the folder in which the program happens to be started"
        )
    path = _expanded(member, entry)
    if not path.startswith("/"):
        return (
            f"its RUNPATH names {entry}, relative to the folder in which the program happens "
            "to be started"
        )
    if entry.startswith("/"):
        return f"its RUNPATH names {entry}, a folder of the machine that built it"
    # Official wheels of jaxlib miscount so. It is beside Python's own modules, from where the
    # package itself would be imported if it lay there: who can write there needs no RUNPATH.
    package = installed_path(member).split("/")[0]
    if not f"{path}/".startswith((f"{_SITE}/", f"{_ABOVE}/{package}/")):
        return f"its RUNPATH {entry} leads out of site-packages"
    return None


_MAX_ROUNDS = 20  # for each library: RPATHs lead into few folders
# The NVIDIA driver: it belongs to the machine, and a wheel must not bring its own.
DRIVER = ("libcuda.so.1", "libnvidia-*")


class _ElfFiles:
    """What the loader finds in the wheel, and in the wheels that are installed beside it.

    Attributes:
        places: Library of the wheel by its path below site-packages, and its machine.
        dependency_places: Those of dependencies.
        names: By file name and by SONAME: the loader compares needs with the SONAMEs of what is
            loaded already.
    """

    def __init__(self, libraries: Sequence[Library], dependencies: Sequence[Library]) -> None:
        self.places: dict[tuple[str, str], str] = {}
        self.dependency_places: dict[tuple[str, str], str] = {}
        self.names: dict[tuple[str, str], str] = {}
        for library in libraries:
            self.places[installed_path(library.path), library.machine] = library.path
        for library in dependencies:
            if library.format == "elf":
                place = (installed_path(library.path), library.machine)
                self.dependency_places[place] = library.path
        for library in (*libraries, *dependencies):
            for name in (posixpath.basename(library.path), library.soname):
                if name:
                    self.names.setdefault((name, library.machine), library.path)

    def need(
        self, library: Library, name: str, paths: Sequence[str], exclude: Sequence[str]
    ) -> Need:
        """Who answers a need, in the loader's order.

        The wheel's own file comes before one of another wheel at the same place.
        """
        for path in paths:
            place = (path, library.machine)
            if place in self.places:
                return Need(library.path, name, Answer.WHEEL, self.places[place])
            if place in self.dependency_places:
                return Need(library.path, name, Answer.DEPENDENCY, self.dependency_places[place])
        by = self.names.get((name, library.machine))
        # Where a dependency that was given holds it, the loader must find it there: no exclusion
        # hides that.
        is_excluded = any(fnmatchcase(name, pattern) for pattern in exclude)
        if is_excluded and by not in self.dependency_places.values():
            return Need(library.path, name, Answer.EXCLUDED)
        if is_system_library(name):
            return Need(library.path, name, Answer.SYSTEM)
        return Need(library.path, name, Answer.UNREACHABLE if by else Answer.MISSING, by)


def resolve(
    libraries: Iterable[Library],
    exclude: Sequence[str],
    dependencies: Iterable[Library] = (),
    dll_folders: Collection[str] = (),
) -> list[Need]:
    """Every need of every loadable library, and who answers it. All are looked at, so needs of
    needs are covered.

    Args:
        libraries: All libraries of the wheel.
        dependencies: Those of the wheels that are installed beside it. Their own needs are not
            looked at.
        exclude: Name patterns (`fnmatch`) of libraries that may be missing, besides the NVIDIA
            driver's.
        dll_folders: Folders in which the package's own code has Windows look, in lower case.
    """
    everything = list(libraries)
    loadable = []
    for library in everything:
        if library.is_loadable and library.format == "elf":
            loadable.append(library)
    dependency_libraries = [library for library in dependencies if library.is_loadable]
    files = _ElfFiles(loadable, dependency_libraries)
    inherited = _inherited(loadable, files.places)
    needs = []
    for library in loadable:
        folders = [*search_folders(library), *inherited.get(library.path, ())]
        for name in library.needed:
            paths = _paths(library, name, folders)
            needs.append(files.need(library, name, paths, (*DRIVER, *exclude)))
    dlls = [library for library in everything if library.format == "pe"]
    dependency_dlls = [library for library in dependency_libraries if library.format == "pe"]
    return needs + resolve_dlls(dlls, exclude, dependency_dlls, dll_folders)


def _paths(library: Library, name: str, folders: Iterable[str]) -> list[str]:
    """Where the loader looks for a needed file, from site-packages on: one with a path is there or
    nowhere.
    """
    if "/" not in name:
        return [posixpath.join(folder, name) for folder in folders]
    path = inside(library.path, name)
    return [] if path is None else [path]


def _inherited(
    libraries: list[Library], places: dict[tuple[str, str], str]
) -> dict[str, list[str]]:
    """Folders that libraries without RUNPATH inherit as RPATH from those that need them, directly
    or in turn.
    """
    by_path = {library.path: library for library in libraries}
    inherited: dict[str, list[str]] = {}
    waiting = [library for library in libraries if not library.has_runpath and library.search_path]
    # RPATHs pass from library to library until nothing new arrives; the bound is for wheels that
    # are made to go on.
    for _ in range(len(libraries) * _MAX_ROUNDS):
        if not waiting:
            break
        library = waiting.pop()
        # What has a RUNPATH asks no RPATH, neither its own nor an inherited one, but hands those of
        # its loaders on.
        folders = list(inherited.get(library.path, ()))
        search = search_folders(library)
        if not library.has_runpath:
            folders += search
        for name in library.needed:
            for place in _paths(library, name, [*search, *folders]):
                path = places.get((place, library.machine))
                if path is None or path == library.path or by_path[path].has_runpath:
                    continue
                so_far = inherited.setdefault(path, [])
                new = [entry for entry in folders if entry not in so_far]
                if new:
                    so_far += new
                    waiting.append(by_path[path])
                break
    return inherited


def search_folders(library: Library) -> list[str]:
    """The folders inside the installed wheel where the loader looks for what `library` needs."""
    # Other entries lead out of the wheel: to the system, or to the machine that built it.
    folders = (inside(library.path, entry) for entry in library.search_path)
    return [folder for folder in folders if folder is not None]


def system_needs(libraries: Iterable[Library], needs: Iterable[Need]) -> list[SystemNeed]:
    """Needs of each library that the system must meet: all that the wheel itself does not."""
    inside: dict[str, set[str]] = {}
    for need in needs:
        if need.answer in (Answer.WHEEL, Answer.DEPENDENCY, Answer.UNREACHABLE):
            inside.setdefault(need.who, set()).add(need.name)
    result = []
    for library in libraries:
        if not library.is_loadable or library.format != "elf":
            continue
        answered = inside.get(library.path, set())
        versions: set[str] = set()
        for file, names in library.versions.items():
            if file not in answered:
                versions.update(names)
        names_outside = frozenset(library.needed) - answered
        result.append(SystemNeed(library.path, names_outside, frozenset(versions)))
    return result


def wants(library: Library) -> Iterator[tuple[str, str]]:
    """(name, when) of every DLL that a library asks for; see `Need.when`."""
    yield from ((name, "load") for name in library.needed)
    yield from ((name, "call") for name in library.delay_needed)
    yield from ((name, "name") for name in library.named)


def resolve_dlls(
    libraries: Iterable[Library],
    exclude: Sequence[str],
    dependencies: Sequence[Library] = (),
    dll_folders: Collection[str] = (),
) -> list[Need]:
    """Every need of DLLs and .pyd files, and who answers it.

    Args:
        libraries: Those of the wheel.
        exclude: Name patterns (`fnmatch`) of libraries that may be missing.
        dependencies: Those of the wheels that are installed beside it.
        dll_folders: Folders in which the package's own code has Windows look, in lower case.
    """
    loadable = [library for library in libraries if library.is_loadable]
    places: dict[tuple[str, str, str], str] = {}
    names: dict[tuple[str, str], str] = {}
    added: set[str] = set(dll_folders)
    dependency_paths = {library.path for library in dependencies}
    for library in (*loadable, *dependencies):
        # Windows' names do not tell cases apart, and neither does its loader.
        folder, name = posixpath.split(installed_path(library.path).lower())
        places[folder, name, library.machine] = library.path
        names.setdefault((name, library.machine), library.path)
        if fits(folder, added_folders()) or folder.endswith(".libs"):
            added.add(folder)
    needs = []
    for library in loadable:
        # Where the loader looks: the DLL's own folder (Python loads modules so), then those that
        # packages add.
        path = installed_path(library.path).lower()
        folders = [posixpath.dirname(path), *sorted(added)]
        for name, when in wants(library):
            keys = ((folder, name.lower(), library.machine) for folder in folders)
            by = next((places[key] for key in keys if key in places), None)
            answer = Answer.DEPENDENCY if by in dependency_paths else _answer(name, by, exclude)
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
    source = owner(name)
    return Answer.MISSING if source is None else Answer(source)


@dataclass(frozen=True)
class DependencyWheel:
    """One wheel that METADATA requires: its file name, sha256, name, version and libraries."""

    file: str
    sha256: str
    name: str
    version: str
    libraries: tuple[Library, ...]


def read_dependencies(paths: Sequence[Path], info: DistInfo) -> tuple[DependencyWheel, ...]:
    """Read those of the given wheels, and of the wheels in the given folders, that a wheel
    requires.

    Raises:
        UsageError: A file cannot be read, or a wheel that was given by name is not required.
        VerificationFailedError: A required wheel is damaged, or two fit one requirement.
    """
    requirements = _requirements(info)
    wheels: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or folder")
        files = sorted(path.glob("*.whl")) if path.is_dir() else [path]
        for file in files:
            name = parse_wheel_name(file.name)
            fits = any(
                same_name(requirement.name, name.name)
                and requirement.specifier.contains(name.version, prereleases=True)
                for requirement in requirements
            )
            if not fits and path.is_dir():
                continue
            if not fits:
                raise UsageError(
                    f"{file.name} is not a dependency of {info.name} {info.version}",
                    hint=f"its METADATA requires: {', '.join(map(str, requirements)) or 'nothing'}",
                )
            if name.name in wheels:
                raise UsageError(
                    f"{wheels[name.name].name} and {file.name}: two wheels for one dependency"
                )
            wheels[name.name] = file
    return tuple(_read(file) for _, file in sorted(wheels.items()))


def required(info: DistInfo) -> set[str]:
    """The names, in normal form, of what METADATA requires."""
    return {canonicalize_name(requirement.name) for requirement in _requirements(info)}


def brings(library: str, requires: Iterable[str]) -> str | None:
    """The requirement whose wheel has a library, by their names: `nvidia-cublas-cu12` has
    `libcublasLt.so.12`.
    """
    stem = re.sub(r"[^a-z0-9]", "", re.sub(r"^lib|\.(so|dll)\b.*", "", library.lower()))
    owner = next(
        (
            line.split()[0]
            for line in defaults("brought_by")
            if fnmatchcase(library, line.split()[1])
        ),
        None,
    )
    longest = 0
    best = None
    for line in requires:
        text = line.partition(";")[0].strip()
        name = canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0])
        if name == owner:
            return text
        words = [word.removeprefix("py") for word in name.split("-") if word != "nvidia"]
        length = max(
            (len(word) for word in words if len(word) > 2 and stem.startswith(word)), default=0
        )
        if length > longest:
            longest = length
            best = text
    return best


def _requirements(info: DistInfo) -> list[Requirement]:
    """Requirements of METADATA; unreadable ones are another check's finding."""
    requirements = []
    for line in info.requires_dist:
        try:
            requirements.append(read_requirement(line))
        except InvalidRequirement:
            continue
    return requirements


def _read(path: Path) -> DependencyWheel:
    name = parse_wheel_name(path.name)
    with Archive(path) as archive:
        info = read_dist_info(archive)
        if not same_name(info.name, name.name):
            raise VerificationFailedError(f"{path.name}: its METADATA is that of {info.name}")
        # No CPU level: of these wheels only exports and device code are judged.
        contents = read_contents(archive)
    return DependencyWheel(path.name, sha256_of(path), name.name, name.version, contents.libraries)
