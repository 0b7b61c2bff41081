"""One pass over a wheel: the hash of every file, the facts of every library."""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from farm.errors import InfrastructureError, VerificationFailedError
from farm.wheel.archive import Archive, Buffer
from farm.wheel.elf import ELF_MAGIC, Elf, read_elf, section_ranges
from farm.wheel.fatbin import FATBIN_SECTION, read_fatbins
from farm.wheel.glimpse import Glimpse, OutOfSightError
from farm.wheel.initscan import scan_starts
from farm.wheel.isa import scan_isa
from farm.wheel.pe import PE_FATBIN_SECTION, PE_MAGIC, Pe, read_pe
from farm.wheel.windows import loaded_by_name

_DLLS = (".dll", ".pyd", ".exe")  # other files may begin with the two letters of a PE file by chance
# What no loader is ever pointed at, and most of a wheel: not worth a look at the first bytes.
_NO_LIBRARIES = (".py", ".pyi", ".h", ".hpp", ".cuh", ".cmake", ".lib", ".a", ".txt")
_THREADS = min(4, os.cpu_count() or 1)


class Frozen(BaseModel):
    """The base of everything that is reported: immutable, and strict about what it is read from."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


# Text out of a wheel, made safe for a terminal.
Printable = Annotated[str, AfterValidator(_printable)]


class FatbinSet(Frozen):
    """How many fat binaries of a library hold code for just these architectures (35 for sm_35)."""

    sass: tuple[int, ...]
    ptx: tuple[int, ...]
    containers: int
    bytes: int


class Instructions(Frozen):
    """Features that the machine code needs beyond `level`: instructions that need it, and the first places.

    `starts`: None where all code was decoded; else how many functions run on loading, and only those were.
    """

    level: str
    beyond: dict[str, tuple[int, tuple[str, ...]]]
    undecodable: int
    not_checked: str | None
    starts: int | None = None


class Library(Frozen):
    """The facts of one ELF or PE file in a wheel.

    Attributes:
        path: Member name.
        size: Bytes.
        format: `elf` or `pe`. Machines of PE files have Windows' names (`amd64`), so the two never mix.
        kind: `shared`, `executable`, `object`, `core` or `other`.
        delay_needed: DLLs needed when one of their functions is first called (PE).
        named: DLLs that it loads by name (PE; known files only).
        linker: Version of Microsoft's linker (PE).
        search_path: RUNPATH, or RPATH without one, split.
        versions: Library name to symbol versions required of it.
        fatbins: Groups of fat binaries with kernels, the largest group first.
        empty_fatbins: Fat binaries without a kernel (the linker's stubs).
        error: Why the file could not be read; then the facts are empty.
    """

    path: str
    sha256: str
    size: int
    format: Literal["elf", "pe"] = "elf"
    machine: str = ""
    kind: str = "other"
    soname: str | None = None
    needed: tuple[str, ...] = ()
    delay_needed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    linker: str | None = None
    search_path: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = {}
    fatbins: tuple[FatbinSet, ...] = ()
    empty_fatbins: int = 0
    instructions: Instructions | None = None
    error: str | None = None

    @property
    def is_loadable(self) -> bool:
        """Whether the dynamic loader of a computer (not of a GPU) may be asked to load it; no Windows programs."""
        if self.format == "pe":
            return self.kind == "shared"
        return self.kind in ("shared", "executable") and self.machine != "cuda"


class Contents(Frozen):
    """All files of a wheel: (sha256 in hexadecimal, bytes) by name, and the libraries among them."""

    files: dict[str, tuple[str, int]]
    libraries: tuple[Library, ...]


def read_contents(archive: Archive, level_of: Callable[[str], str | None], dispatching: Sequence[str] = ()) -> Contents:
    """Read every member once.

    Args:
        archive: The open wheel.
        level_of: For a member's name, the CPU level to check its code against, or None for no check.
        dispatching: Member patterns of libraries of which only what runs on loading is checked.

    Raises:
        VerificationFailedError: A member is damaged. (A damaged library is not: see `Library.error`.)
        InfrastructureError: The disk failed or is full.
    """

    def read(name: str) -> tuple[str, Library | None]:
        with archive.content(name, magics(name)) as (sha256, data):
            if data is None:
                return sha256, None
            on_load = any(fnmatchcase(name, pattern) for pattern in dispatching)
            return sha256, read_library(name, sha256, data, level_of(name), on_load=on_load)

    found = _in_threads(archive, read)
    order = [name for name, entry in archive.members.items() if not entry.is_dir]
    return Contents(
        files={name: (found[name][0], archive.members[name].size) for name in order},
        libraries=tuple(library for name in order if (library := found[name][1])),
    )


def _in_threads(
    archive: Archive, read: Callable[[str], tuple[str, Library | None]]
) -> dict[str, tuple[str, Library | None]]:
    """`read` of every file, the large ones first. zlib and hashes leave Python's lock to the other threads."""
    waiting = deque(sorted(archive.members, key=lambda name: archive.members[name].size, reverse=True))
    found: dict[str, tuple[str, Library | None]] = {}

    def work() -> None:
        while waiting:
            try:
                name = waiting.popleft()
            except IndexError:
                return
            if archive.members[name].is_dir:
                continue
            try:
                with _disk(archive, name):
                    found[name] = read(name)
            except BaseException:
                waiting.clear()
                raise

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(work) for _ in range(_THREADS)]:
            done.result()
    return found


@contextmanager
def _disk(archive: Archive, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"{archive.path.name}: reading {name!r} failed ({error})",
            hint="large members are unpacked to the temporary folder (TMPDIR): is it full?",
        ) from error


def magics(name: str) -> tuple[bytes, ...]:
    """What a file of this name begins with if it is a library."""
    return (ELF_MAGIC, PE_MAGIC) if name.lower().endswith(_DLLS) else (ELF_MAGIC,)


def read_needs(archive: Archive, hashes: Mapping[str, tuple[str, int]], folder: str) -> Contents:
    """What repair has to know, for the price of a glance.

    Where `hashes` (of RECORD, by member) give the true length, the hash is believed and the file not read; it is
    recomputed where they do not, and for the files of the folder `folder`. Libraries are told by their first bytes
    and not read for more than what they need of others; `Library.fatbins` and `instructions` are empty.

    Raises:
        As `read_contents`, as far as damage is met.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries = []
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        known = hashes.get(name)
        if known is None or known[1] != entry.size or name.startswith(folder):
            with archive.content(name, ()) as (sha256, _):
                known = sha256, entry.size
        files[name] = known
        if not name.endswith(_NO_LIBRARIES) and archive.starts_with(name, magics(name)):
            libraries.append(_glance(archive, name, known[0]))
    return Contents(files=files, libraries=tuple(libraries))


def _glance(archive: Archive, name: str, sha256: str) -> Library:
    try:
        with _disk(archive, name), closing(Glimpse(archive, archive.entry(name))) as glimpse:
            return read_library(name, sha256, glimpse, None)
    except OutOfSightError:
        with _disk(archive, name), archive.content(name, magics(name)) as (_, data):
            if data is None:
                raise VerificationFailedError(f"member {name!r}: read twice, with two contents") from None
            return read_library(name, sha256, data, None)


def read_library(
    path: str, sha256: str, data: Buffer | Glimpse, level: str | None, *, on_load: bool = False
) -> Library:
    """The facts of one library; with `level`, what its code (`on_load`: what runs on loading) needs beyond it."""
    try:
        if data[:2] == PE_MAGIC:
            return _read_dll(path, sha256, data, level)
        elf = read_elf(data)
        sets: tuple[FatbinSet, ...] = ()
        empty, instructions = 0, None
        if not isinstance(data, Glimpse):
            sets, empty = _fatbins(data, _elf_ranges(data, elf))
            instructions = _instructions(data, elf, level, on_load) if level and elf.is_loadable else None
    except VerificationFailedError as error:
        return Library(path=path, sha256=sha256, size=len(data), error=str(error))
    return Library(
        path=path,
        sha256=sha256,
        size=len(data),
        machine=elf.machine,
        kind=elf.kind,
        soname=elf.soname,
        needed=elf.needed,
        search_path=elf.search_path,
        versions=dict(elf.versions),
        fatbins=sets,
        empty_fatbins=empty,
        instructions=instructions,
    )


def _read_dll(path: str, sha256: str, data: Buffer | Glimpse, level: str | None) -> Library:
    pe = read_pe(data)
    sets, empty = ((), 0) if isinstance(data, Glimpse) else _fatbins(data, _pe_ranges(pe))
    not_checked = "machine code of PE files is not decoded"
    return Library(
        path=path,
        sha256=sha256,
        size=len(data),
        format="pe",
        machine=pe.machine,
        kind="shared" if pe.is_dll else "executable",
        needed=pe.needed,
        delay_needed=pe.delay_needed,
        named=loaded_by_name(data, path.rpartition("/")[2]),
        linker=pe.linker,
        fatbins=sets,
        empty_fatbins=empty,
        instructions=Instructions(level=level, beyond={}, undecodable=0, not_checked=not_checked) if level else None,
    )


def _elf_ranges(data: Buffer, elf: Elf) -> list[tuple[int, int]]:
    ranges = section_ranges(data, (part for part in elf.sections if part.name == FATBIN_SECTION))
    return [(start, end) for _, start, end in ranges]


def _pe_ranges(pe: Pe) -> list[tuple[int, int]]:
    ranges = [(part.offset, part.end) for part in pe.sections if part.name == PE_FATBIN_SECTION]
    if len(ranges) > 1:
        raise VerificationFailedError(f"damaged PE file: {len(ranges)} sections {PE_FATBIN_SECTION}")
    return ranges


def _fatbins(data: Buffer, ranges: list[tuple[int, int]]) -> tuple[tuple[FatbinSet, ...], int]:
    count: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    weight: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for start, end in ranges:
        for container in read_fatbins(data, start, end):
            key = (tuple(sorted(container.sass)), tuple(sorted(container.ptx)))
            count[key] += 1
            weight[key] += sum(entry.size for entry in container.entries)
    empty = count.pop(((), ()), 0)
    order = sorted(count, key=lambda key: (-count[key], key))
    sets = [FatbinSet(sass=key[0], ptx=key[1], containers=count[key], bytes=weight[key]) for key in order]
    return tuple(sets), empty


def _instructions(data: Buffer, elf: Elf, level: str, on_load: bool) -> Instructions:
    scan = scan_starts(data, elf, level) if on_load else None
    result = scan.result if scan else scan_isa(data, elf, level)
    return Instructions(
        level=level,
        beyond={find.feature: (find.count, find.places) for find in result.beyond},
        undecodable=result.undecodable,
        not_checked=result.not_checked,
        starts=scan.starts if scan else None,
    )
