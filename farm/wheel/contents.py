"""One pass over a wheel: the hash of every file, the facts of every library."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.library import Library, magics, read_library

if TYPE_CHECKING:
    from farm.wheel.pesymbols import DllSymbols
    from farm.wheel.symbols import Symbols

# What no loader is ever pointed at, and most of a wheel: not worth a look at the first bytes.
_NO_LIBRARIES = (".py", ".pyi", ".h", ".hpp", ".cuh", ".cmake", ".lib", ".a", ".txt", ".exe")
_MAX_LIBRARIES = 5000  # the largest known wheels hold some hundred


class Contents(NamedTuple):
    """All files of a wheel: (sha256 in hexadecimal, bytes) by name, and the libraries among them.

    `symbols`: by member, where they were asked for; a library that cannot be read has none.
    `dependencies` are the libraries of the wheels that are installed beside it, as far as those were given.
    """

    files: dict[str, tuple[str, int]]
    libraries: tuple[Library, ...]
    dependencies: tuple[Library, ...] = ()
    symbols: "Mapping[str, Symbols | DllSymbols]" = {}


def read_contents(
    archive: Archive,
    level_of: Callable[[str], str | None],
    dispatching: Sequence[str] = (),
    *,
    with_symbols: bool = False,
) -> Contents:
    """Read every member once.

    Args:
        archive: The open wheel.
        level_of: For a member's name, the CPU level to check its code against, or None for no check.
        dispatching: Member patterns of libraries of which only what runs on loading is checked.
        with_symbols: Read what the libraries take from one another, too.

    Raises:
        VerificationFailedError: A member is damaged. (A damaged library is not: see `Library.error`.)
        InfrastructureError: The disk failed or is full.
    """
    from farm.wheel.link import read_link  # noqa: PLC0415 (repair does without)

    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    symbols: dict[str, Symbols | DllSymbols] = {}
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        with _disk(archive, name), archive.content(name, magics(name)) as (sha256, data):
            files[name] = sha256, entry.size
            if data is None:
                continue
            if with_symbols:
                symbols[name] = read_link(data)
            on_load = any(fnmatchcase(name, pattern) for pattern in dispatching)
            libraries.append(read_library(name, sha256, data, level_of(name), on_load=on_load))
            _check_count(libraries)
    return Contents(files=files, libraries=tuple(libraries), symbols=symbols)


def read_needs(archive: Archive, hashes: Mapping[str, tuple[str, int]]) -> Contents:
    """Facts for repair: the hash of every file, and the libraries' needs of one another.

    Where `hashes` (by member) give the true length, the hash is believed and the file not read. Libraries are not
    searched for device code; `Library.fatbins` and `instructions` are empty.

    Raises:
        As `read_contents`, as far as damage is met.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        known = hashes.get(name)
        believed = known is not None and known[1] == entry.size
        wanted = () if name.endswith(_NO_LIBRARIES) else magics(name)
        if known is not None and believed and not (wanted and archive.starts_with(name, wanted)):
            files[name] = known
            continue
        with _disk(archive, name), archive.content(name, wanted) as (sha256, data):
            files[name] = sha256, entry.size
            if data is not None:
                libraries.append(read_library(name, sha256, data, None, device=False))
                _check_count(libraries)
    return Contents(files=files, libraries=tuple(libraries))


def _check_count(libraries: Sequence[Library]) -> None:
    if len(libraries) > _MAX_LIBRARIES:
        raise VerificationFailedError(f"more than {_MAX_LIBRARIES} libraries; such a wheel is not inspected")


@contextmanager
def _disk(archive: Archive, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Not `gettempdir()`, which fails in its turn where no folder can be written.
        where = tempfile.tempdir or "the folder for temporary files"
        raise InfrastructureError(
            f"{archive.path.name}: reading {name!r} failed ({error})",
            hint=f"large members are unpacked to {where}: is it full? Make room there, or set TMPDIR",
        ) from error
