"""ELF facts, read as the dynamic loader reads them: what a library needs, and where it looks.

Dynamic facts come from the program headers (the loader never looks at sections); sections serve to find device
code and machine code (`farm.wheel.elfcode`). Any byte string is a legal argument: what is damaged raises
`VerificationFailedError`.
Sources: System V gABI chapters 4 and 5; Linux Standard Base 5, "Symbol Versioning".
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.magic import ELF_MAGIC

# e_machine of the ELF header, by the numbers of the gABI and of glibc's <elf.h>.
MACHINES = {
    3: "i686",
    21: "ppc64",
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
_BITS = {"i686": 32, "armv7l": 32, "x86_64": 64, "aarch64": 64, "riscv64": 64, "loongarch64": 64}  # little-endian
_KINDS = {1: "object", 2: "executable", 3: "shared", 4: "core"}
# Types of program headers, tags of the dynamic section and types of sections: glibc's <elf.h>.
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_PF_X, _PF_W = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_DT_FILTER = 0x7FFFFFFF
_SHT_NOBITS = 8
SHF_EXECINSTR = 4
_MAX_SECTIONS = 0xFF00  # more need the escape in e_shnum, which linkers of libraries never use
_MAX_DYNAMIC = 10_000
_MAX_VERSIONS = 10_000
_MAX_STRING = 4096
_MAX_NAMES = 64 << 10  # characters of all names together: a short table may be pointed at many times


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
    """Bytes of the file that are loaded: their place in memory and in the file."""

    address: int
    offset: int
    size: int
    is_code: bool
    is_writable: bool


@dataclass(frozen=True)
class Elf:
    """The facts of one ELF file.

    Attributes:
        machine: As in platform tags (`x86_64`), or `em<number>`; with width and byte order where they are unusual.
        bits: 32 or 64.
        kind: `shared` (libraries, position-independent programs), `executable`, `object`, `core`, or `other`.
        needed: DT_NEEDED and DT_FILTER in order: glibc loads neither without (without DT_AUXILIARY, it does).
        rpath: DT_RPATH split at colons.
        runpath: DT_RUNPATH split at colons; None where there is none (then the loader uses DT_RPATH).
        versions: Library name to the symbol versions required of it, such as `GLIBC_2.17`.
        segments: What is loaded (PT_LOAD).
        dynamic: The dynamic section: (tag, value).
        version_names: Index of a required version, as symbols name it, to (library, version).
        executable_stack: Asked for by PT_GNU_STACK.
    """

    machine: str
    bits: int
    little: bool
    kind: str
    soname: str | None
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...] | None
    versions: Mapping[str, tuple[str, ...]]
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...] = ()
    dynamic: tuple[tuple[int, int], ...] = ()
    version_names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    executable_stack: bool = False

    def file_offset(self, address: int) -> int:
        """Where in the file a loaded address lies.

        Raises:
            VerificationFailedError: Nothing of the file is loaded there.
        """
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        raise damaged("a table is outside what is loaded")

    @property
    def search_path(self) -> tuple[str, ...]:
        """Where the loader looks for what this file needs: RUNPATH, or RPATH where there is no RUNPATH."""
        return self.rpath if self.runpath is None else self.runpath

    @property
    def is_loadable(self) -> bool:
        return self.kind in ("shared", "executable")


def read_elf(data: Buffer) -> Elf:
    """Read the facts of an ELF file.

    Raises:
        VerificationFailedError: It is not an ELF file, or damaged.
    """
    return _Reader(data).read()


def section_ranges(data: Buffer, sections: Iterable[Section]) -> list[tuple[Section, int, int]]:
    """Each section with the (offset, end) of its bytes.

    Raises:
        VerificationFailedError: They are not in the file, or are together larger than it (sections that overlap
            a thousand times would cost as much time).
    """
    ranges = [(section, section.offset, section.offset + section.size) for section in sections]
    for section, _, end in ranges:
        if end > len(data) or section.address + section.size >= 1 << 63:
            raise damaged(f"section {section.name!r} reaches beyond the end")
    # Each range is scanned later: without the bound a small file could ask for days of work.
    if sum(end - start for _, start, end in ranges) > len(data):
        raise damaged("its sections overlap")
    return ranges


def symbol_name(data: Buffer, offset: int) -> str:
    """The name at `offset` for display: cut at 200 characters, empty where the file is damaged."""
    end = data.find(b"\0", offset, offset + 200) if offset < len(data) else offset
    return _text(data[offset : end if end >= 0 else offset + 200])


def _text(raw: bytes) -> str:
    """Decoded for comparison and display: what could not be printed is escaped, so it names no file either."""
    text = raw.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged ELF file: {what}")


def _hash(name: bytes) -> int:
    """ELF's hash of a name (gABI chapter 5)."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high
    return value


class _Reader:
    def __init__(self, data: Buffer) -> None:
        self.data = data
        if len(data) < 20 or data[:4] != ELF_MAGIC or data[4] not in (1, 2) or data[5] not in (1, 2):
            raise damaged("no ELF header")
        self.bits = 64 if data[4] == 2 else 32
        self.order = "<" if data[5] == 1 else ">"
        self.loads: list[Segment] = []
        self.executable_stack = False
        self.version_names: dict[int, tuple[str, str]] = {}
        self.names = _MAX_NAMES

    def read(self) -> Elf:
        wide = self.bits == 64
        kind, machine = self._at("HH", 16)
        layout = "QQIHHHHHH" if wide else "IIIHHHHHH"
        # Behind e_entry: offsets of program and section headers, flags, header size, then size and count of each table.
        ph, sh, _, _, ph_size, ph_count, sh_size, sh_count, names = self._at(layout, 32 if wide else 28)
        dynamic = self._segments(ph, ph_size, ph_count)
        tags = self._dynamic(*dynamic) if dynamic else []
        # DT_STRTAB is an address in memory, and so are the other tables: segments give the place in the file.
        strings = self._file_offset(next((value for tag, value in tags if tag == _DT_STRTAB), None))
        texts = [
            (tag, self._string(strings + value))
            for tag, value in tags
            if strings is not None and tag in (_DT_NEEDED, _DT_FILTER, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)
        ]
        # An empty one leads nowhere (glibc, elf/dl-load.c: decompose_rpath); an empty entry is the current folder.
        paths = {tag: tuple(text.split(":")) if text else () for tag, text in texts}
        return Elf(
            machine=self._machine(machine),
            bits=self.bits,
            little=self.order == "<",
            kind=_KINDS.get(kind, "other"),
            soname=next((text for tag, text in texts if tag == _DT_SONAME), None),
            needed=tuple(text for tag, text in texts if tag in (_DT_NEEDED, _DT_FILTER)),
            rpath=paths.get(_DT_RPATH, ()),
            runpath=paths.get(_DT_RUNPATH),
            versions=self._versions(dict(tags), strings),
            sections=self._sections(sh, sh_size, sh_count, names),
            segments=tuple(self.loads),
            dynamic=tuple(tags),
            version_names=self.version_names,
            executable_stack=self.executable_stack,
        )

    def _machine(self, number: int) -> str:
        """The machine; a library of other width or byte order than such machines run is for another one."""
        name = MACHINES.get(number, f"em{number}")
        # Both byte orders of POWER have one machine number; platform tags have two names.
        if name == "ppc64" and self.order == "<":
            return "ppc64le"
        if self.bits != _BITS.get(name, self.bits) or (name in _BITS and self.order == ">"):
            return f"{name}, {self.bits} bits, {'little' if self.order == '<' else 'big'}-endian"
        return name

    def _at(self, layout: str, offset: int) -> tuple[int, ...]:
        form = self.order + layout
        if offset + struct.calcsize(form) > len(self.data):
            raise damaged("cut off")
        return struct.unpack(form, self.data[offset : offset + struct.calcsize(form)])

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
        return _text(self.data[offset:end])

    def _segments(self, table: int, size: int, count: int) -> tuple[int, int] | None:
        """Remember what is loaded where; (offset, length) of the dynamic segment, None without one."""
        dynamic = None
        for index in range(count):
            if self.bits == 64:
                # p_flags comes second in 64-bit files and last in 32-bit ones.
                kind, flags, offset, address, _, length = self._at("IIQQQQ", table + index * size)
            else:
                kind, offset, address, _, length, _, flags = self._at("IIIIIII", table + index * size)
            if kind == _PT_LOAD:
                self.loads.append(Segment(address, offset, length, bool(flags & _PF_X), bool(flags & _PF_W)))
            elif kind == _PT_GNU_STACK:
                self.executable_stack = bool(flags & _PF_X)
            elif kind == _PT_DYNAMIC and length:  # 0 in files that hold debug information only
                dynamic = (offset, length)
        return dynamic

    def _file_offset(self, address: int | None) -> int | None:
        if address is None:
            return None
        for segment in self.loads:
            if segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        raise damaged("a table is outside what is loaded")

    def _dynamic(self, offset: int, length: int) -> list[tuple[int, int]]:
        layout = "QQ" if self.bits == 64 else "II"
        tags: list[tuple[int, int]] = []
        for index in range(min(length // (self.bits // 4), _MAX_DYNAMIC)):
            tag, value = self._at(layout, offset + index * (self.bits // 4))
            if tag == 0:
                return tags
            tags.append((tag, value))
        raise damaged("its dynamic table has no end")

    def _versions(self, tags: Mapping[int, int], strings: int | None) -> dict[str, tuple[str, ...]]:
        position = self._file_offset(tags.get(_DT_VERNEED))
        if position is None or strings is None:
            return {}
        found: dict[str, tuple[str, ...]] = {}
        budget = _MAX_VERSIONS
        for _ in range(min(tags.get(_DT_VERNEEDNUM, 0), _MAX_VERSIONS)):
            # Elf_Verneed: version, count, file name, offset of the first Elf_Vernaux, offset of the next entry (0:
            # last).
            revision, count, file, first, following = self._at("HHIII", position)
            if revision != 1:
                raise damaged(f"it requires symbol versions in an unknown way ({revision})")
            budget -= count + 1
            if budget < 0:
                raise damaged(f"it requires more than {_MAX_VERSIONS} symbol versions")
            names, numbers = [], []
            entry = position + first
            for _ in range(count):
                # Elf_Vernaux: hash, flags, index that `.gnu.version` uses for a symbol, name, offset of the next.
                hashed, _, number, name, step = self._at("IHHII", entry)
                names.append(self._string(strings + name))
                if names[-1].isascii() and hashed != _hash(names[-1].encode()):
                    raise damaged(f"the hash of the version {names[-1]!r} is wrong")
                numbers.append(number)
                entry += step
            library = self._string(strings + file)
            found[library] = found.get(library, ()) + tuple(names)
            for number, version in zip(numbers, names, strict=True):
                self.version_names[number] = library, version
            if not following:
                return found
            position += following
        if tags.get(_DT_VERNEEDNUM):
            raise damaged("the versions that it requires have no end")
        return found

    def _sections(self, table: int, size: int, count: int, names: int) -> tuple[Section, ...]:
        if table == 0:
            return ()
        wide = self.bits == 64
        layout = "IIQQQQI" if wide else "IIIIIII"
        if count == 0:  # gABI: more sections than the header can count
            count = self._at(layout, table)[5]
        # SHN_XINDEX: the index is in sh_link of section 0, as the count in its sh_size.
        if names == 0xFFFF:
            names = self._at(layout, table)[6]
        if count > _MAX_SECTIONS:
            raise damaged(f"{count} sections; more than {_MAX_SECTIONS} are refused")
        raw = [self._at(layout, table + index * size) for index in range(count)]
        base = raw[names][4] if names < len(raw) else None
        return tuple(
            Section(
                "" if base is None else symbol_name(self.data, base + name), kind, flags, address, offset, length, link
            )
            for name, kind, flags, address, offset, length, link in raw
        )
