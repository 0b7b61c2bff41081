"""A wheel as built becomes a wheel that carries its libraries and says truly where it runs.

Libraries go into a folder that the wheel's own libraries already look in (`$ORIGIN` in their RUNPATH), under
their own names; DLLs into one that the package adds to Windows' search (torch/lib). So libraries stay as they are but
for RPATHs that lead nowhere on other machines, or have to lead into other wheels: patching costs minutes and twice the
memory on libraries of PyTorch's size, and has broken fat binaries before. What is not changed is copied compressed.
"""

import mmap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.base.text import printable
from farm.wheel.archive import Archive, Limits, check_name
from farm.wheel.elf import ELF_MAGIC
from farm.wheel.library import Contents, Library, magics, read_library, read_needs
from farm.wheel.library_wheels import LibraryWheel, point
from farm.wheel.metadata import (
    DistInfo,
    normal_requirement,
    normal_version,
    parse_wheel_name,
    read_dist_info,
    with_description,
    with_requirements,
    with_tags,
    with_version,
)
from farm.wheel.needs import TWO_OPENMP, Answer, Need, resolve, system_needs, two_openmp
from farm.wheel.record import compare_record, read_record
from farm.wheel.rewrite import NewMember, rewrite
from farm.wheel.tags import platform_machine, windows_machine

_MAX_ROUNDS = 100


class RepairOptions(NamedTuple):
    """A request to repair; the command line and a plan's recipe fill it.

    Attributes:
        lib_dirs: Where to take libraries from, in this order. For DLLs case does not count.
        into: Folder inside the wheel for them, such as `torch/lib`; None has auditwheel or delvewheel choose one and
            change the libraries so that it is found (`farm.wheel.repair`).
        exclude: Name patterns (`fnmatch`) of libraries to leave out, besides the NVIDIA driver's.
        version: The new version; None keeps it.
        requires: Requirements that METADATA must have, such as `numpy<2`; those that it lacks are added.
        opens: Name patterns of files in `lib_dirs` that go in as well, although no library names them: one opens them
            by name at run time. Each must fit a file.
        description: A paragraph for the end of METADATA's description.
        library_wheels: Wheels of which libraries are needed instead of being vendored (Linux).
    """

    lib_dirs: Sequence[Path] = ()
    into: str | None = None
    exclude: Sequence[str] = ()
    version: str | None = None
    requires: Sequence[str] = ()
    description: str = ""
    opens: Sequence[str] = ()
    library_wheels: Sequence[LibraryWheel] = ()


class Vendored(NamedTuple):
    """A library that was put into the wheel: member name, its file or the tool that found it, sha256, bytes."""

    path: str
    source: str
    sha256: str
    size: int


class RepairResult(NamedTuple):
    """The result of repair.

    Attributes:
        wheel: The new file.
        vendored: The libraries that were added.
        tags: Platform tags that the libraries earn, as in the file name; none where the old ones are kept (Windows).
        record_corrected: Members whose row in the old RECORD was wrong; the new one is right.
    """

    wheel: Path
    vendored: tuple[Vendored, ...]
    tags: tuple[str, ...]
    record_corrected: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, strings, numbers."""
        return {**self._asdict(), "wheel": str(self.wheel), "vendored": [one._asdict() for one in self.vendored]}


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
    limits: Limits | None = None,
    paths: bool = True,
) -> RepairResult:
    """Repair with the libraries in the folder `into`; `opens` go in besides.

    `source`: the user's own file, of which `wheel` is a later state. Without `paths` all RPATHs stay as they are.
    """
    if not dest.is_dir():
        raise UsageError(f"{dest}: no such folder")
    folder = into.strip("/")
    try:
        check_name(folder)
    except VerificationFailedError as error:
        raise UsageError(f"into {into!r}: {error}") from error
    new_version = None if options.version is None else normal_version(options.version)
    wanted = [normal_requirement(each) for each in options.requires]
    name = parse_wheel_name(wheel.name)
    with Archive(wheel, limits) as archive, temporary_folder(".repair-", dest) as patched:
        info = read_dist_info(archive)._replace(tags=name.tags)  # pip goes by these, whatever WHEEL says
        record = []
        with suppress(VerificationFailedError):  # it is written anew whatever it is
            record = read_record(archive, info.record)[1]
        contents = read_needs(archive)
        refuse_two_openmp(contents.libraries)
        machine = _machine(info, contents)
        changed: list[NewMember] = []
        if paths and platform_machine(info.tags) is not None:
            needed, changed = point(archive, contents.libraries, options.library_wheels, options.opens, patched)
            contents = contents._replace(libraries=_read_again(contents.libraries, changed))
            wanted += [normal_requirement(each.requirement) for each in needed]
        given = _given(opens, machine, folder, contents)
        found = _collect(contents, machine, folder, options, given)
        platforms = _platforms(info, contents, found, machine, options.exclude)
        target = dest / name.renamed(version=new_version, platforms=platforms)
        if target.exists() and target.samefile(source or wheel):
            raise UsageError(f"{target}: repair would overwrite the wheel it reads", hint="give another folder")
        lacking = [each for each in wanted if each not in _declared(info)] if wanted else []
        new = [*changed, *(NewMember(item.library.path, item.source, 0o755) for item in found)]
        written = _write(archive, info, contents, new, target, new_version, platforms, lacking, options.description)
    return RepairResult(
        wheel=target,
        vendored=tuple(
            Vendored(
                path=item.library.path,
                source=str(item.source),
                sha256=written[item.library.path][0],
                size=written[item.library.path][1],
            )
            for item in found
        ),
        tags=platforms,
        record_corrected=tuple(printable(path) for path, _ in compare_record(record, info.record, contents.files)),
    )


def _read_again(libraries: Sequence[Library], changed: Sequence[NewMember]) -> tuple[Library, ...]:
    """The libraries, with the facts of those that were changed as they are now."""
    new = {each.name: _read_file(each.content, each.name) for each in changed if isinstance(each.content, Path)}
    return tuple(new.get(library.path, library) for library in libraries)


def refuse_two_openmp(libraries: Sequence[Library]) -> None:
    """The wheel is no good, whatever is added to it.

    Raises:
        VerificationFailedError: A DLL imports two OpenMP runtimes.
    """
    for library in libraries:
        if runtimes := two_openmp(library):
            raise VerificationFailedError(
                f"{library.path} imports two OpenMP runtimes: {runtimes}: it computes wrong numbers",
                hint=f"build it again: {TWO_OPENMP}",
            )


def _machine(info: DistInfo, contents: Contents) -> str | None:
    """The machine that the tags name, as libraries name it; None for a wheel without libraries.

    Raises:
        VerificationFailedError: No library is for it, or one cannot be read.
    """
    for library in contents.libraries:
        if library.error:
            raise VerificationFailedError(f"member {library.path!r}: {library.error}")
    machine = platform_machine(info.tags) or windows_machine(info.tags)
    loadable = [library.path for library in contents.libraries if library.is_loadable]
    if not loadable:
        return None
    if machine is None:
        raise VerificationFailedError(
            f"the wheel holds libraries ({loadable[0]!r}), but its tags are {', '.join(sorted(info.tags))}",
            hint="build it with a platform tag (Root-Is-Purelib: false)",
        )
    built_for = {library.machine for library in contents.libraries if library.is_loadable}
    if machine not in built_for:
        raise VerificationFailedError(
            f"its libraries ({loadable[0]!r}) are for {', '.join(sorted(built_for))}, its tag is for {machine}",
            hint="build it for the machine of the tag, or with that machine's tag",
        )
    return machine


def opened(lib_dirs: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """The files in `lib_dirs` whose names fit the patterns (`fnmatch`): libraries that others open by name.

    Raises:
        VerificationFailedError: A pattern fits none.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        fitting = [path for folder in lib_dirs for path in sorted(folder.glob("*")) if fnmatchcase(path.name, pattern)]
        if not fitting:
            searched = ", ".join(map(str, lib_dirs)) or "none given"
            raise VerificationFailedError(
                f"no library named {pattern} is in the library folders ({searched}); one is opened by this name",
                hint="give the folder that holds it",
            )
        for path in fitting:
            found.setdefault(path.name, path)
    return list(found.values())


def _given(opens: Sequence[Path], machine: str | None, folder: str, contents: Contents) -> dict[str, _Found]:
    there = {library.path for library in contents.libraries}
    found = {}
    for source in opens:
        path = f"{folder}/{source.name}"
        check_name(path)
        if path not in there:
            library = _read_file(source, path)
            if library.error or library.machine != machine:
                raise VerificationFailedError(f"{source}: {library.error or f'a library for {library.machine}'}")
            found[source.name] = _Found(library, source)
    return found


def _collect(
    contents: Contents, machine: str | None, folder: str, options: RepairOptions, given: Mapping[str, _Found]
) -> list[_Found]:
    """Everything that is missing, and what that misses in turn."""
    found = dict(given)
    # Each round may bring libraries with needs of their own; a real chain has a handful of steps.
    for _ in range(_MAX_ROUNDS):
        libraries = [*contents.libraries, *(item.library for item in found.values())]
        needs = resolve([library for library in libraries if library.machine == machine], options.exclude)
        missing = {_key(need): need for need in needs if need.answer is Answer.MISSING}
        if not missing:
            _check_reach(needs, found, folder)
            return sorted(found.values(), key=lambda item: item.library.path)
        for key, need in missing.items():
            found[key] = _find(need, machine or "", folder, options.lib_dirs)
    raise VerificationFailedError(f"libraries need one another over more than {_MAX_ROUNDS} steps")


def _key(need: Need) -> str:
    """Needs with the same key are met by the same file."""
    return need.name.lower() if need.name.lower().endswith(".dll") else need.name


def _find(need: Need, machine: str, folder: str, lib_dirs: Sequence[Path]) -> _Found:
    # The name comes out of a binary: it must not lead out of the folders given.
    if "/" in need.name or "\\" in need.name or need.name in ("", ".", ".."):
        raise VerificationFailedError(f"{need.who} needs {need.name!r}: a path, which works on one machine only")
    for directory in lib_dirs:
        for source in _named(directory, _key(need), any_case=_key(need).endswith(".dll")):
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
        f"{need.who} needs {need.name}, which is not in the wheel, is not a system library (manylinux, Windows), "
        f"and is in none of the library folders ({searched})",
        hint="give the folder that holds it, or exclude it if the user's machine has it",
    )


def _named(directory: Path, name: str, *, any_case: bool) -> list[Path]:
    """The files of this name in a folder; on a Linux disk a DLL may be spelled in any way."""
    if not any_case:
        found = [directory / name]
    else:
        found = sorted(path for path in directory.glob("*") if path.name.lower() == name)
    return [path for path in found if path.is_file()]


def _read_file(source: Path, path: str) -> Library:
    with source.open("rb") as file:
        if not file.read(len(ELF_MAGIC)).startswith(magics(path)):  # such as a linker script
            return Library(path=path, sha256="", size=0, error="not a library")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read_library(path, "", data, None, device=False)  # its hash is taken when it is written


def _check_reach(needs: list[Need], found: dict[str, _Found], folder: str) -> None:
    for need in needs:
        if need.answer is Answer.UNREACHABLE and _key(need) in found:
            if found[_key(need)].library.format == "pe":
                raise VerificationFailedError(
                    f"{need.who} needs {need.name}, which goes into {folder}, where Windows does not look for it",
                    hint="vendor into the folder of the library that needs it, or into one that the package adds",
                )
            # From the library's own folder up to the root of the wheel, then down again.
            ups = "/".join([".."] * len(PurePosixPath(need.who).parent.parts))
            raise VerificationFailedError(
                f"{need.who} needs {need.name}, which goes into {folder}, but its RUNPATH does not lead there",
                hint=f"link it with -Wl,-rpath,'$ORIGIN/{ups}{'/' if ups else ''}{folder}' or nearer",
            )


def _platforms(
    info: DistInfo, contents: Contents, found: list[_Found], machine: str | None, exclude: Sequence[str]
) -> tuple[str, ...]:
    """The platform tags that the wheel earns; empty for a wheel without libraries, or of Windows."""
    if machine is None or platform_machine(info.tags) is None:
        return ()
    from farm.wheel.tags import earned_level  # noqa: PLC0415 (wheels for Windows do without)

    libraries = [*contents.libraries, *(item.library for item in found)]
    # A wheel may carry programs for other machines (GPU or host tools): the tag promises nothing about those.
    libraries = [library for library in libraries if library.machine == machine]
    needs = resolve(libraries, exclude)
    return earned_level(system_needs(libraries, needs), machine).tags(machine)


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
) -> dict[str, tuple[str, int]]:
    folder = info.folder
    rename = _renames(archive, info, version)
    new_folder = rename.get(f"{folder}/METADATA", f"{folder}/METADATA").partition("/")[0]
    # Signatures of the old RECORD go with it: they would be false.
    drop = {f"{folder}/RECORD", f"{folder}/RECORD.jws", f"{folder}/RECORD.p7s", *(member.name for member in new)}
    if version is not None or requires or description:
        drop.add(f"{folder}/METADATA")
        metadata = with_requirements(archive.read(f"{folder}/METADATA"), requires)
        metadata = with_description(metadata, description)
        new.append(NewMember(f"{new_folder}/METADATA", with_version(metadata, version or info.version)))
    old = archive.read(f"{folder}/WHEEL")
    pairs = sorted({tuple(tag.split("-")[:2]) for tag in info.tags})
    platforms = platforms or tuple(sorted({tag.split("-")[2] for tag in info.tags}))
    wheel = with_tags(old, [f"{python}-{abi}-{platform}" for python, abi in pairs for platform in platforms])
    # The order of its lines is no reason to change it.
    if sorted(wheel.split()) != sorted(old.split()):
        drop.add(f"{folder}/WHEEL")
        new.append(NewMember(f"{new_folder}/WHEEL", wheel))
    return rewrite(
        archive,
        target,
        record=f"{new_folder}/RECORD",
        hashes=contents.files,
        drop=frozenset(drop),
        rename=rename,
        new=new,
    )


def _declared(info: DistInfo) -> set[str]:
    """The requirements of METADATA that can be read, in normal form."""
    declared = set()
    for line in info.requires_dist:
        with suppress(UsageError):
            declared.add(normal_requirement(line))
    return declared


def _renames(archive: Archive, info: DistInfo, version: str | None) -> dict[str, str]:
    """Old to new names of what is in the folders that carry the version in their name."""
    if version is None:
        return {}
    stem = info.stem
    new_stem = f"{stem.partition('-')[0]}-{version.replace('-', '_')}"
    result = {}
    for name in archive.members:
        for ending in (".dist-info/", ".data/"):
            if name.startswith(stem + ending):
                result[name] = new_stem + name.removeprefix(stem)
    return result
