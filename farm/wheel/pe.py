"""PE (DLLs and Python's .pyd files): what a library needs of which DLL, and the functions that it
takes and gives.

Where a name that is taken is not given, Windows reports error 127, "The specified procedure could
not be found". Any byte string is a legal argument: what is damaged raises
`VerificationFailedError`. Below are the DLLs that a machine has without the wheel, and those that
are loaded by name: `windows.yaml`, and delvewheel's list of Windows' own DLLs. Source: Microsoft,
"PE Format" (learn.microsoft.com/windows/win32/debug/pe-format).
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, Literal, NamedTuple

from farm.base import yamlfile
from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.base.text import printable
from farm.wheel.archive import Buffer

PE_MAGIC = b"MZ"
PE_FATBIN_SECTION = ".nv_fatb"  # a section's name has eight bytes: the end of .nv_fatbin is cut off
MACHINES = {0x14C: "win32", 0x8664: "amd64", 0xAA64: "arm64"}
_DLL = 0x2000
_CODE = 0x20000000  # IMAGE_SCN_MEM_EXECUTE
_PE32 = 0x10B
_PE64 = 0x20B
_EXPORTS = 0
_IMPORTS = 1
_DELAYED = 13
_RAW_ALIGNMENT = 512
_MAX_SECTIONS = 1000
_MAX_IMPORTS = 4096  # DLLs
_MAX_DLL_NAME = 260  # MAX_PATH
_MAX_ADDRESS = 1 << 63  # what is above belongs to the kernel


class PeSection(NamedTuple):
    """One section: its place in memory relative to the image base (`address`), and in the file; all
    in bytes.
    """

    name: str
    address: int
    size: int
    offset: int
    raw_size: int
    is_code: bool

    @property
    def end(self) -> int:
        """File offset behind the last byte that is loaded; padding to the file alignment is left
        out.
        """
        return self.offset + min(self.raw_size, self.size or self.raw_size)


class Pe(NamedTuple):
    """The facts of one PE file."""

    machine: str  # as in platform tags (`amd64`), or `pe0x<number>`
    is_dll: bool
    # DLLs that must be there when it is loaded, in order, as written.
    needed: tuple[str, ...]
    # DLLs that must be there when one of their functions is first called.
    delay_needed: tuple[str, ...]
    linker: str  # version of the linker, such as `14.29` (Visual Studio 2019 16.11)
    sections: tuple[PeSection, ...]
    image_base: int
    entry: int  # where the loader enters it, relative to the image base; 0: nowhere
    # (address, size) of the data directories, sixteen of them.
    directories: tuple[tuple[int, int], ...]
    wide: bool = True  # 64 bits

    def place(self, address: int) -> tuple[int, int]:
        """(file offset, end of its section in the file) of an address relative to the image
        base.
        """
        for section in self.sections:
            distance = address - section.address
            if 0 <= distance < section.end - section.offset:
                return section.offset + distance, section.end
        raise damaged("a table is outside its sections")

    def bytes_at(self, data: Buffer, address: int, size: int) -> bytes:
        """So many bytes of the file from an address on."""
        start, end = self.place(address)
        if start + size > end:
            raise damaged("a table reaches beyond its section")
        return data[start : start + size]


def read_pe(data: Buffer) -> Pe:
    """Read the facts of a PE file."""
    return _Reader(data).read()


def damaged(what: str) -> VerificationFailedError:
    """The error for a file that is no sound PE file."""
    return VerificationFailedError(f"damaged PE file: {what}")


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self.data = data

    def read(self) -> Pe:
        """Read the headers, the tables of sections and directories, and the DLLs that it needs."""
        if self._slice(0, 2) != PE_MAGIC:
            raise damaged("no DOS header")
        # e_lfanew of the DOS header. Offsets from here on are those of Microsoft's PE format, "COFF
        # File Header" and behind.
        (header,) = self._at("I", 0x3C)
        if self._slice(header, 4) != b"PE\0\0":
            raise damaged("no PE header")
        machine, count, _, _, _, optional_size, flags = self._at("HHIIIHH", header + 4)
        optional = header + 24
        magic, major, minor = self._at("HBB", optional)
        if magic not in (_PE32, _PE64):
            raise damaged(f"unknown kind 0x{magic:x}")
        wide = magic == _PE64
        # Behind these bytes of the optional header its directories begin.
        fixed = 112 if wide else 96
        if optional_size < fixed:
            raise damaged("its optional header is cut off")
        if count > _MAX_SECTIONS:
            raise damaged(f"{count} sections; more than {_MAX_SECTIONS} are refused")
        (entry,) = self._at("I", optional + 16)
        # PE32 has BaseOfData before it, so the 32-bit field stands four bytes further.
        if wide:
            (base,) = self._at("Q", optional + 24)
        else:
            (base,) = self._at("I", optional + 28)
        end = optional + optional_size
        pe = Pe(
            machine=MACHINES.get(machine, f"pe0x{machine:x}"),
            is_dll=bool(flags & _DLL),
            needed=(),
            delay_needed=(),
            linker=f"{major}.{minor:02}",
            sections=self._sections(end, count, base),
            image_base=base,
            entry=entry,
            wide=wide,
            directories=self._directories(optional + fixed, end),
        )
        return pe._replace(
            needed=_dlls(self.data, pe),
            delay_needed=_dlls(self.data, pe, delayed=True),
        )

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        """The numbers at an offset, by their layout."""
        form = "<" + layout
        return struct.unpack(form, self._slice(offset, struct.calcsize(form)))

    def _directories(self, table: int, end: int) -> tuple[tuple[int, int], ...]:
        """(address, size) of the sixteen data directories, whose table ends with the header."""
        (declared,) = self._at("I", table - 4)
        # A file may declare more directories than the loader reads, or than fit into its header.
        count = min(declared, 16, (end - table) // 8)
        directories = [(0, 0)] * 16
        for index in range(count):
            address, size = self._at("II", table + 8 * index)
            directories[index] = (address, size)
        return tuple(directories)

    def _sections(self, table: int, count: int, base: int) -> tuple[PeSection, ...]:
        """The sections, which must fit behind the image base."""
        sections = []
        for index in range(count):
            section = self._section(table + 40 * index)
            if base + section.address + max(section.size, section.raw_size) > _MAX_ADDRESS:
                raise damaged(f"its sections do not fit behind its image base 0x{base:x}")
            sections.append(section)
        return tuple(sections)

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.data):
            raise damaged("cut off")
        return self.data[offset : offset + size]

    def _section(self, header: int) -> PeSection:
        raw = self._slice(header, 40)
        size, address, raw_size, offset = struct.unpack_from("<IIII", raw, 8)
        (flags,) = struct.unpack_from("<I", raw, 36)
        text = raw[:8].rstrip(b"\0").decode("ascii", "backslashreplace")
        section = PeSection(
            name=printable(text),
            address=address,
            size=size,
            # PointerToRawData is rounded down to 512, whatever alignment the header declares, as
            # the loader does.
            offset=offset - offset % _RAW_ALIGNMENT,
            raw_size=raw_size,
            is_code=bool(flags & _CODE),
        )
        if raw_size and section.end > len(self.data):
            raise damaged(f"section {section.name!r} reaches beyond the end")
        return section


_MAX_FUNCTIONS = 500_000
_MAX_NAME = 4096  # of a C++ function, decorated


@dataclass(frozen=True)
class DllSymbols:
    """The functions of a DLL.

    `imports`: DLL (in lower case) to the names and ordinals (`#12`) taken from it, on loading or on
    the first call.
    """

    imports: dict[str, frozenset[str]] = field(default_factory=dict)
    exports: frozenset[str] = frozenset()  # the names and ordinals that it gives

    def source(self, name: str) -> str | None:
        """The DLL that a name is taken from, in words; None for a name that it does not take."""
        for dll, names in self.imports.items():
            if name in names:
                return f" from {dll}"
        return None


def read_dll_symbols(data: Buffer, pe: Pe) -> DllSymbols:
    """Read what a DLL imports and exports."""
    imports: dict[str, frozenset[str]] = {}
    for name, thunks, _ in _all_imports(data, pe):
        dll = name.lower()
        names = imports.get(dll, frozenset())
        imports[dll] = names.union(_thunks(data, pe, thunks))
    return DllSymbols(imports, _exports(data, pe))


def _dlls(data: Buffer, pe: Pe, *, delayed: bool = False) -> tuple[str, ...]:
    """The DLLs that a file imports, each once."""
    names: dict[str, None] = {}
    for name, _, _ in _imports(data, pe, delayed=delayed):
        names[printable(name)] = None
    return tuple(names)


def imported(data: Buffer, pe: Pe) -> Iterator[tuple[int, str]]:
    """(address relative to the image base, name) of each slot that the loader fills with another
    DLL's function.
    """
    width = 8 if pe.wide else 4
    for _, thunks, slots in _all_imports(data, pe):
        for index, name in enumerate(_thunks(data, pe, thunks)):
            yield slots + index * width, name


_Import = tuple[str, int, int]
"""A DLL, the table of what is taken of it, and the slots for that."""


def _all_imports(data: Buffer, pe: Pe) -> Iterator[_Import]:
    """The imports on loading, then those on the first call."""
    yield from _imports(data, pe)
    yield from _imports(data, pe, delayed=True)


def _imports(
    data: Buffer,
    pe: Pe,
    *,
    delayed: bool = False,
) -> Iterator[_Import]:
    """(DLL, table of what is taken, slots) of each record up to one without a name or without
    functions.

    In delay loads of old linkers, whose lowest bit of the first word is not set, addresses are
    absolute; their table is given as 0.
    """
    # "Import Directory Table" and "Delay-Load Directory Table" of the PE format.
    if delayed:
        table, _ = pe.directories[_DELAYED]
        size = 32
    else:
        table, _ = pe.directories[_IMPORTS]
        size = 20
    if not table:
        return
    for index in range(_MAX_IMPORTS):
        record = pe.bytes_at(data, table + size * index, 20)
        first, second, _, fourth, fifth = struct.unpack("<IIIII", record)
        if delayed:
            name, address, lookup = (second, fourth, fifth)
        else:
            name, address, lookup = (fourth, fifth, first)
        if not name or not address:
            return
        if delayed and not first & 1:
            yield _text(data, pe, name - pe.image_base, _MAX_DLL_NAME), 0, 0
        else:
            # Old linkers leave the lookup table out; the address table holds the same until it is
            # bound.
            yield _text(data, pe, name, _MAX_DLL_NAME), lookup or address, address
    raise damaged(f"more than {_MAX_IMPORTS} imports")


def _thunks(data: Buffer, pe: Pe, table: int) -> Iterator[str]:
    """The functions that a table names; none for the table 0 (see `_imports`)."""
    if not table:
        return
    width = 8 if pe.wide else 4
    # The highest bit of a thunk: the function is taken by its ordinal, in the low 16 bits.
    top = 1 << (8 * width - 1)
    start, end = pe.place(table)
    names: list[int] = []
    for index in range(_MAX_FUNCTIONS):
        at = start + index * width
        if at + width > end:
            raise damaged("a table of imports has no end")
        value = int.from_bytes(data[at : at + width], "little")
        if not value:
            yield from _texts(data, pe, names)
            return
        if value & top and not value & (top - 0x10000):
            yield from _texts(data, pe, names)
            names.clear()
            yield f"#{value & 0xFFFF}"
        elif value < 1 << 31:
            # Past the hint, two bytes before the name.
            names.append(value + 2)
        else:
            raise damaged("a table of imports sets bits that must be zero")
    raise damaged(f"more than {_MAX_FUNCTIONS} imports")


def _exports(data: Buffer, pe: Pe) -> frozenset[str]:
    """The names and ordinals (`#12`) of the functions that a DLL gives."""
    table, _ = pe.directories[_EXPORTS]
    if not table:
        return frozenset()
    directory = pe.bytes_at(data, table + 16, 20)
    base, functions, names, addresses, name_table = struct.unpack("<IIIII", directory)
    if max(functions, names) > _MAX_FUNCTIONS:
        raise damaged(f"more than {_MAX_FUNCTIONS} exports")
    exports = set()
    places = _words(data, pe, addresses, functions)
    for ordinal, place in enumerate(places, base):
        if place:
            exports.add(f"#{ordinal}")
    name_places = _words(data, pe, name_table, names)
    exports.update(_texts(data, pe, name_places))
    return frozenset(exports)


def _words(data: Buffer, pe: Pe, address: int, count: int) -> tuple[int, ...]:
    """A table of numbers of 32 bits; an empty one may be anywhere."""
    if not count:
        return ()
    return struct.unpack(f"<{count}I", pe.bytes_at(data, address, 4 * count))


def _texts(
    data: Buffer,
    pe: Pe,
    addresses: Sequence[int],
    longest: int = _MAX_NAME,
) -> Iterator[str]:
    """The names at many addresses: most are in one section, which is looked up once."""
    low = high = shift = end = 0
    for address in addresses:
        if not low <= address < high:
            start, end = pe.place(address)
            low = address
            high = address + end - start
            shift = start - address
        at = address + shift
        stop = data.find(b"\0", at, min(end, at + longest))
        if stop < 0:
            raise damaged("a name without end")
        yield data[at:stop].decode("utf-8", "backslashreplace")


def _text(data: Buffer, pe: Pe, address: int, longest: int = _MAX_NAME) -> str:
    return next(_texts(data, pe, [address], longest))


Owner = Literal["driver", "python", "vc runtime", "system"]
_MAX_MENTIONS = 10_000
_LONGEST = 64
_WILD = frozenset("*?[")
_NAME_LETTERS = f"{ascii_letters}{digits}_-."
# Microsoft, "Windows API sets": names that stand for functions of Windows' own DLLs. Those of the C
# runtime are known.
_API_SET = re.compile(r"(?:api-ms-(?!win-crt-)|ext-ms-)[a-z0-9-]+-l[0-9]+-[0-9]+-[0-9]+\.dll")
_CRT = re.compile(
    r"api-ms-win-crt-(?:conio|convert|environment|filesystem|heap|locale|math|multibyte|private|process|"
    r"runtime|stdio|string|time|utility)-l1-1-0\.dll"
)


@cache
def _table() -> dict[str, Any]:
    """The content of `windows.yaml`."""
    content: dict[str, Any] = yamlfile.plain(Path(__file__).with_name("windows.yaml"))
    return content


@cache
def _listed(what: str) -> tuple[str, ...]:
    """A list of `windows.yaml`."""
    return tuple(_table()[what])


@cache
def windows_dlls() -> frozenset[str]:
    """Windows' own DLLs of 64-bit x86, in lower case: what delvewheel leaves out of every wheel."""
    try:
        lists = import_module("delvewheel._dll_list")
        return frozenset(name.lower() for name in lists.ignore_names[lists.MachineType.AMD64])
    except (ImportError, AttributeError, KeyError) as error:
        raise InfrastructureError(
            f"the list of Windows' DLLs cannot be read from delvewheel ({error})",
            hint="pip install 'delvewheel>=1.13.1'",
        ) from error


@lru_cache(maxsize=10_000)
def owner(name: str) -> Owner | None:
    """Who brings a DLL to every machine that a wheel may be installed on; None: the wheel has
    to.
    """
    low = name.lower()
    list_of: dict[Owner, str] = {
        "driver": "driver",
        "python": "python",
        "vc runtime": "runtime",
        "system": "system",
    }
    for who, list_name in list_of.items():
        if fits(low, _listed(list_name)):
            return who
    if _CRT.fullmatch(low) or _API_SET.fullmatch(low) or low in windows_dlls():
        return "system"
    return None


def of_the_machine() -> tuple[str, ...]:
    """Name patterns of DLLs that go into no wheel: the driver's, Python's, the Visual C++ runtime,
    newer Windows'.
    """
    return (*_listed("driver"), *_listed("python"), *_listed("runtime"), *_listed("system"))


def is_brought_along(name: str) -> bool:
    """True if programs may bring their own of a DLL that Windows has too."""
    return fits(name, _listed("brought_along"))


def added_folders() -> tuple[str, ...]:
    """Patterns of folders below site-packages that packages add to the search for DLLs."""
    return _listed("folders")


def openmp_runtimes(needed: Iterable[str]) -> list[str]:
    """The OpenMP runtimes among the DLLs that a library imports."""
    return [name for name in needed if fits(name, _listed("openmp"))]


def fits(name: str, patterns: tuple[str, ...]) -> bool:
    """True if a name fits one of the patterns, by Windows' rules: case does not count."""
    low_name = name.lower()
    for pattern in patterns:
        low_pattern = pattern.lower()
        if low_name == low_pattern:
            return True
        # Most are names: to make regular expressions of them takes longer than all the rest.
        if not _WILD.isdisjoint(low_pattern) and fnmatchcase(low_name, low_pattern):
            return True
    return False


def loaded_by_name(data: Buffer, filename: str) -> tuple[str, ...]:
    """DLLs that a file is known to load by name, as far as their names are in it, sorted; in lower
    case.

    `filename` decides which names are looked for: a name in a file proves nothing about files that
    are not known.
    """
    patterns: list[str] = []
    for rule in _table()["loaded_by_name"]:
        if fits(filename, (rule["in"],)):
            patterns += rule["names"]
    if not patterns:
        return ()
    dlls = set()
    for name in _mentioned_dlls(data):
        if name != filename.lower() and fits(name, tuple(patterns)):
            dlls.add(name)
    return tuple(sorted(dlls))


def _mentioned_dlls(data: Buffer) -> Iterator[str]:
    """The names of DLLs in a file, in lower case: LoadLibraryA takes single bytes, LoadLibraryW
    takes UTF-16.
    """
    for encoding, step in (("ascii", 1), ("utf-16-le", 2)):
        ending = ".dll".encode(encoding)
        position = -1
        for _ in range(_MAX_MENTIONS):
            position = data.find(ending, position + 1, len(data))
            if position < 0:
                break
            first = max(0, position - _LONGEST * step)
            yield _name_before(data[first:position], step) + ".dll"


def _name_before(raw: bytes, step: int) -> str:
    """The file name, without its ending, that ends where `raw` ends; each character takes `step`
    bytes.
    """
    encoding = "latin-1" if step == 1 else "utf-16-le"
    text = raw[len(raw) % step :].decode(encoding, "replace")
    return text[len(text.rstrip(_NAME_LETTERS)) :].lower()
