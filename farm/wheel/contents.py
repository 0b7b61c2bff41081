"""One pass over a wheel: the hash of every file, the facts of every library."""

from collections import Counter
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from farm.errors import InfrastructureError, VerificationFailedError
from farm.wheel.archive import Archive, Buffer
from farm.wheel.elf import ELF_MAGIC, Elf, read_elf, section_ranges
from farm.wheel.fatbin import FATBIN_SECTION, read_fatbins
from farm.wheel.isa import scan_isa


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
    """Features that the machine code needs beyond `level`: instructions that need it, and the first places."""

    level: str
    beyond: dict[str, tuple[int, tuple[str, ...]]]
    undecodable: int
    not_checked: str | None


class Library(Frozen):
    """The facts of one ELF file in a wheel.

    Attributes:
        path: Member name.
        size: Bytes.
        kind: `shared`, `executable`, `object`, `core` or `other`.
        search_path: RUNPATH, or RPATH without one, split.
        versions: Library name to symbol versions required of it.
        fatbins: Groups of fat binaries with kernels, the largest group first.
        empty_fatbins: Fat binaries without a kernel (the linker's stubs).
        error: Why the file could not be read; then the facts are empty.
    """

    path: str
    sha256: str
    size: int
    machine: str = ""
    kind: str = "other"
    soname: str | None = None
    needed: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()
    versions: dict[str, tuple[str, ...]] = {}
    fatbins: tuple[FatbinSet, ...] = ()
    empty_fatbins: int = 0
    instructions: Instructions | None = None
    error: str | None = None

    @property
    def is_loadable(self) -> bool:
        """Whether the dynamic loader of a computer (not of a GPU) may be asked to load it."""
        return self.kind in ("shared", "executable") and self.machine != "cuda"


class Contents(Frozen):
    """All files of a wheel: (sha256 in hexadecimal, bytes) by name, and the libraries among them."""

    files: dict[str, tuple[str, int]]
    libraries: tuple[Library, ...]


def read_contents(archive: Archive, level_of: Callable[[str], str | None]) -> Contents:
    """Read every member once.

    Args:
        archive: The open wheel.
        level_of: For a member's name, the CPU level to check its code against, or None for no check.

    Raises:
        VerificationFailedError: A member is damaged. (A damaged library is not: see `Library.error`.)
        InfrastructureError: The disk failed or is full.
    """
    files = {}
    libraries = []
    for name, entry in archive.members.items():
        if entry.is_dir:
            continue
        try:
            with archive.content(name, ELF_MAGIC) as (sha256, data):
                files[name] = (sha256, entry.size)
                if data is not None:
                    libraries.append(read_library(name, sha256, data, level_of(name)))
        except OSError as error:
            raise InfrastructureError(
                f"{archive.path.name}: reading {name!r} failed ({error})",
                hint="large members are unpacked to the temporary folder (TMPDIR): is it full?",
            ) from error
    return Contents(files=files, libraries=tuple(libraries))


def read_library(path: str, sha256: str, data: Buffer, level: str | None) -> Library:
    """The facts of one ELF file; with `level`, what its code needs beyond that CPU level."""
    try:
        elf = read_elf(data)
        sets, empty = _fatbins(data, elf)
        instructions = _instructions(data, elf, level) if level and elf.is_loadable else None
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


def _fatbins(data: Buffer, elf: Elf) -> tuple[tuple[FatbinSet, ...], int]:
    count: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    weight: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    for _, start, end in section_ranges(data, (part for part in elf.sections if part.name == FATBIN_SECTION)):
        for container in read_fatbins(data, start, end):
            key = (tuple(sorted(container.sass)), tuple(sorted(container.ptx)))
            count[key] += 1
            weight[key] += sum(entry.size for entry in container.entries)
    empty = count.pop(((), ()), 0)
    order = sorted(count, key=lambda key: (-count[key], key))
    sets = [FatbinSet(sass=key[0], ptx=key[1], containers=count[key], bytes=weight[key]) for key in order]
    return tuple(sets), empty


def _instructions(data: Buffer, elf: Elf, level: str) -> Instructions:
    result = scan_isa(data, elf, level)
    return Instructions(
        level=level,
        beyond={find.feature: (find.count, find.places) for find in result.beyond},
        undecodable=result.undecodable,
        not_checked=result.not_checked,
    )
