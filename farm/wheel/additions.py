"""Libraries that a wheel lacks: looked for in folders, with everything that they need in turn."""

import mmap
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.elf import ELF_MAGIC
from farm.wheel.library import Contents, Library, SymbolTable, magics, read_library, symbols_of
from farm.wheel.member_names import check_name
from farm.wheel.needs import Answer, Need, resolve

_MAX_ROUNDS = 100


class Addition(NamedTuple):
    """A library that goes into the wheel.

    Attributes:
        library: Its facts, with its name in the wheel.
        source: The file.
    """

    library: Library
    source: Path


def opened(lib_dirs: Sequence[Path], patterns: Sequence[str]) -> list[Path]:
    """The files in `lib_dirs` whose names fit the patterns (`fnmatch`): libraries that others open
    by name.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        fitting = []
        for folder in lib_dirs:
            for path in sorted(folder.glob("*")):
                if fnmatchcase(path.name, pattern):
                    fitting.append(path)
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


def opened_additions(
    files: Sequence[Path],
    machine: str | None,
    folder: str,
    contents: Contents,
) -> dict[str, Addition]:
    """The files that others open by name, as additions to a folder of the wheel, by file name.

    Args:
        files: The files; those that the wheel has already are left out.
        machine: That of the wheel's tags.
        folder: The folder inside the wheel.
        contents: Of the wheel.

    Raises:
        VerificationFailedError: One is no library of the wheel's machine.
    """
    members = {library.path for library in contents.libraries}
    additions = {}
    for source in files:
        path = f"{folder}/{source.name}"
        check_name(path)
        if path not in members:
            library = read_file(source, path)
            if library.error:
                raise VerificationFailedError(f"{source}: {library.error}")
            if library.machine != machine:
                raise VerificationFailedError(f"{source}: a library for {library.machine}")
            additions[source.name] = Addition(library, source)
    return additions


def collect(
    contents: Contents,
    machine: str | None,
    folder: str,
    lib_dirs: Sequence[Path],
    exclude: Sequence[str],
    opened_by_name: Mapping[str, Addition],
) -> list[Addition]:
    """Find everything that a wheel lacks, and what that needs in turn.

    Args:
        contents: Of the wheel.
        machine: That of its tags.
        folder: Where additions go.
        lib_dirs: Where they are looked for, in this order.
        exclude: Name patterns of libraries that may be missing.
        opened_by_name: What goes in besides.

    Raises:
        VerificationFailedError: A library is nowhere, or would not be found where it goes.
    """
    additions = dict(opened_by_name)
    # Each round may bring libraries with needs of their own; a real chain has a handful of steps.
    for _ in range(_MAX_ROUNDS):
        libraries = libraries_for(machine, contents, additions.values())
        needs = resolve(libraries, exclude, dll_folders=contents.dll_folders)
        missing = {_key(need): need for need in needs if need.answer is Answer.MISSING}
        if not missing:
            _check_reach(needs, additions, folder)
            return sorted(additions.values(), key=lambda addition: addition.library.path)
        for key, need in missing.items():
            additions[key] = _find(need, machine or "", folder, lib_dirs)
    raise VerificationFailedError(f"libraries need one another over more than {_MAX_ROUNDS} steps")


def libraries_for(
    machine: str | None,
    contents: Contents,
    additions: Iterable[Addition],
) -> list[Library]:
    """The libraries for a machine: those of a wheel, and those that go into it."""
    libraries = list(contents.libraries)
    libraries += [addition.library for addition in additions]
    return [library for library in libraries if library.machine == machine]


def _key(need: Need) -> str:
    """Needs with the same key are met by the same file."""
    if need.name.lower().endswith(".dll"):
        return need.name.lower()
    return need.name


def _find(need: Need, machine: str, folder: str, lib_dirs: Sequence[Path]) -> Addition:
    """Find the library that a need asks for, in the first folder that has one."""
    name = need.name
    # The name comes out of a binary: it must not lead out of the folders given.
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise VerificationFailedError(
            f"{need.who} needs {name!r}: a path, which works on one machine only"
        )
    for directory in lib_dirs:
        for source in _named(directory, _key(need)):
            path = f"{folder}/{source.name}"
            check_name(path)
            try:
                library = read_file(source, path)
            except OSError as error:
                raise UsageError(f"{source}: cannot be read ({error.strerror})") from error
            is_for_wheel = library.machine == machine and library.kind == "shared"
            if library.error is None and is_for_wheel:
                return Addition(library, source)
    searched = ", ".join(map(str, lib_dirs)) or "none given"
    raise VerificationFailedError(
        f"{need.who} needs {need.name}, which is not in the wheel, is not a system library "
        "(manylinux, Windows), "
        f"and is in none of the library folders ({searched})",
        hint="give the folder that holds it, or exclude it if the user's machine has it",
    )


def _named(directory: Path, name: str) -> list[Path]:
    """The files of this name in a folder; on a Linux disk a DLL may be spelled in any way."""
    if not name.endswith(".dll"):
        file = directory / name
        return [file] if file.is_file() else []
    files = []
    for path in sorted(directory.glob("*")):
        if path.name.lower() == name and path.is_file():
            files.append(path)
    return files


def read_file(source: Path, path: str) -> Library:
    """The facts of a library file; `path` is its name in the wheel."""
    with source.open("rb") as file:
        if not file.read(len(ELF_MAGIC)).startswith(magics(path)):  # such as a linker script
            return Library(path=path, sha256="", size=0, error="not a library")
        with _mapped(file) as data:
            # Its hash is taken when it is written.
            return read_library(path, "", data, device=False)


def _mapped(file: BinaryIO) -> mmap.mmap:
    """The content of an open file."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _check_reach(
    needs: list[Need],
    additions: dict[str, Addition],
    folder: str,
) -> None:
    """Refuse an addition that the loader would not find in its folder."""
    for need in needs:
        addition = additions.get(_key(need))
        if addition is None or need.answer is not Answer.UNREACHABLE:
            continue
        if addition.library.format == "pe":
            raise VerificationFailedError(
                f"{need.who} needs {need.name}, which goes into {folder}, where Windows does "
                "not look for it",
                hint="vendor into the folder of the library that needs it, or into one that "
                "the package adds",
            )
        # From the library's own folder up to the root of the wheel, then down again.
        ups = "../" * len(PurePosixPath(need.who).parent.parts)
        raise VerificationFailedError(
            f"{need.who} needs {need.name}, which goes into {folder}, but its RUNPATH does "
            "not lead there",
            hint=f"link it with -Wl,-rpath,'$ORIGIN/{ups}{folder}' or nearer",
        )


def symbols_of_file(source: Path) -> SymbolTable:
    """The symbols that a library file takes and gives."""
    with source.open("rb") as file, _mapped(file) as data:
        return symbols_of(data)
