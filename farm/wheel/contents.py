"""One pass over a wheel: the hash of every file, the facts of every library."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.wheel.archive import Archive, Spooled
from farm.wheel.library import Library, magics, read_library
from farm.wheel.magic import ELF_MAGIC
from farm.wheel.needs import installed_path
from farm.wheel.partial import PartialMember, TooFarInsideError
from farm.wheel.zipformat import Entry

if TYPE_CHECKING:
    from farm.wheel.pesymbols import DllSymbols
    from farm.wheel.symbols import Symbols

# What no loader is ever pointed at, and most of a wheel: not worth a look at the first bytes.
_NO_LIBRARIES = (".py", ".pyi", ".h", ".hpp", ".cuh", ".cmake", ".lib", ".a", ".txt", ".exe")
_WORTH_COMPARING = 64 << 10
_MAX_LIBRARIES = 5000  # each pair of them may be compared; the largest known wheels hold some hundred
_THREADS = min(4, os.cpu_count() or 1)


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
    from farm.wheel.isolated import read_in_process  # noqa: PLC0415 (slow to import, and repair does without)
    from farm.wheel.link import read_link  # noqa: PLC0415 (as above)
    from farm.wheel.streamed import read_streamed  # noqa: PLC0415 (as above)

    symbols: dict[str, Symbols | DllSymbols] = {}

    def dispatches(name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in dispatching)

    def read(name: str) -> tuple[str, Library | None]:
        level = level_of(name)
        if archive.lenient and not level and not with_symbols and archive.is_long(name, ELF_MAGIC):
            library = read_streamed(archive, name)
            if library is not None:
                return library.sha256, library
        with archive.content(name, magics(name)) as (sha256, data):
            if data is None:
                return sha256, None
            if with_symbols:
                symbols[name] = read_link(data)
            on_load = dispatches(name)
            # POSIX alone: the other process inherits the open file.
            if level and isinstance(data, Spooled) and os.name == "posix":
                return sha256, read_in_process(name, sha256, data, level, on_load=on_load)
            return sha256, read_library(name, sha256, data, level, on_load=on_load)

    twins = {
        name: twin
        for name, twin in _twins(archive).items()
        if (level_of(name), dispatches(name)) == (level_of(twin), dispatches(twin))
    }
    found = _in_threads(archive, read, [name for name in archive.members if name not in twins])
    for name, twin in twins.items():
        sha256, library = found[twin]
        found[name] = sha256, library and library._replace(path=name)
        if twin in symbols:
            symbols[name] = symbols[twin]
    _check_count(sum(library is not None for _, library in found.values()))
    order = [name for name, entry in archive.members.items() if not entry.is_dir]
    return Contents(
        files={name: (found[name][0], archive.members[name].size) for name in order},
        libraries=_with_added_folders(archive, [library for name in order if (library := found[name][1])]),
        symbols=symbols,
    )


def _check_count(libraries: int) -> None:
    if libraries > _MAX_LIBRARIES:
        raise VerificationFailedError(f"more than {_MAX_LIBRARIES} libraries; such a wheel is not inspected")


def _twins(archive: Archive) -> dict[str, str]:
    """Libraries that have the same bytes as one before them, and that one: torch's build puts some into two folders.

    Their last names are the same too: these decide what is looked for.
    """
    first: dict[tuple[str, int, int, int], str] = {}
    twins = {}
    for name, entry in archive.members.items():
        if entry.size < _WORTH_COMPARING or name.endswith(_NO_LIBRARIES):
            continue
        other = first.setdefault(_likeness(entry), name)
        if other != name and _same_bytes(archive, archive.entry(other), entry):
            twins[name] = other
    return twins


def _likeness(entry: Entry) -> tuple[str, int, int, int]:
    return entry.name.rpartition("/")[2], entry.crc, entry.size, entry.compressed


def _in_threads(
    archive: Archive, read: Callable[[str], tuple[str, Library | None]], names: list[str]
) -> dict[str, tuple[str, Library | None]]:
    """`read` of every file, what may be a library first, the large before the small.

    Unpacking and hashing leave Python's lock to the other threads, following a small library's code does not: so there
    had better be files left for them to unpack meanwhile.
    """
    waiting = deque(sorted(names, key=lambda name: (name.endswith(_NO_LIBRARIES), -archive.members[name].size)))
    found: dict[str, tuple[str, Library | None]] = {}

    def work() -> None:
        while waiting:
            # Another thread may have taken the last one since.
            try:
                name = waiting.popleft()
            except IndexError:
                return
            if archive.members[name].is_dir:
                continue
            try:
                with _disk(archive, name):
                    found[name] = read(name)
            # The whole call fails: the other threads stop after the file that they have.
            except BaseException:
                waiting.clear()
                raise

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (slow to import, and not always needed)

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(work) for _ in range(_THREADS)]:
            done.result()
    return found


@contextmanager
def _disk(archive: Archive, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        import tempfile  # noqa: PLC0415 (slow to import, and not always needed)

        # Not `gettempdir()`, which fails in its turn where no folder can be written.
        where = tempfile.tempdir or "the folder for temporary files"
        raise InfrastructureError(
            f"{archive.path.name}: reading {name!r} failed ({error})",
            hint=f"large members are unpacked to {where}: is it full? Make room there, or set TMPDIR",
        ) from error


def read_needs(archive: Archive, hashes: Mapping[str, tuple[str, int]]) -> Contents:
    """What repair has to know, in a tenth of the time that reading the wheel takes.

    Where `hashes` (by member) give the true length, the hash is believed and the file not read; it is recomputed
    where they do not. Libraries are known by their first bytes and not read for more than what they need of others;
    `Library.fatbins` and `instructions` are empty.

    Raises:
        As `read_contents`, as far as damage is met.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    seen: dict[tuple[str, int, int, int], Library] = {}
    for name, entry in archive.members.items():
        if name.endswith("/"):
            continue
        known = hashes.get(name)
        if known is None or known[1] != entry.size:
            with archive.content(name, ()) as (sha256, _):
                known = sha256, entry.size
        files[name] = known
        if not name.endswith(_NO_LIBRARIES) and archive.starts_with(name, magics(name)):
            # torch's build puts some DLLs into two folders. The name counts too: it decides what is looked for.
            key = _likeness(entry)
            twin = seen.get(key)
            if twin is not None and _same_bytes(archive, archive.entry(twin.path), entry):
                libraries.append(twin._replace(path=name, sha256=known[0]))
            else:
                seen[key] = _read_partly(archive, name, known[0])
                libraries.append(seen[key])
            _check_count(len(libraries))
    return Contents(files=files, libraries=_with_added_folders(archive, libraries))


def _with_added_folders(archive: Archive, libraries: list[Library]) -> tuple[Library, ...]:
    if all(library.format == "elf" for library in libraries):
        return tuple(libraries)
    from farm.wheel.dllfolders import LONGEST, with_added_folders  # noqa: PLC0415 (wheels for Linux do without)

    # `x.data/platlib` is unpacked into site-packages.
    members = {installed_path(name): name for name in archive.members if name.endswith((".py", ".pth"))}

    def read(path: str) -> bytes | None:
        name = members.get(path)
        return archive.read(name) if name and archive.entry(name).size <= LONGEST else None

    return tuple(with_added_folders(libraries, read, members))


def _same_bytes(archive: Archive, one: Entry, other: Entry) -> bool:
    """Whether two members of one method and length are the same, by their compressed bytes."""
    pairs = zip(archive.raw(one), archive.raw(other), strict=False)  # of unequal chunks, the first differ
    return one.method == other.method and all(left == right for left, right in pairs)


def _read_partly(archive: Archive, name: str, sha256: str) -> Library:
    try:
        with _disk(archive, name), closing(PartialMember(archive, archive.entry(name))) as member:
            return read_library(name, sha256, member, None)
    except TooFarInsideError:
        with _disk(archive, name), archive.content(name, magics(name)) as (_, data):
            if data is None:
                raise VerificationFailedError(f"member {name!r}: read twice, with two contents") from None
            return read_library(name, sha256, data, None)
