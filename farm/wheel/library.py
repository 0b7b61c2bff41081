"""The libraries of a wheel, ELF or PE: the facts of each, read in one pass with the hash of every file."""

import posixpath
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.wheel.archive import Archive, Buffer
from farm.wheel.elf import ELF_MAGIC, Elf, Symbols, read_elf, read_symbols, section_ranges
from farm.wheel.fatbin import (
    FATBIN_MAGIC,
    FATBIN_SECTION,
    UNUSED_SECTION,
    Container,
    architecture,
    find_fatbins,
    has_kernel,
    is_specific,
    order,
    read_fatbins,
)
from farm.wheel.isalevels import arm_level_names
from farm.wheel.pe import PE_FATBIN_SECTION, PE_MAGIC, DllSymbols, Pe, read_dll_symbols, read_pe
from farm.wheel.windows import loaded_by_name

if TYPE_CHECKING:
    from farm.wheel.initscan import InitScan
    from farm.wheel.isa import IsaResult
    from farm.wheel.policy import Chosen

_Archs = tuple[tuple[int | str, ...], tuple[int | str, ...]]
_SWEPT = 16 << 20  # bytes of a library: a second
_GPUS = ("cuda", "intelgt", "amdgpu")
_DLLS = (".dll", ".pyd", ".exe", ".so")  # other files may begin with the two letters of a PE file by chance


class FatbinSet(NamedTuple):
    """How many fat binaries of a library hold code for just these architectures (35 for sm_35, "90a" for sm_90a)."""

    sass: tuple[int | str, ...]
    ptx: tuple[int | str, ...]
    containers: int
    bytes: int


class Instructions(NamedTuple):
    """Features that the machine code needs beyond `level`: instructions that need it, and the first places.

    `starts`: None where all code was decoded; else how many functions run on loading, and only those were.
    `open_ends` calls on loading were not followed, and `calls` are the functions of other libraries that are called
    then; None where these are not known.
    """

    level: str
    beyond: dict[str, tuple[int, tuple[str, ...]]]
    undecodable: int
    not_checked: str | None
    starts: int | None = None
    open_ends: int = 0
    calls: frozenset[str] | None = None


class Library(NamedTuple):
    """The facts of one ELF or PE file in a wheel.

    Attributes:
        path: Member name.
        size: Bytes.
        format: `elf` or `pe`. Machines of PE files have Windows' names (`amd64`), so the two never mix.
        page_size: The largest pages of a kernel that loads it (ELF); 0: it is not loaded.
        kind: `shared`, `executable`, `object`, `core` or `other`.
        delay_needed: DLLs needed when one of their functions is first called (PE).
        named: DLLs that it loads by name (PE; known files only).
        linker: Version of Microsoft's linker (PE).
        search_path: RUNPATH, or RPATH without one, split (ELF).
        has_runpath: That is its RUNPATH: holds for what it needs itself, and keeps it from inheriting an RPATH.
        versions: Library name to symbol versions required of it.
        executable_stack: It asks for a stack that code may run on (ELF).
        interpreter: The loader that a program names (ELF); its name is among `needed`.
        static_tls: See `farm.wheel.elf.Elf`.
        fatbins: Groups of fat binaries with kernels, the largest group first.
        empty_fatbins: Fat binaries without a kernel (the linker's stubs).
        error: Why the file could not be read; then the facts are empty.
    """

    path: str
    sha256: str
    size: int
    format: Literal["elf", "pe"] = "elf"
    machine: str = ""
    page_size: int = 0
    kind: str = "other"
    soname: str | None = None
    needed: tuple[str, ...] = ()
    delay_needed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    linker: str | None = None
    search_path: tuple[str, ...] = ()
    has_runpath: bool = False
    versions: Mapping[str, tuple[str, ...]] = {}
    executable_stack: bool = False
    interpreter: str | None = None
    static_tls: int = 0
    fatbins: tuple[FatbinSet, ...] = ()
    empty_fatbins: int = 0
    instructions: Instructions | None = None
    error: str | None = None

    @property
    def is_loadable(self) -> bool:
        """True if the dynamic loader of a computer (not of a GPU) may be asked to load it; no Windows programs."""
        if self.format == "pe":
            return self.kind == "shared"
        return self.kind in ("shared", "executable") and self.machine not in _GPUS


def magics(name: str) -> tuple[bytes, ...]:
    """The first bytes of a library with this name."""
    known = (ELF_MAGIC, FATBIN_MAGIC)
    return (*known, PE_MAGIC) if name.lower().endswith(_DLLS) else known


def read_library(
    path: str,
    sha256: str,
    data: Buffer,
    level: str | None,
    *,
    on_load: bool = False,
    device: bool = True,
    chosen: "Chosen | None" = None,
    called: Collection[str] = (),
) -> Library:
    """The facts of one library; with `level`, what its code (`on_load`: what runs on loading) needs beyond it.

    `chosen`: functions that are chosen at run time, whose code may need more (ELF). `called`: functions that other
    libraries call on loading.
    Without `device` GPU code is not looked for: what it needs of other libraries is all that counts.
    """
    try:
        if data[:2] == PE_MAGIC:
            return _read_dll(path, sha256, data, level, on_load, device, called)
        if data[:4] == FATBIN_MAGIC:
            return _read_fatbin(path, sha256, data)
        return _read_elf(path, sha256, data, level, on_load, device, chosen, called)
    except VerificationFailedError as error:
        return Library(path=path, sha256=sha256, size=len(data), error=str(error))


def _read_elf(
    path: str,
    sha256: str,
    data: Buffer,
    level: str | None,
    on_load: bool,
    device: bool,
    chosen: "Chosen | None",
    called: Collection[str],
) -> Library:
    elf = read_elf(data)
    sets: tuple[FatbinSet, ...] = ()
    empty, instructions = 0, None
    if device:
        sets, empty = _cubin(data) if elf.machine == "cuda" else _fatbins(data, *_elf_ranges(data, elf))
    if level and elf.is_loadable:
        instructions = _instructions(data, elf, level, on_load, chosen, called)
    return Library(
        path=path,
        sha256=sha256,
        size=len(data),
        machine=elf.machine,
        page_size=min((segment.align for segment in elf.segments), default=0),
        kind=elf.kind,
        soname=elf.soname,
        needed=tuple(dict.fromkeys([*elf.needed, *([posixpath.basename(elf.interpreter)] if elf.interpreter else [])])),
        search_path=elf.search_path,
        has_runpath=elf.runpath is not None,
        versions=dict(elf.versions),
        executable_stack=elf.executable_stack,
        interpreter=elf.interpreter,
        static_tls=elf.static_tls,
        fatbins=sets,
        empty_fatbins=empty,
        instructions=instructions,
    )


def _read_fatbin(path: str, sha256: str, data: Buffer) -> Library:
    """A file of GPU code, which a program hands to the driver itself (cuModuleLoad)."""
    sets, empty = _fatbins(data, [(0, len(data))], [(0, len(data))])
    return Library(path=path, sha256=sha256, size=len(data), machine="cuda", fatbins=sets, empty_fatbins=empty)


def _cubin(data: Buffer) -> tuple[tuple[FatbinSet, ...], int]:
    """A file of machine code for one GPU."""
    whole = data[:]
    if not has_kernel(whole):
        return (), 1
    sm = architecture(whole) or 0
    return (FatbinSet(sass=(f"{sm}a" if is_specific(whole) else sm,), ptx=(), containers=1, bytes=len(data)),), 0


def _read_dll(
    path: str, sha256: str, data: Buffer, level: str | None, on_load: bool, device: bool, called: Collection[str]
) -> Library:
    pe = read_pe(data)
    sets: tuple[FatbinSet, ...] = ()
    empty, instructions = 0, None
    if device:
        ranges = _pe_ranges(pe)
        sets, empty = _fatbins(data, ranges, ranges)
    if level and pe.is_dll:
        instructions = _dll_instructions(data, pe, level, on_load, called)
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
        instructions=instructions,
    )


def _elf_ranges(data: Buffer, elf: Elf) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where fat binaries lie back to back, and where none is looked for."""
    ranges = section_ranges(data, (part for part in elf.sections if part.name == FATBIN_SECTION))
    read = [(start, end) for _, start, end in ranges]
    unused = section_ranges(data, (part for part in elf.sections if part.name == UNUSED_SECTION))
    # What relocatable device code left behind has this name, and no wrapper leads there. Other names prove nothing.
    return read, sorted([*read, *((start, end) for _, start, end in unused)])


def _pe_ranges(pe: Pe) -> list[tuple[int, int]]:
    ranges = [(part.offset, part.end) for part in pe.sections if part.name == PE_FATBIN_SECTION]
    if len(ranges) > 1:
        raise VerificationFailedError(f"damaged PE file: {len(ranges)} sections {PE_FATBIN_SECTION}")
    return ranges


def _fatbins(
    data: Buffer, ranges: list[tuple[int, int]], known: list[tuple[int, int]]
) -> tuple[tuple[FatbinSet, ...], int]:
    containers = [container for start, end in ranges for container in read_fatbins(data, start, end)]
    containers += [each.container for each in find_fatbins(data, known)]
    return group(containers)


def group(containers: Iterable[Container]) -> tuple[tuple[FatbinSet, ...], int]:
    """The sets of architectures, the most frequent first, and how many fat binaries hold no kernel."""
    count: Counter[_Archs] = Counter()
    weight: Counter[_Archs] = Counter()
    for container in containers:
        key = tuple(sorted(container.sass, key=order)), tuple(sorted(container.ptx, key=order))
        count[key] += 1
        weight[key] += sum(entry.size for entry in container.entries)
    empty = count.pop(((), ()), 0)
    keys = sorted(count, key=lambda key: (-count[key], [*map(order, key[0])], [*map(order, key[1])]))
    sets = [FatbinSet(sass=key[0], ptx=key[1], containers=count[key], bytes=weight[key]) for key in keys]
    return tuple(sets), empty


def _scan_elf(data: Buffer, elf: Elf, level: str, called: Collection[str] = ()) -> "InitScan":
    from farm.wheel.initscan import InitScan, scan_starts  # noqa: PLC0415 (slow to import, and not always needed)
    from farm.wheel.isa import IsaResult  # noqa: PLC0415 (as above)

    if level not in arm_level_names():
        return scan_starts(data, elf, level, called)
    from farm.wheel.aarch64 import scan_arm_starts  # noqa: PLC0415 (as above, and few wheels need it)

    if elf.machine == "aarch64":
        return scan_arm_starts(data, elf, level, called)
    return InitScan(IsaResult(not_checked=f"machine code for {elf.machine}, and {level} is a level of aarch64"))


def _instructions(
    data: Buffer, elf: Elf, level: str, on_load: bool, chosen: "Chosen | None", called: Collection[str]
) -> Instructions:
    from farm.wheel.isa import IsaResult, scan_isa  # noqa: PLC0415 (slow to import, and not always needed)

    def sweep() -> IsaResult:
        if level not in arm_level_names():
            return scan_isa(data, elf, level, None if on_load else chosen)
        from farm.wheel.aarch64 import scan_aarch64  # noqa: PLC0415 (as above, and few wheels need it)

        return scan_aarch64(data, elf, level) if elf.machine == "aarch64" else _scan_elf(data, elf, level).result

    scan = _scan_elf(data, elf, level, called) if on_load or chosen else None
    return _found(level, scan, on_load, len(data), sweep)


def _dll_instructions(data: Buffer, pe: Pe, level: str, on_load: bool, called: Collection[str]) -> Instructions:
    from farm.wheel.peisa import scan_dll  # noqa: PLC0415 (slow to import, and not always needed)

    scan = scan_dll(data, pe, level, on_load=True, called=called) if on_load else None
    return _found(level, scan, on_load, len(data), lambda: scan_dll(data, pe, level, on_load=False).result)


def _found(
    level: str, scan: "InitScan | None", on_load: bool, size: int, sweep: "Callable[[], IsaResult]"
) -> Instructions:
    """The instructions of a library: of what runs on loading (`scan`), of all code (`sweep`), or of both."""
    open_ends = scan.open_ends if scan else 0
    calls = scan.calls if scan and not open_ends else None
    # Where not all can be followed, code that holds nothing beyond the level has nothing that could run on loading.
    if scan and on_load and open_ends and not scan.result.beyond and size <= _SWEPT and not sweep().beyond:
        open_ends = 0
    result = scan.result if scan else sweep()
    # Functions that are chosen at run time may need more; what runs on loading may not.
    if scan and not on_load and (not result.beyond or result.not_checked):
        result, scan = sweep(), None
    return Instructions(
        level=level,
        beyond={find.feature: (find.count, find.places) for find in result.beyond},
        undecodable=result.undecodable,
        not_checked=result.not_checked,
        starts=scan.starts if scan and not result.not_checked else None,
        open_ends=open_ends,
        calls=calls,
    )


_MAX_LIBRARIES = 5000  # the largest known wheels hold some hundred


class Contents(NamedTuple):
    """All files of a wheel: (sha256 in hexadecimal, bytes) by name, and the libraries among them.

    `symbols`: by member, where they were asked for; a library that cannot be read has none.
    `dispatching`: the libraries that choose code at run time, where a level is promised.
    `dependencies` are the libraries of the wheels that are installed beside it, as far as those were given; `requires`
    is the Requires-Dist of METADATA.
    """

    files: dict[str, tuple[str, int]]
    libraries: tuple[Library, ...]
    dependencies: tuple[Library, ...] = ()
    requires: tuple[str, ...] = ()
    symbols: Mapping[str, Symbols | DllSymbols] = {}
    dispatching: tuple[str, ...] = ()


def symbols_of(data: Buffer) -> Symbols | DllSymbols:
    """Symbols that a library takes and gives, or the reason why it cannot be read."""
    try:
        if data[:2] == PE_MAGIC:
            return read_dll_symbols(data, read_pe(data))
        return read_symbols(data, read_elf(data))
    except VerificationFailedError as error:
        return Symbols(error=str(error))


def read_contents(
    archive: Archive,
    level_of: Callable[[str], str | None],
    dispatching: Sequence[str] = (),
    *,
    chosen: "Mapping[str, Chosen]" = MappingProxyType({}),
    with_symbols: bool = False,
) -> Contents:
    """Read every member once.

    Args:
        archive: The open wheel.
        level_of: For a member's name, the CPU level to check its code against, or None for no check.
        dispatching: Member patterns of libraries of which only what runs on loading is checked.
        chosen: By member pattern, the functions of a library that are chosen at run time, and not checked.
        with_symbols: Read what the libraries take from one another, too.

    Raises:
        VerificationFailedError: A member is damaged. (A damaged library is not: see `Library.error`.)
        InfrastructureError: The disk failed or is full.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    symbols: dict[str, Symbols | DllSymbols] = {}
    dispatch: list[str] = []
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        with _disk(archive, name), archive.content(name, magics(name)) as (sha256, data):
            files[name] = sha256, entry.size
            if data is None:
                continue
            if with_symbols:
                symbols[name] = symbols_of(data)
            on_load = any(fnmatchcase(name, pattern) for pattern in dispatching)
            behind = next((each for pattern, each in chosen.items() if fnmatchcase(name, pattern)), None)
            level = level_of(name)
            dispatch += [name] if level and (on_load or behind) else []
            libraries.append(read_library(name, sha256, data, level, on_load=on_load, chosen=behind))
            _check_count(libraries)
    return Contents(files=files, libraries=tuple(libraries), symbols=symbols, dispatching=tuple(dispatch))


def read_needs(archive: Archive) -> Contents:
    """Facts for repair: the hash of every file, and the libraries' needs of one another.

    Libraries are not searched for device code; `Library.fatbins` and `instructions` are empty.

    Raises:
        As `read_contents`, as far as damage is met.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        with _disk(archive, name), archive.content(name, magics(name)) as (sha256, data):
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
