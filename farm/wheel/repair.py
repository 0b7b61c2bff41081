"""Repair: a wheel as built becomes one that carries its libraries and says truly where it runs.

Two ways lead there, and `RepairOptions.into` chooses. `vendor` puts libraries, under their own
names, into a folder in which the package looks already: `$ORIGIN` in the RUNPATHs of torch's
libraries, `torch/lib` in Windows' search. So libraries stay as they are but for RPATHs that lead
nowhere on other machines, or have to lead into other wheels (`rpaths`): patching costs minutes and
twice the memory on libraries of PyTorch's size, and has broken fat binaries before. Other packages
need new RUNPATHs on Linux, and load code on Windows: auditwheel with patchelf, and delvewheel,
write both and put the libraries into `<name>.libs` under names of their own (`repair_tools`);
`vendor` has the last word on RECORD, METADATA, tags and the file name.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.base.text import printable
from farm.wheel.additions import (
    Addition,
    collect,
    libraries_for,
    opened,
    opened_additions,
    read_file,
    symbols_of_file,
)
from farm.wheel.archive import Archive
from farm.wheel.library import Contents, Library, Progress, read_contents
from farm.wheel.library_wheels import LibraryWheel, without_wheel_libraries
from farm.wheel.member_names import check_name
from farm.wheel.metadata import (
    RECORD_LIMIT,
    DistInfo,
    Row,
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
from farm.wheel.needs import TWO_OPENMP, resolve, system_needs, two_openmp
from farm.wheel.repair_tools import link_libraries, run_auditwheel, run_delvewheel
from farm.wheel.rewrite import renames, rewrite
from farm.wheel.rpaths import neighbours, with_rpaths
from farm.wheel.tags import check_supported, earned_level, platform_machine, windows_machine
from farm.wheel.zipwriter import NewMember


class RepairOptions(NamedTuple):
    """A request to repair; the command line and a plan's recipe fill it.

    Attributes:
        lib_dirs: Where to take libraries from, in this order. For DLLs case does not count.
        into: Folder inside the wheel for them, such as `torch/lib`; None has auditwheel or
            delvewheel choose one and change the libraries so that it is found.
        exclude: Name patterns (`fnmatch`) of libraries to leave out, besides the NVIDIA driver's.
        version: The new version; None keeps it.
        requires: Requirements that METADATA must have, such as `numpy<2`; those that it lacks are
            added.
        description: A paragraph for the end of METADATA's description.
        opens: Name patterns of files in `lib_dirs` that go in as well, although no library names
            them: one opens them by name at run time. Each must fit a file.
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
    """A library that was put into the wheel.

    Attributes:
        path: The name of the member.
        source: Its file, or the tool that found it.
        sha256: In hexadecimal.
        size: In bytes.
    """

    path: str
    source: str
    sha256: str
    size: int


class RepairResult(NamedTuple):
    """The result of repair.

    Attributes:
        wheel: The new file.
        vendored: The libraries that were added.
        tags: Platform tags that the libraries earn, as in the file name; none where the old ones
            are kept (Windows).
        record_corrected: Members whose row in the old RECORD was wrong; the new one is right.
        contents: Of the new wheel, with symbols and without device code.
    """

    wheel: Path
    vendored: tuple[Vendored, ...]
    tags: tuple[str, ...]
    record_corrected: tuple[str, ...]
    contents: Contents

    def to_json(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, strings, numbers."""
        fields = self._asdict()
        del fields["contents"]
        fields["wheel"] = str(self.wheel)
        fields["vendored"] = [library._asdict() for library in self.vendored]
        return fields


class _Identity(NamedTuple):
    """What the name, METADATA and WHEEL of the new wheel say.

    Attributes:
        version: None keeps the old one.
        platforms: Platform tags; none keep the old ones.
        requires: Requirements to add.
        description: A paragraph to add.
    """

    version: str | None
    platforms: tuple[str, ...]
    requires: Sequence[str]
    description: str


class _Changes(NamedTuple):
    """What is different in the new wheel: members that are gone, renamed, and written."""

    dropped: frozenset[str]
    renamed: Mapping[str, str]
    written: Mapping[str, tuple[str, int]]


def vendor(
    wheel: Path,
    dest: Path,
    options: RepairOptions,
    into: str,
    opens: Sequence[Path],
    *,
    source: Path | None = None,
    paths: bool = True,
    progress: Progress | None = None,
) -> RepairResult:
    """Repair with the libraries in a folder of the wheel.

    Args:
        wheel: The file.
        dest: The folder for the new one.
        options: What is asked for; its `into` and `opens` were decided already.
        into: The folder inside the wheel.
        opens: Files that go in besides.
        source: The user's own file, of which `wheel` is a later state.
        paths: Correct RPATHs.
        progress: Called while the wheel is read.
    """
    if not dest.is_dir():
        raise UsageError(f"{dest}: no such folder")
    folder = _checked_folder(into)
    version = None
    if options.version is not None:
        version = normal_version(options.version)
    requirements = [normal_requirement(entry) for entry in options.requires]
    name = parse_wheel_name(wheel.name)
    with Archive(wheel) as archive, temporary_folder(".repair-", dest) as scratch:
        # pip goes by the tags of the name, whatever WHEEL says.
        info = read_dist_info(archive)._replace(tags=name.tags)
        contents = read_contents(archive, with_symbols=True, device=False, progress=progress)
        record_corrected = _wrong_rows(archive, info, contents)
        _refuse_two_openmp(contents.libraries)
        machine = _machine(info, contents)
        patched: list[NewMember] = []
        if paths and platform_machine(info.tags) is not None:
            wheels, patched = with_rpaths(
                archive, contents.libraries, options.library_wheels, options.opens, scratch
            )
            contents = _with_files(contents, patched)
            for library_wheel in wheels:
                requirements.append(normal_requirement(library_wheel.requirement))
        opened_by_name = opened_additions(opens, machine, folder, contents)
        additions = collect(
            contents, machine, folder, options.lib_dirs, options.exclude, opened_by_name
        )
        platforms = _platforms(info, contents, additions, machine, options.exclude)
        target = dest / name.renamed(version=version, platforms=platforms)
        if target.exists() and target.samefile(source or wheel):
            raise UsageError(
                f"{target}: repair would overwrite the wheel it reads", hint="give another folder"
            )
        lacking = _lacking(info, requirements)
        identity = _Identity(version, platforms, lacking, options.description)
        new = list(patched)
        for addition in additions:
            new.append(NewMember(addition.library.path, addition.source, 0o755))
        changes = _write(archive, info, contents, new, target, identity)
    vendored = []
    for addition in additions:
        path = addition.library.path
        sha256, size = changes.written[path]
        vendored.append(Vendored(path, str(addition.source), sha256, size))
    return RepairResult(
        wheel=target,
        vendored=tuple(vendored),
        tags=platforms,
        record_corrected=record_corrected,
        contents=_contents_of(contents, changes, additions),
    )


def _checked_folder(into: str) -> str:
    """The folder inside the wheel, as it is written in names of members."""
    folder = into.strip("/")
    try:
        check_name(folder)
    except VerificationFailedError as error:
        raise UsageError(f"into {into!r}: {error}") from error
    return folder


def _wrong_rows(
    archive: Archive,
    info: DistInfo,
    contents: Contents,
) -> tuple[str, ...]:
    """The members whose row in RECORD is wrong."""
    rows: list[Row] = []
    with suppress(VerificationFailedError):  # it is written anew whatever it is
        _, rows = read_record(archive, info.record)
    problems = compare_record(archive, rows, info.record, contents.files)
    return tuple(printable(path) for path, _ in problems)


def _with_files(contents: Contents, patched: Sequence[NewMember]) -> Contents:
    """The contents, with what the files of corrected libraries say."""
    corrected = {}
    for member in patched:
        if isinstance(member.content, Path):
            corrected[member.name] = read_file(member.content, member.name)
    libraries = tuple(corrected.get(library.path, library) for library in contents.libraries)
    return contents._replace(libraries=libraries)


def _lacking(info: DistInfo, requirements: Sequence[str]) -> list[str]:
    """The requirements that METADATA does not have yet."""
    declared = set()
    for line in info.requires_dist:
        with suppress(UsageError):
            declared.add(normal_requirement(line))
    return [requirement for requirement in requirements if requirement not in declared]


def _refuse_two_openmp(libraries: Sequence[Library]) -> None:
    """The wheel is no good, whatever is added to it."""
    for library in libraries:
        runtimes = two_openmp(library)
        if runtimes:
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
    if machine is None:
        tags = ", ".join(sorted(info.tags))
        raise VerificationFailedError(
            f"the wheel holds libraries ({first!r}), but its tags are {tags}",
            hint="build it with a platform tag (Root-Is-Purelib: false)",
        )
    built_for = {library.machine for library in loadable}
    if machine not in built_for:
        machines = ", ".join(sorted(built_for))
        raise VerificationFailedError(
            f"its libraries ({first!r}) are for {machines}, its tag is for {machine}",
            hint="build it for the machine of the tag, or with that machine's tag",
        )
    return machine


def _platforms(
    info: DistInfo,
    contents: Contents,
    additions: Sequence[Addition],
    machine: str | None,
    exclude: Sequence[str],
) -> tuple[str, ...]:
    """The platform tags that the wheel earns; empty for a wheel without libraries, or of
    Windows.
    """
    if machine is None or platform_machine(info.tags) is None:
        return ()
    # A wheel may carry programs for other machines (GPU or host tools): the tag promises nothing
    # about those.
    libraries = libraries_for(machine, contents, additions)
    needs = resolve(libraries, exclude)
    level = earned_level(system_needs(libraries, needs), machine)
    return level.tags(machine)


def _write(
    archive: Archive,
    info: DistInfo,
    contents: Contents,
    libraries: Sequence[NewMember],
    target: Path,
    identity: _Identity,
) -> _Changes:
    """Write the new wheel."""
    folder = info.folder
    version = identity.version
    rename = {}
    if version is not None:
        rename = renames(archive, info.stem, version.replace("-", "_"))
    old_metadata = f"{folder}/METADATA"
    new_metadata = rename.get(old_metadata, old_metadata)
    new_folder, _, _ = new_metadata.partition("/")

    new = list(libraries)
    # Signatures of the old RECORD go with it: they would be false.
    dropped = set(info.signed)
    dropped.update(member.name for member in libraries)
    if version is not None or identity.requires or identity.description:
        dropped.add(old_metadata)
        metadata = with_requirements(archive.read(old_metadata), identity.requires)
        metadata = with_description(metadata, identity.description)
        metadata = with_version(metadata, version or info.version)
        new.append(NewMember(new_metadata, metadata))
    old_wheel = archive.read(f"{folder}/WHEEL")
    wheel = with_tags(old_wheel, _tags(info, identity.platforms))
    # The order of its lines is no reason to change it.
    if sorted(wheel.split()) != sorted(old_wheel.split()):
        dropped.add(f"{folder}/WHEEL")
        new.append(NewMember(f"{new_folder}/WHEEL", wheel))

    written = rewrite(
        archive,
        target,
        record=f"{new_folder}/RECORD",
        hashes=contents.files,
        drop=frozenset(dropped),
        rename=rename,
        new=new,
    )
    return _Changes(frozenset(dropped), rename, written)


def _tags(info: DistInfo, platforms: Sequence[str]) -> list[str]:
    """The lines `Tag:` of WHEEL; without platforms they stay."""
    pairs = set()
    old_platforms = set()
    for tag in info.tags:
        python_and_abi, _, platform = tag.rpartition("-")
        pairs.add(python_and_abi)
        old_platforms.add(platform)
    lines = []
    for python_and_abi in sorted(pairs, key=lambda pair: pair.split("-")):
        for platform in platforms or sorted(old_platforms):
            lines.append(f"{python_and_abi}-{platform}")
    return lines


def _contents_of(
    old: Contents,
    changes: _Changes,
    additions: Sequence[Addition],
) -> Contents:
    """The contents of the new wheel, of which nothing is read that the old one had."""
    files = {}
    for name, file in old.files.items():
        if name not in changes.dropped:
            files[changes.renamed.get(name, name)] = file
    files.update(changes.written)
    added = {addition.library.path for addition in additions}
    libraries = []
    for library in old.libraries:
        path = changes.renamed.get(library.path, library.path)
        if path not in added:
            sha256, size = files[path]
            libraries.append(library._replace(path=path, sha256=sha256, size=size))
    symbols = {}
    for name, table in old.symbols.items():
        # An RPATH is no symbol: those of corrected libraries stay.
        new_name = changes.renamed.get(name, name)
        symbols[new_name] = table
    for addition in additions:
        path = addition.library.path
        sha256, size = changes.written[path]
        libraries.append(addition.library._replace(sha256=sha256, size=size))
        symbols[path] = symbols_of_file(addition.source)
    return Contents(
        files=files,
        libraries=tuple(libraries),
        symbols=symbols,
        dll_folders=old.dll_folders,
    )


def repair(
    wheel: Path,
    dest: Path,
    options: RepairOptions,
    progress: Progress | None = None,
) -> RepairResult:
    """Write a wheel that needs nothing but the system: with its libraries and, for Linux, true
    tags.

    Args:
        wheel: The file.
        dest: The folder for the new one.
        options: What is asked for.
        progress: Called while the wheel is read.

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
    patterns = without_wheel_libraries(options.opens, options.library_wheels)
    opens = opened(options.lib_dirs, patterns)
    exclude = list(options.exclude)
    for library_wheel in options.library_wheels:
        exclude += library_wheel.libraries
    options = options._replace(exclude=exclude)
    if options.into is not None:
        return vendor(wheel, dest, options, options.into, opens, progress=progress)
    return _repair_by_tools(wheel, dest, options, opens, progress)


def _repair_by_tools(
    wheel: Path,
    dest: Path,
    options: RepairOptions,
    opens: Sequence[Path],
    progress: Progress | None,
) -> RepairResult:
    """Repair with the libraries in `<name>.libs`. Nothing is left in `dest` on failure.

    What is in `opens` keeps its name there, by which it is opened. On Linux it is found through the
    RPATH that auditwheel gives the package's own libraries: the loader asks that of every library
    on the way to the one that opens (ld.so(8): DT_RPATH, unlike DT_RUNPATH, holds for what is
    loaded in turn). It goes in before auditwheel, which gives what it needs (cuDNN's parts need
    cuBLAS) the new names.
    """
    name = parse_wheel_name(wheel.name)
    windows = windows_machine(name.tags) is not None  # pip goes by these, whatever WHEEL says
    with Archive(wheel) as archive:  # no tool sees a hostile wheel
        before = frozenset(archive.members)
        libraries = read_contents(archive, device=False, progress=progress).libraries
        _refuse_two_openmp(libraries)
    libs = f"{name.parts[0]}.libs"
    # auditwheel refuses those that are pure or for macOS, and abi3 modules without a libc: none can
    # be guessed.
    has_needs = bool(opens) or any(library.needed for library in libraries)
    if not windows and (not has_needs or platform_machine(name.tags) is None):
        return vendor(wheel, dest, options, libs, opens, progress=progress)
    with temporary_folder(".repair-", dest if dest.is_dir() else None) as scratch:
        if windows:
            tool = "delvewheel"
            repaired = _by_delvewheel(wheel, options, scratch)
        else:
            tool = "auditwheel"
            repaired = _by_auditwheel(wheel, options, libraries, libs, opens, scratch)
        # No library is missing any more: this writes version, requirements, tags and RECORD as for
        # every other wheel.
        without_folders = options._replace(lib_dirs=())
        result = vendor(
            repaired, dest, without_folders, libs, opens, source=wheel, progress=progress
        )
        return result._replace(vendored=_added(before, result.wheel, libs, tool))


def _by_delvewheel(wheel: Path, options: RepairOptions, scratch: Path) -> Path:
    """The wheel as delvewheel repairs it, in a scratch folder."""
    output = scratch / "made"
    output.mkdir()
    run_delvewheel(wheel, output, options.lib_dirs, options.exclude)
    return _wheel_in(output, wheel)


def _by_auditwheel(
    wheel: Path,
    options: RepairOptions,
    libraries: Sequence[Library],
    libs: str,
    opens: Sequence[Path],
    scratch: Path,
) -> Path:
    """The wheel as auditwheel repairs it, in a scratch folder.

    Args:
        wheel: The file.
        options: What is asked for.
        libraries: Those of the wheel.
        libs: The folder inside the wheel that gets what it lacks.
        opens: Files that go in besides.
        scratch: The folder.
    """
    output = scratch / "made"
    output.mkdir()
    tool_input = wheel
    if opens:  # auditwheel sees what RECORD lists
        alone = RepairOptions(exclude=["*"])
        tool_input = vendor(wheel, scratch, alone, libs, opens, paths=False).wheel
    libraries_folder = scratch / "libraries"
    linked = link_libraries(options.lib_dirs, libraries_folder)
    exclude = list(options.exclude)
    exclude += [path.name for path in opens]
    # `vendor` leads to these; auditwheel refuses what it cannot find.
    for names in neighbours(libraries).values():
        exclude += sorted(names.keys() - linked)
    run_auditwheel(tool_input, output, libraries_folder, exclude)
    return _wheel_in(output, tool_input)


def _wheel_in(output: Path, tool_input: Path) -> Path:
    """The wheel that a tool wrote, or the one that it read: auditwheel says so, and succeeds, when
    there is nothing to do.
    """
    wheels = sorted(output.glob("*.whl"))
    return wheels[0] if wheels else tool_input


def _added(
    before: Collection[str],
    repaired: Path,
    libs: str,
    tool: str,
) -> tuple[Vendored, ...]:
    """Libraries that the tool put into the folder `libs`; their sources are unknown."""
    with Archive(repaired) as archive:
        info = read_dist_info(archive)
        record = parse_record(archive.read(info.record, RECORD_LIMIT))
    added = []
    for row in sorted(record, key=lambda row: row.path):
        is_new = row.path.startswith(f"{libs}/") and row.path not in before
        if is_new and row.digest and row.size is not None:
            added.append(Vendored(row.path, tool, row.digest, row.size))
    return tuple(added)
