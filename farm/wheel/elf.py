"""ELF: what a library needs and where the loader looks for it; its functions, and where its machine
code is. The symbols that the loader sees are read by `elf_symbols`.

Dynamic facts come from the program headers (the loader never looks at sections); sections serve to
find device code and machine code. Of files of 32 bits, and of big-endian ones, nothing but the
machine is read: no wheel here is for such a machine. Any byte string is a legal argument: what is
damaged raises `VerificationFailedError`.

Sources: System V gABI chapters 4 and 5; Linux Standard Base 5, "Symbol Versioning".
"""

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from farm.base.errors import VerificationFailedError
from farm.base.text import printable
from farm.wheel.archive import Buffer

ELF_MAGIC = b"\x7fELF"
# e_machine of the ELF header, by the numbers of the gABI and of glibc's <elf.h>.
MACHINES = {
    3: "i686",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    190: "cuda",
    205: "intelgt",
    224: "amdgpu",
    243: "riscv64",
    258: "loongarch64",
}
_KINDS = {1: "object", 2: "executable", 3: "shared", 4: "core"}
# Types of program headers, tags of the dynamic section and types of sections: glibc's <elf.h>.
_PT_LOAD = 1
_PT_DYNAMIC = 2
_PT_INTERP = 3
_PT_TLS = 7
_PT_GNU_STACK = 0x6474E551
_PF_X = 1
_PF_W = 2
_DT_NEEDED = 1
DT_STRTAB = 5
_DT_SONAME = 14
_DT_RPATH = 15
_DT_RUNPATH = 29
_DT_VERNEED = 0x6FFFFFFE
_DT_VERNEEDNUM = 0x6FFFFFFF
_DT_FILTER = 0x7FFFFFFF
_DT_FLAGS = 30
_DT_RELR = 36
_DF_STATIC_TLS = 0x10
# What GNU ld asks for where it writes DT_RELR, and LLVM's does not.
_ABI_RELR = ("libc.so.6", "GLIBC_ABI_DT_RELR")
# Without PT_GNU_STACK the stack is what the ABI has it to be (glibc, sysdeps/*/stackinfo.h:
# DEFAULT_STACK_PERMS).
_STACKS_FOR_CODE = ("x86_64", "ppc64le")
_SHT_NOBITS = 8
SHF_EXECINSTR = 4
_MAX_SECTIONS = 0xFF00  # more need the escape in e_shnum, which linkers of libraries never use
_MAX_DYNAMIC = 10_000
MAX_VERSIONS = 10_000
_MAX_STRING = 4096
LONGEST_NAME = 200  # of what `symbol_name` gives
# Characters of all names together: a short table may be pointed at many times.
_MAX_NAMES = 64 << 10


@dataclass(frozen=True)
class Section:
    """One section header; `offset` and `size` in bytes. They are not checked against the file."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int

    @property
    def is_code(self) -> bool:
        return bool(self.flags & SHF_EXECINSTR) and self.kind != _SHT_NOBITS


@dataclass(frozen=True)
class Segment:
    """Bytes of the file that are loaded: their place in memory and in the file; `align` is the page
    that it is for.
    """

    address: int
    offset: int
    size: int
    align: int
    is_code: bool
    is_writable: bool


@dataclass(frozen=True)
class Elf:
    """The facts of one ELF file."""

    # As in platform tags (`x86_64`), or `em<number>`; with width and byte order where they are not
    # those of 64-bit little-endian machines.
    machine: str
    # `shared` (libraries, position-independent programs), `executable`, `object`, `core`, or
    # `other`
    kind: str
    soname: str | None = None
    # DT_NEEDED and DT_FILTER in order: glibc loads neither without (without DT_AUXILIARY, it does).
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()  # DT_RPATH split at colons
    # DT_RUNPATH split at colons; None where there is none (then the loader uses DT_RPATH).
    runpath: tuple[str, ...] | None = None
    # Library name to the symbol versions required of it, such as `GLIBC_2.17`.
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    segments: tuple[Segment, ...] = ()  # what is loaded (PT_LOAD)
    dynamic: tuple[tuple[int, int], ...] = ()  # the dynamic section: (tag, value)
    # Index of a required version, as symbols name it, to (library, version).
    version_names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    executable_stack: bool = False  # asked for by PT_GNU_STACK, or by none of it
    interpreter: str | None = None  # the loader that a program names (PT_INTERP)
    # Bytes of thread-local variables that must lie where the first libraries have theirs.
    static_tls: int = 0

    def file_offset(self, address: int) -> int:
        """The place in the file of a loaded address."""
        return _file_offset(self.segments, address)

    @property
    def search_path(self) -> tuple[str, ...]:
        """Where the loader looks for what this file needs: RUNPATH, or RPATH where there is no
        RUNPATH.
        """
        return self.rpath if self.runpath is None else self.runpath


def read_elf(data: Buffer) -> Elf:
    """Read the facts of an ELF file."""
    if len(data) < 20 or data[:4] != ELF_MAGIC:
        raise damaged("no ELF header")
    # EI_CLASS: 1 for 32 bits, 2 for 64; EI_DATA: 1 for little-endian, 2 for big-endian.
    width = data[4]
    order = data[5]
    if width not in (1, 2) or order not in (1, 2):
        raise damaged("no ELF header")
    if (width, order) == (2, 1):
        return _Reader(data).read()

    layout = "<HH"
    order_name = "little-endian"
    if order == 2:
        layout = ">HH"
        order_name = "big-endian"
    kind, machine = struct.unpack(layout, data[16:20])
    name = MACHINES.get(machine, f"em{machine}").removesuffix("le")
    # Of an unknown kind it may be for the loader, which refuses it.
    return Elf(f"{name}, {32 * width} bits, {order_name}", _KINDS.get(kind, "shared"))


def section_ranges(
    data: Buffer,
    sections: Iterable[Section],
) -> list[tuple[Section, int, int]]:
    """Each section with the (offset, end) of its bytes."""
    ranges = []
    total = 0
    for section in sections:
        end = section.offset + section.size
        if end > len(data) or section.address + section.size >= 1 << 63:
            raise damaged(f"section {section.name!r} reaches beyond the end")
        ranges.append((section, section.offset, end))
        total += section.size
    # Each range is scanned later: without the bound a small file could ask for days of work.
    if total > len(data):
        raise damaged("its sections overlap")
    return ranges


def symbol_name(data: Buffer, offset: int) -> str:
    """The name at `offset`, cut at `LONGEST_NAME` characters, empty where the file is damaged."""
    if offset >= len(data):
        return ""
    end = data.find(b"\0", offset, offset + LONGEST_NAME)
    if end < 0:
        end = offset + LONGEST_NAME
    return decoded(data[offset:end])


def decoded(raw: bytes) -> str:
    """Decoded for comparison and display: what could not be printed is escaped, so it names no file
    either.
    """
    return printable(raw.decode("utf-8", "backslashreplace"))


def _file_offset(segments: Iterable[Segment], address: int) -> int:
    for segment in segments:
        if segment.address <= address < segment.address + segment.size:
            return segment.offset + address - segment.address
    raise damaged("a table is outside what is loaded")


def damaged(what: str) -> VerificationFailedError:
    """The error for a file that is no sound ELF file."""
    return VerificationFailedError(f"damaged ELF file: {what}")


_TEXT_TAGS = (_DT_NEEDED, _DT_FILTER, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.loads: list[Segment] = []
        self.stack: int | None = None
        self.tls = 0
        self.interpreter: str | None = None
        self.version_names: dict[int, tuple[str, str]] = {}
        self.names = _MAX_NAMES

    def read(self) -> Elf:
        """Read the headers, then what they lead to."""
        kind, machine = self._at("HH", 16)
        # Behind e_entry: offsets of program and section headers, flags, header size, then size and
        # count of each table.
        ph, sh, _, _, ph_size, ph_count, sh_size, sh_count, names = self._at("QQIHHHHHH", 32)
        tags: list[tuple[int, int]] = []
        dynamic = self._segments(ph, ph_size, ph_count)
        if dynamic is not None:
            tags = self._dynamic(*dynamic)
        strings = self._strings(tags)
        texts = self._texts(tags, strings)
        versions = self._versions(dict(tags), strings)
        if first_value(tags, _DT_RELR) is not None:
            file, version = _ABI_RELR
            required = (*versions.get(file, ()), version)
            versions[file] = tuple(dict.fromkeys(required))
        name = MACHINES.get(machine, f"em{machine}")
        return Elf(
            machine=name,
            kind=_KINDS.get(kind, "other"),
            soname=first_value(texts, _DT_SONAME),
            needed=tuple(text for tag, text in texts if tag in (_DT_NEEDED, _DT_FILTER)),
            rpath=_last_path(texts, _DT_RPATH) or (),
            runpath=_last_path(texts, _DT_RUNPATH),
            versions=versions,
            sections=self._sections(sh, sh_size, sh_count, names),
            segments=tuple(self.loads),
            dynamic=tuple(tags),
            version_names=self.version_names,
            executable_stack=self._has_executable_stack(name, kind),
            interpreter=self.interpreter,
            static_tls=self._static_tls(tags),
        )

    def _strings(self, tags: list[tuple[int, int]]) -> int | None:
        """Where in the file the names are.

        DT_STRTAB is an address in memory, and so are the other tables: segments give the place in
        the file.
        """
        return self._file_offset(first_value(tags, DT_STRTAB))

    def _texts(
        self,
        tags: list[tuple[int, int]],
        strings: int | None,
    ) -> list[tuple[int, str]]:
        """The entries of the dynamic section that are names or paths."""
        texts: list[tuple[int, str]] = []
        if strings is None:
            return texts
        for tag, value in tags:
            if tag in _TEXT_TAGS:
                texts.append((tag, self._string(strings + value)))
        return texts

    def _has_executable_stack(self, machine: str, kind: int) -> bool:
        """True if the file asks for an executable stack, by PT_GNU_STACK or without one."""
        if self.stack is None:
            return machine in _STACKS_FOR_CODE and kind == 3
        return bool(self.stack & _PF_X)

    def _static_tls(self, tags: list[tuple[int, int]]) -> int:
        """The bytes of thread-local variables in the initial-exec model."""
        for tag, value in tags:
            if tag == _DT_FLAGS and value & _DF_STATIC_TLS:
                return self.tls
        return 0

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        """The numbers at an offset, by their layout."""
        form = "<" + layout
        end = offset + struct.calcsize(form)
        if end > len(self.data):
            raise damaged("cut off")
        return struct.unpack(form, self.data[offset:end])

    def _string(self, offset: int) -> str:
        if offset >= len(self.data):
            raise damaged("a name is beyond the end")
        end = self.data.find(b"\0", offset, offset + _MAX_STRING)
        if end < 0:
            raise damaged("a name without end")
        # A name that a thousand entries point at counts a thousand times, since each is kept.
        self.names -= end - offset + 1
        if self.names < 0:
            raise damaged(f"its names have more than {_MAX_NAMES} characters")
        return decoded(self.data[offset:end])

    def _segments(self, table: int, size: int, count: int) -> tuple[int, int] | None:
        """Remember what is loaded where; (offset, length) of the dynamic segment, None without
        one.
        """
        dynamic = None
        if count and size != 56:
            raise damaged(f"its program headers have {size} bytes each")
        for index in range(count):
            header = self._at("IIQQQQQQ", table + index * size)
            kind, flags, offset, address, _, length, in_memory, align = header
            if kind == _PT_LOAD:
                segment = Segment(
                    address=address,
                    offset=offset,
                    size=length,
                    align=align,
                    is_code=bool(flags & _PF_X),
                    is_writable=bool(flags & _PF_W),
                )
                self.loads.append(segment)
            elif kind == _PT_GNU_STACK:
                self.stack = flags
            elif kind == _PT_TLS:
                self.tls = in_memory
            elif kind == _PT_INTERP:
                self.interpreter = self._string(offset)
            elif kind == _PT_DYNAMIC and length:  # 0 in files that hold debug information only
                dynamic = (offset, length)
        return dynamic

    def _file_offset(self, address: int | None) -> int | None:
        if address is None:
            return None
        return _file_offset(self.loads, address)

    def _dynamic(self, offset: int, length: int) -> list[tuple[int, int]]:
        """The entries of the dynamic section, up to the one that ends it."""
        tags: list[tuple[int, int]] = []
        for index in range(min(length // 16, _MAX_DYNAMIC)):
            tag, value = self._at("QQ", offset + index * 16)
            if tag == 0:
                return tags
            tags.append((tag, value))
        raise damaged("its dynamic table has no end")

    def _versions(
        self,
        tags: Mapping[int, int],
        strings: int | None,
    ) -> dict[str, tuple[str, ...]]:
        """The symbol versions that are required of each library; notes their indexes."""
        position = self._file_offset(tags.get(_DT_VERNEED))
        if position is None or strings is None:
            return {}
        versions: dict[str, tuple[str, ...]] = {}
        budget = MAX_VERSIONS
        for _ in range(min(tags.get(_DT_VERNEEDNUM, 0), MAX_VERSIONS)):
            # Elf_Verneed: version, count, file name, offset of the first Elf_Vernaux, offset of the
            # next entry (0: last).
            revision, count, file, first, following = self._at("HHIII", position)
            if revision != 1:
                raise damaged(f"it requires symbol versions in an unknown way ({revision})")
            budget -= count + 1
            if budget < 0:
                raise damaged(f"it requires more than {MAX_VERSIONS} symbol versions")
            names = []
            numbers = []
            entry = position + first
            for _ in range(count):
                # Elf_Vernaux: hash, flags, index that `.gnu.version` uses for a symbol, name,
                # offset of the next.
                _, _, number, name, step = self._at("IHHII", entry)
                names.append(self._string(strings + name))
                numbers.append(number)
                entry += step
            library = self._string(strings + file)
            versions[library] = versions.get(library, ()) + tuple(names)
            for number, version in zip(numbers, names, strict=True):
                self.version_names[number] = library, version
            if not following:
                return versions
            position += following
        if tags.get(_DT_VERNEEDNUM):
            raise damaged("the versions that it requires have no end")
        return versions

    def _sections(
        self,
        table: int,
        size: int,
        count: int,
        names: int,
    ) -> tuple[Section, ...]:
        if table == 0:
            return ()
        layout = "IIQQQQI"
        if count == 0:  # gABI: more sections than the header can count
            count = self._at(layout, table)[5]
        # SHN_XINDEX: the index is in sh_link of section 0, as the count in its sh_size.
        if names == 0xFFFF:
            names = self._at(layout, table)[6]
        if count > _MAX_SECTIONS:
            raise damaged(f"{count} sections; more than {_MAX_SECTIONS} are refused")
        # Shorter ones would overlap: a small file could ask for tens of thousands.
        if size != struct.calcsize("<IIQQQQIIQQ"):
            raise damaged(f"its section headers have {size} bytes each")
        headers = [self._at(layout, table + index * size) for index in range(count)]
        sections = []
        for name, kind, flags, address, offset, length, link in headers:
            title = ""
            if names < count:
                names_at = headers[names][4]
                title = symbol_name(self.data, names_at + name)
            section = Section(
                name=title,
                kind=kind,
                flags=flags,
                address=address,
                offset=offset,
                size=length,
                link=link,
            )
            sections.append(section)
        return tuple(sections)


_Value = TypeVar("_Value")


def first_value(entries: Iterable[tuple[int, _Value]], tag: int) -> _Value | None:
    """The value of the first entry with a tag; None where there is none."""
    for entry_tag, value in entries:
        if entry_tag == tag:
            return value
    return None


def _last_path(texts: Iterable[tuple[int, str]], tag: int) -> tuple[str, ...] | None:
    """The folders of the last entry with a tag; None where there is none.

    An empty path leads nowhere (glibc, elf/dl-load.c: decompose_rpath); an empty folder is the
    current one.
    """
    path: tuple[str, ...] | None = None
    for text_tag, text in texts:
        if text_tag == tag:
            path = tuple(text.split(":")) if text else ()
    return path


_SHT_SYMTAB = 2
SHT_DYNSYM = 11
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
MAX_SYMBOLS = 2_000_000
SYMBOL = struct.Struct("<IBBHQQ")
"""A symbol: name, info, visibility, section, value, size."""


def code_sections(data: Buffer, elf: Elf) -> list[tuple[Section, int, int]]:
    """Sections of code, with the (offset, end) of their bytes."""
    sections = []
    for section in elf.sections:
        if section.size and section.is_code:
            sections.append(section)
    return section_ranges(data, sections)


@dataclass(frozen=True)
class Functions:
    """Defined functions by address: `names` are file offsets for `symbol_name`, in the same
    order.
    """

    addresses: Sequence[int]
    names: Sequence[int]


def function_symbols(data: Buffer, elf: Elf) -> Functions:
    """The defined functions, each address once, from `.symtab`, or from `.dynsym` in a stripped
    file.
    """
    table = _last_of_kind(elf, _SHT_SYMTAB) or _last_of_kind(elf, SHT_DYNSYM)
    if table is None or table.link >= len(elf.sections):
        return Functions((), ())
    [(_, start, end)] = section_ranges(data, [table])
    count = (end - start) // SYMBOL.size
    if count > MAX_SYMBOLS:
        raise damaged(f"{count} symbols; more than {MAX_SYMBOLS} are refused")
    names = elf.sections[table.link].offset
    # One integer a symbol: a million tuples would take ten times the memory.
    packed: list[int] = []
    symbols = SYMBOL.iter_unpack(data[start : start + count * SYMBOL.size])
    for name, info, _, section, address, _ in symbols:
        if info & 15 in _FUNCTIONS and section:
            # The name's offset has 32 bits, so one integer orders by address and keeps the name.
            packed.append(address << 32 | name)
    packed.sort()

    addresses = array("Q")
    offsets = array("Q")
    for symbol in packed:
        # Aliases share an address (C1 and C2 constructors, weak names): the first name serves.
        if not addresses or addresses[-1] != symbol >> 32:
            addresses.append(symbol >> 32)
            offsets.append(min(names + (symbol & 0xFFFFFFFF), len(data)))
    return Functions(addresses, offsets)


def _last_of_kind(elf: Elf, kind: int) -> Section | None:
    """The last section of a type; None where there is none."""
    for section in reversed(elf.sections):
        if section.kind == kind:
            return section
    return None
