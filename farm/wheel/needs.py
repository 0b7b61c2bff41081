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
dll_folders.py), and in System32; never in PATH. Case does not count. Source: Microsoft,
"Dynamic-link library search order".

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
from farm.wheel.metadata import DistInfo, WheelName, parse_wheel_name, read_dist_info, same_name
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
    if library.format != "pe":
        return None
    runtimes = openmp_runtimes((*library.needed, *library.delay_needed))
    return ", ".join(runtimes) if len(runtimes) > 1 else None


def installed_path(member: str) -> str:
    """Where a member is below site-packages: `x.data/platlib/` and `x.data/purelib/` are unpacked
    there.
    """
    parts = member.split("/", 2)
    if len(parts) != 3:
        return member
    data_folder, kind, path = parts
    if data_folder.endswith(".data") and kind in ("platlib", "purelib"):
        return path
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

    def __init__(
        self,
        libraries: Sequence[Library],
        dependencies: Sequence[Library],
    ) -> None:
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
        self,
        library: Library,
        name: str,
        paths: Sequence[str],
        exclude: Sequence[str],
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
        if by:
            return Need(library.path, name, Answer.UNREACHABLE, by)
        return Need(library.path, name, Answer.MISSING)


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
    loadable = []
    dlls = []
    for library in libraries:
        if library.format == "pe":
            dlls.append(library)
        elif library.is_loadable:
            loadable.append(library)
    dependency_libraries = []
    dependency_dlls = []
    for library in dependencies:
        if library.is_loadable:
            dependency_libraries.append(library)
            if library.format == "pe":
                dependency_dlls.append(library)

    files = _ElfFiles(loadable, dependency_libraries)
    inherited = _inherited(loadable, files.places)
    needs = []
    patterns = (*DRIVER, *exclude)
    for library in loadable:
        folders = search_folders(library)
        folders += inherited.get(library.path, ())
        for name in library.needed:
            paths = _paths(library, name, folders)
            need = files.need(library, name, paths, patterns)
            needs.append(need)
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
    libraries: list[Library],
    places: dict[tuple[str, str], str],
) -> dict[str, list[str]]:
    """Folders that libraries without RUNPATH inherit as RPATH from those that need them, directly
    or in turn.
    """
    by_path = {}
    waiting = []
    for library in libraries:
        by_path[library.path] = library
        if library.search_path and not library.has_runpath:
            waiting.append(library)

    inherited: dict[str, list[str]] = {}
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
                if _add_new(inherited.setdefault(path, []), folders):
                    waiting.append(by_path[path])
                break
    return inherited


def _add_new(entries: list[str], further: Iterable[str]) -> bool:
    """Add the further entries that a list lacks; True if there are any."""
    new = [entry for entry in further if entry not in entries]
    entries += new
    return bool(new)


def search_folders(library: Library) -> list[str]:
    """The folders inside the installed wheel where the loader looks for what `library` needs."""
    folders = []
    for entry in library.search_path:
        folder = inside(library.path, entry)
        # Other entries lead out of the wheel: to the system, or to the machine that built it.
        if folder is not None:
            folders.append(folder)
    return folders


def system_needs(
    libraries: Iterable[Library],
    needs: Iterable[Need],
) -> list[SystemNeed]:
    """Needs of each library that the system must meet: all that the wheel itself does not."""
    in_wheel: dict[str, set[str]] = {}
    for need in needs:
        if need.answer in (Answer.WHEEL, Answer.DEPENDENCY, Answer.UNREACHABLE):
            in_wheel.setdefault(need.who, set()).add(need.name)
    result = []
    for library in libraries:
        if not library.is_loadable or library.format != "elf":
            continue
        answered = in_wheel.get(library.path, set())
        versions: set[str] = set()
        for file, names in library.versions.items():
            if file not in answered:
                versions.update(names)
        need_of_library = SystemNeed(
            who=library.path,
            libraries=frozenset(library.needed) - answered,
            versions=frozenset(versions),
        )
        result.append(need_of_library)
    return result


def wants(library: Library) -> Iterator[tuple[str, str]]:
    """(name, when) of every DLL that a library asks for; see `Need.when`."""
    for name in library.needed:
        yield name, "load"
    for name in library.delay_needed:
        yield name, "call"
    for name in library.named:
        yield name, "name"


class _DllFiles:
    """What Windows' loader finds in the wheel, and in the wheels that are installed beside it.

    Names are in lower case: Windows' names do not tell cases apart, and neither does its loader.

    Attributes:
        places: The DLLs by folder below site-packages, name and machine.
        names: By name and machine alone.
        added: The folders that packages add to the search.
        dependency_paths: The paths of the DLLs of dependencies.
    """

    def __init__(
        self,
        libraries: Iterable[Library],
        dependencies: Sequence[Library],
        dll_folders: Collection[str],
    ) -> None:
        self.places: dict[tuple[str, str, str], str] = {}
        self.names: dict[tuple[str, str], str] = {}
        added = set(dll_folders)
        for library in (*libraries, *dependencies):
            folder, name = posixpath.split(installed_path(library.path).lower())
            self.places[folder, name, library.machine] = library.path
            self.names.setdefault((name, library.machine), library.path)
            if fits(folder, added_folders()) or folder.endswith(".libs"):
                added.add(folder)
        self.added = sorted(added)
        self.dependency_paths = {library.path for library in dependencies}

    def need(
        self,
        library: Library,
        name: str,
        when: str,
        exclude: Sequence[str],
    ) -> Need:
        """Who answers a need, in the loader's order."""
        by = self._reached(library, name)
        if by in self.dependency_paths:
            return Need(library.path, name, Answer.DEPENDENCY, by, when)
        answer = _answer(name, by, exclude)
        if answer is Answer.MISSING:
            # In the wheel all the same? Then it is where the loader does not look.
            by = self.names.get((name.lower(), library.machine))
            if by:
                answer = Answer.UNREACHABLE
        return Need(library.path, name, answer, by, when)

    def _reached(self, library: Library, name: str) -> str | None:
        """The file that the loader finds: in the DLL's own folder (Python loads modules so), or in
        one that packages add.
        """
        own_folder = posixpath.dirname(installed_path(library.path).lower())
        low = name.lower()
        for folder in (own_folder, *self.added):
            path = self.places.get((folder, low, library.machine))
            if path is not None:
                return path
        return None


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
    files = _DllFiles(loadable, dependencies, dll_folders)
    needs = []
    for library in loadable:
        for name, when in wants(library):
            needs.append(files.need(library, name, when, exclude))
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


def read_dependencies(
    paths: Sequence[Path],
    info: DistInfo,
) -> tuple[DependencyWheel, ...]:
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
        files = [path]
        if path.is_dir():
            files = sorted(path.glob("*.whl"))
        for file in files:
            name = parse_wheel_name(file.name)
            if not _is_required(name, requirements):
                if path.is_dir():
                    continue
                requires = ", ".join(map(str, requirements)) or "nothing"
                raise UsageError(
                    f"{file.name} is not a dependency of {info.name} {info.version}",
                    hint=f"its METADATA requires: {requires}",
                )
            if name.name in wheels:
                raise UsageError(
                    f"{wheels[name.name].name} and {file.name}: two wheels for one dependency"
                )
            wheels[name.name] = file
    return tuple(_read(file) for _, file in sorted(wheels.items()))


def _is_required(wheel: WheelName, requirements: Iterable[Requirement]) -> bool:
    """True if a wheel meets one of the requirements."""
    for requirement in requirements:
        if not same_name(requirement.name, wheel.name):
            continue
        if requirement.specifier.contains(wheel.version, prereleases=True):
            return True
    return False


def required(info: DistInfo) -> set[str]:
    """The names, in normal form, of what METADATA requires."""
    return {canonicalize_name(requirement.name) for requirement in _requirements(info)}


def brings(library: str, requires: Iterable[str]) -> str | None:
    """The requirement whose wheel has a library, by their names: `nvidia-cublas-cu12` has
    `libcublasLt.so.12`.
    """
    bare_name = re.sub(r"^lib|\.(so|dll)\b.*", "", library.lower())
    stem = re.sub(r"[^a-z0-9]", "", bare_name)
    package = _package_of(library)
    longest = 0
    best = None
    for line in requires:
        text = line.partition(";")[0].strip()
        name = canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0])
        if name == package:
            return text
        length = _common_length(name, stem)
        if length > longest:
            longest = length
            best = text
    return best


def _package_of(library: str) -> str | None:
    """The package whose wheel has a library, by the list of those whose names do not tell."""
    for line in defaults("brought_by"):
        package, pattern, *_ = line.split()
        if fnmatchcase(library, pattern):
            return package
    return None


def _common_length(package: str, stem: str) -> int:
    """The length of the longest word of a package's name with which a library's stem begins."""
    longest = 0
    for part in package.split("-"):
        word = part.removeprefix("py")
        if part != "nvidia" and len(word) > 2 and stem.startswith(word):
            longest = max(longest, len(word))
    return longest


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
    return DependencyWheel(
        file=path.name,
        sha256=sha256_of(path),
        name=name.name,
        version=name.version,
        libraries=contents.libraries,
    )
