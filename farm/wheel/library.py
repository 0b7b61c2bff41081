"""The libraries of a wheel, ELF or PE: the facts of each, read in one pass with the hash of every
file.
"""

import posixpath
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any, Literal, NamedTuple

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.policy.rules import Chosen
from farm.wheel.archive import THREADS, Archive, Buffer
from farm.wheel.dll_folders import added_by_code
from farm.wheel.elf import (
    ELF_MAGIC,
    LONGEST_NAME,
    Elf,
    read_elf,
    section_ranges,
)
from farm.wheel.elf_symbols import Symbols, read_symbols
from farm.wheel.fatbin import (
    FATBIN_MAGIC,
    FATBIN_SECTION,
    UNUSED_SECTION,
    Architecture,
    architecture,
    find_fatbins,
    has_kernel,
    is_specific,
    order,
    read_fatbins,
)
from farm.wheel.isa.findings import InitScan, IsaResult
from farm.wheel.isa.scan import scan_isa, scan_starts
from farm.wheel.pe import (
    PE_FATBIN_SECTION,
    PE_MAGIC,
    DllSymbols,
    Pe,
    loaded_by_name,
    read_dll_symbols,
    read_pe,
)

_Architectures = tuple[Architecture, ...]
_Range = tuple[int, int]
_SWEPT = 16 << 20  # bytes of a library: a second
_GPUS = ("cuda", "intelgt", "amdgpu")
# Other files may begin with the two letters of a PE file by chance.
_DLLS = (".dll", ".pyd", ".exe", ".so")


class FatbinSet(NamedTuple):
    """How many fat binaries of a library hold code for just these architectures (35 for sm_35,
    "90a" for sm_90a).
    """

    sass: _Architectures
    ptx: _Architectures
    containers: int
    bytes: int


class Instructions(NamedTuple):
    """Features that the machine code needs beyond `level`: instructions that need it, and the first
    places.

    `starts`: None where all code was decoded; else how many functions run on loading, and only
    those were. `open_ends` calls on loading were not followed, and `calls` are the functions of
    other libraries that are called then; None where these are not known.
    """

    level: str
    beyond: dict[str, tuple[int, tuple[str, ...]]]
    undecodable: int
    not_checked: str | None
    starts: int | None = None
    open_ends: int = 0
    calls: frozenset[str] | None = None


class Library(NamedTuple):
    """The facts of one ELF or PE file in a wheel; those that the files have too are explained there
    (`Elf`, `Pe`).

    `format`: `elf` or `pe`. Machines of PE files have Windows' names (`amd64`), so the two never
    mix. `has_runpath`: That is its RUNPATH: holds for what it needs itself, and keeps it from
    inheriting an RPATH.
    """

    path: str  # member name
    sha256: str
    size: int
    format: Literal["elf", "pe"] = "elf"
    machine: str = ""
    page_size: int = 0  # the largest pages of a kernel that loads it (ELF); 0: it is not loaded
    kind: str = "other"
    soname: str | None = None
    needed: tuple[str, ...] = ()  # with the loader of a program
    delay_needed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()  # DLLs that it loads by name (PE; known files only)
    linker: str | None = None
    search_path: tuple[str, ...] = ()  # RUNPATH, or RPATH without one, split (ELF)
    has_runpath: bool = False
    versions: Mapping[str, tuple[str, ...]] = {}
    executable_stack: bool = False
    interpreter: str | None = None
    static_tls: int = 0
    # Groups of fat binaries with kernels, the largest group first.
    fatbins: tuple[FatbinSet, ...] = ()
    empty_fatbins: int = 0  # fat binaries without a kernel (the linker's stubs)
    instructions: Instructions | None = None
    error: str | None = None  # why the file could not be read; then the facts are empty

    @property
    def is_loadable(self) -> bool:
        """True if the dynamic loader of a computer (not of a GPU) may be asked to load it; no
        Windows programs.
        """
        if self.format == "pe":
            return self.kind == "shared"
        return self.kind in ("shared", "executable") and self.machine not in _GPUS


def magics(name: str) -> tuple[bytes, ...]:
    """The first bytes of a library with this name."""
    if name.lower().endswith(_DLLS):
        return (ELF_MAGIC, FATBIN_MAGIC, PE_MAGIC)
    return (ELF_MAGIC, FATBIN_MAGIC)


class Code(NamedTuple):
    """A question about machine code: what does it need beyond `level`?

    `on_load`: only what runs on loading, or at exit, counts. `chosen`: functions that are chosen at
    run time, whose code may need more (ELF).
    """

    level: str
    on_load: bool = False
    chosen: Chosen | None = None


def read_library(
    path: str,
    sha256: str,
    data: Buffer,
    code: Code | None = None,
    *,
    device: bool = True,
) -> Library:
    """Read the facts of one library.

    Args:
        path: The name of the member.
        sha256: In hexadecimal.
        data: The file.
        code: What is asked of its machine code.
        device: Look for GPU code.

    Returns:
        The facts; of a damaged file with `error`.
    """
    facts = Library(path, sha256, len(data))
    try:
        if data[:4] == FATBIN_MAGIC:
            # A file of GPU code, which a program hands to the driver itself (cuModuleLoad).
            everything = [(0, len(data))]
            sets, empty = _fatbins(data, everything, everything)
            return facts._replace(machine="cuda", fatbins=sets, empty_fatbins=empty)
        file: Elf | Pe
        if data[:2] == PE_MAGIC:
            file = read_pe(data)
            library = _of_dll(facts, data, file)
        else:
            file = read_elf(data)
            library = _of_elf(facts, file)
        if device:
            sets, empty = _device_code(data, file)
            library = library._replace(fatbins=sets, empty_fatbins=empty)
        if code and library.is_loadable:
            return library._replace(instructions=_instructions(data, file, code))
        return library
    except VerificationFailedError as error:
        return facts._replace(error=str(error))


def _of_elf(facts: Library, elf: Elf) -> Library:
    """The facts of an ELF file."""
    needed = list(elf.needed)
    if elf.interpreter:
        needed.append(posixpath.basename(elf.interpreter))
    return facts._replace(
        machine=elf.machine,
        page_size=min((segment.align for segment in elf.segments), default=0),
        kind=elf.kind,
        soname=elf.soname,
        needed=tuple(dict.fromkeys(needed)),
        search_path=elf.search_path,
        has_runpath=elf.runpath is not None,
        versions=dict(elf.versions),
        executable_stack=elf.executable_stack,
        interpreter=elf.interpreter,
        static_tls=elf.static_tls,
    )


def _of_dll(facts: Library, data: Buffer, pe: Pe) -> Library:
    """The facts of a PE file."""
    return facts._replace(
        format="pe",
        machine=pe.machine,
        kind="shared" if pe.is_dll else "executable",
        needed=pe.needed,
        delay_needed=pe.delay_needed,
        named=loaded_by_name(data, posixpath.basename(facts.path)),
        linker=pe.linker,
    )


def _device_code(data: Buffer, file: Elf | Pe) -> tuple[tuple[FatbinSet, ...], int]:
    """The sets of architectures of a file, and how many of its fat binaries hold no kernel."""
    if file.machine == "cuda":
        return _cubin(data)
    if isinstance(file, Pe):
        ranges = _ranges_of_dll(file)
        return _fatbins(data, ranges, ranges)
    read, skipped = _ranges_of_elf(data, file)
    return _fatbins(data, read, skipped)


def _cubin(data: Buffer) -> tuple[tuple[FatbinSet, ...], int]:
    """A file of machine code for one GPU."""
    content = data[:]
    if not has_kernel(content):
        return (), 1
    sm: Architecture = architecture(content) or 0
    if is_specific(content):
        sm = f"{sm}a"
    kernels = FatbinSet(
        sass=(sm,),
        ptx=(),
        containers=1,
        bytes=len(data),
    )
    return (kernels,), 0


def _ranges_of_dll(pe: Pe) -> list[_Range]:
    """Where fat binaries lie back to back in a PE file."""
    ranges = []
    for section in pe.sections:
        if section.name == PE_FATBIN_SECTION:
            ranges.append((section.offset, section.end))
    if len(ranges) > 1:
        raise VerificationFailedError(
            f"damaged PE file: {len(ranges)} sections {PE_FATBIN_SECTION}"
        )
    return ranges


def _ranges_of_elf(data: Buffer, elf: Elf) -> tuple[list[_Range], list[_Range]]:
    """Where fat binaries lie back to back, and where none is looked for."""
    sections = []
    for section in elf.sections:
        if section.name in (FATBIN_SECTION, UNUSED_SECTION):
            sections.append(section)
    read = []
    skipped = []
    for section, start, end in section_ranges(data, sections):
        skipped.append((start, end))
        # What relocatable device code left behind has the other name, and no wrapper leads there.
        # Other names prove nothing.
        if section.name == FATBIN_SECTION:
            read.append((start, end))
    return read, sorted(skipped)


def _fatbins(
    data: Buffer,
    ranges: list[_Range],
    skipped: list[_Range],
) -> tuple[tuple[FatbinSet, ...], int]:
    """Group the fat binaries of a file.

    Args:
        data: The file.
        ranges: Where they lie back to back.
        skipped: Where no further ones are looked for.

    Returns:
        The sets of architectures, the most frequent first, and how many fat binaries hold no
        kernel.
    """
    containers = []
    for start, end in ranges:
        containers += read_fatbins(data, start, end)
    containers += find_fatbins(data, skipped)

    groups: dict[tuple[_Architectures, _Architectures], FatbinSet] = {}
    for container in containers:
        sass = tuple(sorted(container.sass, key=order))
        ptx = tuple(sorted(container.ptx, key=order))
        key = (sass, ptx)
        group = groups.get(key, FatbinSet(sass, ptx, 0, 0))
        size = sum(entry.size for entry in container.entries)
        groups[key] = group._replace(
            containers=group.containers + 1,
            bytes=group.bytes + size,
        )
    empty = groups.pop(((), ()), None)
    sets = tuple(sorted(groups.values(), key=_frequent_first))
    return sets, empty.containers if empty else 0


def _frequent_first(group: FatbinSet) -> tuple[Any, ...]:
    """A key to sort groups of fat binaries by: their number, then their architectures."""
    sass = list(map(order, group.sass))
    ptx = list(map(order, group.ptx))
    return -group.containers, sass, ptx


def _instructions(data: Buffer, file: Elf | Pe, code: Code) -> Instructions:
    """What a library's code needs beyond the level: all of it, or what runs on loading."""
    if code.on_load:
        return _on_load(data, file, code.level)
    rules = None
    scan = None
    if code.chosen and isinstance(file, Elf):
        # Functions that are chosen at run time may need more; what runs on loading may not.
        rules = code.chosen
        scan = scan_starts(data, file, code.level)
        if scan.result.beyond and not scan.result.not_checked:
            return _answer(code.level, scan.result, scan)
    result = scan_isa(data, file, code.level, rules)
    return _answer(code.level, result, scan)._replace(starts=None)


def _on_load(data: Buffer, file: Elf | Pe, level: str) -> Instructions:
    """What runs on loading, or at exit."""
    scan = scan_starts(data, file, level)
    answer = _answer(level, scan.result, scan)
    # Where not all can be followed, code that holds nothing beyond the level has nothing that could
    # run on loading.
    may_be_swept = bool(scan.open_ends) and not scan.result.beyond and len(data) <= _SWEPT
    if may_be_swept and not scan_isa(data, file, level).beyond:
        return answer._replace(open_ends=0)
    return answer


def _answer(level: str, result: IsaResult, scan: InitScan | None) -> Instructions:
    """The answer to a question about a library's code.

    Args:
        level: The level that it is held to.
        result: What the code needs beyond it.
        scan: What runs on loading, where that was followed.
    """
    beyond = {}
    for find in result.beyond:
        beyond[find.feature] = (find.count, find.places)
    answer = Instructions(level, beyond, result.undecodable, result.not_checked)
    if scan is None:
        return answer
    return answer._replace(
        starts=None if result.not_checked else scan.starts,
        open_ends=scan.open_ends,
        calls=None if scan.open_ends else scan.calls,
    )


_BATCH = 4 << 20  # bytes
_PROGRESS_S = 0.5
Progress = Callable[[int, int], None]
"""Takes how many bytes of a wheel were read, and how many there are."""
_MAX_LIBRARIES = 5000  # the largest known wheels hold some hundred


SymbolTable = Symbols | DllSymbols
"""The names that a library takes and gives."""
Hashes = Mapping[str, tuple[str, int]]
"""sha256 in hexadecimal and bytes of files, by name."""


class Contents(NamedTuple):
    """All files of a wheel: (sha256 in hexadecimal, bytes) by name, and the libraries among them.

    `symbols`: by member, where they were asked for; a library that cannot be read has none.
    `dispatching`: the libraries that choose code at run time, where a level is promised.
    `dependencies` are the libraries of the wheels that are installed beside it, as far as those
    were given; `requires` is the Requires-Dist of METADATA. `dll_folders`: where the package's own
    code has Windows look for DLLs.
    """

    files: dict[str, tuple[str, int]]
    libraries: tuple[Library, ...]
    dependencies: tuple[Library, ...] = ()
    requires: tuple[str, ...] = ()
    symbols: Mapping[str, SymbolTable] = {}
    dispatching: tuple[str, ...] = ()
    dll_folders: frozenset[str] = frozenset()


def symbols_of(data: Buffer) -> SymbolTable:
    """Symbols that a library takes and gives, or the reason why it cannot be read."""
    try:
        if data[:2] == PE_MAGIC:
            return read_dll_symbols(data, read_pe(data))
        return read_symbols(data, read_elf(data))
    except VerificationFailedError as error:
        return Symbols(error=str(error))


def read_contents(
    archive: Archive,
    code_of: Callable[[str], Code | None] = lambda _: None,
    *,
    with_symbols: bool = False,
    device: bool = True,
    progress: Progress | None = None,
) -> Contents:
    """Read every member once. A damaged library has `Library.error`.

    Args:
        archive: The wheel.
        code_of: For a member's name, what is asked of its machine code.
        with_symbols: Read what the libraries take from one another, too.
        device: Look for GPU code.
        progress: Called now and then with the bytes of the file that were read, and with all.

    Raises:
        VerificationFailedError: A member is damaged.
        InfrastructureError: The disk failed or is full.
    """
    files: dict[str, tuple[str, int]] = {}
    libraries: list[Library] = []
    symbols: dict[str, SymbolTable] = {}
    dispatching: list[str] = []

    def read_member(name: str) -> _Member:
        return _read_member(archive, name, code_of(name), with_symbols=with_symbols, device=device)

    # Closed at once where one fails: its threads must not outlive the archive.
    with closing(_read_members(archive, read_member, progress)) as members:
        for member in members:
            files[member.name] = member.sha256, member.size
            if member.library is not None:
                libraries.append(member.library)
            if member.symbols is not None:
                symbols[member.name] = member.symbols
            if member.chooses_code:
                dispatching.append(member.name)
            if len(libraries) > _MAX_LIBRARIES:
                raise VerificationFailedError(
                    f"more than {_MAX_LIBRARIES} libraries; such a wheel is not inspected"
                )
    return Contents(
        files=files,
        libraries=tuple(libraries),
        symbols=symbols,
        dispatching=tuple(dispatching),
        dll_folders=_dll_folders(archive, files, libraries),
    )


class _Member(NamedTuple):
    """A member that was read."""

    name: str
    sha256: str
    size: int
    library: Library | None = None
    symbols: SymbolTable | None = None
    chooses_code: bool = False


class _Batch(NamedTuple):
    """Files that are read one after the other: its place among the batches, their names, and the
    bytes of all.
    """

    number: int
    names: list[str]
    size: int


def _read_members(
    archive: Archive,
    read: Callable[[str], _Member],
    progress: Progress | None,
) -> Generator[_Member]:
    """Read the files of a wheel in several threads, and give them in their order.

    Unpacking and hashing release the interpreter's lock.
    """

    def read_batch(batch: _Batch) -> list[_Member]:
        return [read(name) for name in batch.names]

    with ThreadPoolExecutor(THREADS) as threads:
        batches = list(_batches(archive))
        tasks: dict[int, Future[list[_Member]]] = {}
        # The largest first: a library of hundreds of megabytes would be read alone at the end.
        for batch in sorted(batches, key=lambda batch: -batch.size):
            tasks[batch.number] = threads.submit(read_batch, batch)
        try:
            for _, task in sorted(tasks.items()):
                if progress is not None:
                    _wait(task, archive, progress)
                yield from task.result()
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _wait(batch: Future[Any], archive: Archive, progress: Progress) -> None:
    """Wait for a task, and say meanwhile how much was read: a member may be gigabytes."""
    total = sum(entry.compressed for entry in archive.members.values())
    while wait([batch], timeout=_PROGRESS_S).not_done:
        progress(min(archive.bytes_read, total), total)
    progress(min(archive.bytes_read, total), total)


def _dll_folders(
    archive: Archive,
    files: Hashes,
    libraries: Iterable[Library],
) -> frozenset[str]:
    dlls = [library.path for library in libraries if library.format == "pe"]
    if not dlls:
        return frozenset()
    sizes = {}
    for name, (_, size) in files.items():
        sizes[name] = size
    return added_by_code(sizes, dlls, archive.read)


def _batches(archive: Archive) -> Iterator[_Batch]:
    """The files of a wheel in their order, small ones together: a task for each would cost more
    than reading them.
    """
    number = 0
    names: list[str] = []
    size = 0
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        names.append(name)
        size += entry.size
        if size >= _BATCH:
            yield _Batch(number, names, size)
            number += 1
            names = []
            size = 0
    if names:
        yield _Batch(number, names, size)


def _read_member(
    archive: Archive,
    name: str,
    code: Code | None,
    *,
    with_symbols: bool,
    device: bool,
) -> _Member:
    size = archive.members[name].size
    with _disk(archive, name), archive.content(name, magics(name)) as (sha256, data):
        if data is None:
            return _Member(name, sha256, size)
        return _Member(
            name,
            sha256,
            size,
            library=read_library(name, sha256, data, code, device=device),
            symbols=symbols_of(data) if with_symbols else None,
            chooses_code=code is not None and (code.on_load or code.chosen is not None),
        )


@contextmanager
def _disk(archive: Archive, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Not `gettempdir()`, which fails in its turn where no folder can be written.
        where = tempfile.tempdir or "the folder for temporary files"
        raise InfrastructureError(
            f"{archive.path.name}: reading {name!r} failed ({error})",
            hint=f"large members are unpacked to {where}: is it full? Make room there, or set "
            "TMPDIR",
        ) from error


_BY_NAME = frozenset({"dlsym", "dlvsym", "GetProcAddress"})


def with_open_calls(archive: Archive, contents: Contents) -> tuple[Library, ...]:
    """The libraries, with one open end more for each that may call into one that chooses its code.

    A library that chooses its code at run time may need more than the level in a function that
    another one calls when it is loaded. Emulation shows whether it does.
    """
    exports = {}
    for path in contents.dispatching:
        if path in contents.symbols:
            exports[path] = _short(contents.symbols[path].exports)

    libraries = []
    for library in contents.libraries:
        code = library.instructions
        symbols = contents.symbols.get(library.path)
        if code is not None and symbols is not None:
            exported = []
            for path, names in exports.items():
                if path != library.path:
                    exported.append(names)
            if exported and _may_call(archive, library, code, _taken(symbols), exported):
                code = code._replace(open_ends=code.open_ends + 1)
        libraries.append(library._replace(instructions=code))
    return tuple(libraries)


def _may_call(
    archive: Archive,
    library: Library,
    code: Instructions,
    imported: frozenset[str],
    exported: Iterable[frozenset[str]],
) -> bool:
    """True if a library may call a function of another one when it is loaded.

    Args:
        archive: The wheel.
        library: The library.
        code: What is known of its machine code.
        imported: The names that it takes.
        exported: The names that each of the others gives.
    """
    if imported & _BY_NAME and _calls_by_name(archive, library, code):
        return True
    return any(imported & names for names in exported)


def _calls_by_name(archive: Archive, library: Library, code: Instructions) -> bool:
    """True if a library may ask for a function by its name when it is loaded."""
    if code.starts is None:  # its whole code keeps to the level, so it was not followed
        question = Code(code.level, on_load=True)
        with archive.content(library.path, magics(library.path)) as (_, data):
            scanned = read_library(library.path, "", data or b"", question, device=False)
        code = scanned.instructions or code
    return code.calls is None or bool(code.calls & _BY_NAME)


def _taken(symbols: SymbolTable) -> frozenset[str]:
    """The names that a library takes from others."""
    if isinstance(symbols, Symbols):
        return _short(symbols.undefined)
    return _short(chain(*symbols.imports.values()))


def _short(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name[:LONGEST_NAME] for name in names)
