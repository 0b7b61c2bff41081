"""CUDA fat binaries: which GPU architectures a library carries code for.

NVIDIA does not document the format. What is here was read off files of CUDA 10.2 to 13.5 and agrees
with `cuobjdump --list-elf --list-ptx` on them; see also the open parsers jiegec/fatbinary and
n-eiling/cuda-fatbin-decompression. A linked library has a section `.nv_fatbin` that holds
containers back to back:

    container  u32 magic 0xBA55ED50, u16 version 1, u16 header size 16, u64 size of the entries
    entry      u16 kind (1 PTX, 2 SASS), u16, u32 header size, u64 data size (padded),
               u32 compressed size, u32 place of its options, u16 minor, u16 major, u32 sm, u32,
               u32, u64 flags, u64, u64 uncompressed size; then the data

Kind 0x100 is several entries that are compressed as one (`nvcc --concat`, CUDA 13). Their headers
are in its own: at the place that its sixth field names, u32 how many and u32 bytes with these
eight, then each header as above, with the place of its data among the unpacked ones instead of a
header size.

The architecture is in clear: nothing is decompressed. `__nv_relfatbin` holds leftovers of
relocatable device code that no program loads; it is not read. One container holds the same kernels
for several architectures, so what a library can run on must be judged container by container: a
library with sm_35 somewhere may lack it elsewhere.

A cubin is an ELF file for machine 190. Its kernels are function symbols whose `st_other` says
"entry"; device functions that other kernels call are in `.text.` sections too, which relocatable
code may have alone. Linkers put a cubin without either into every library. Compressed ones are
unpacked: LZ4 (CUDA up to 12.x), zstd (12.x and newer).

Architectures are named as CUDA names them: 90 for sm_90, "90a" and "100f" for code of one GPU or
one family. `90a` uses what no other GPU has and runs on compute capability 9.0 alone; `100f` on its
family, equal or higher minor versions of one major one (CUDA C++ Programming Guide, "Compute
Capabilities", "Family- and Architecture-Specific").
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.elf import ELF_MAGIC

Architecture = int | str
"""As CUDA names it: 90 for sm_90, `90a` and `100f` for code of one GPU or one family."""


def number(arch: Architecture) -> int:
    """90 of 90 and of `90a`."""
    if isinstance(arch, int):
        return arch
    return int(arch[:-1])


def order(arch: Architecture) -> tuple[int, str]:
    """A key to sort by: 90, `90a`, 100."""
    if isinstance(arch, int):
        return arch, ""
    return number(arch), arch[-1:]


def runs_on(gpu: Architecture, code: Architecture) -> bool:
    """True if machine code for `code` runs on a GPU (`farm.catalog.gpus`); code of one GPU runs on
    that one alone.
    """
    # Slow to import, and repair does without.
    from farm.catalog.gpus import sass_runs  # noqa: PLC0415

    if isinstance(gpu, str):
        return gpu == code
    return sass_runs(number(code), gpu, order(code)[1])


def is_code_for(promised: Architecture, code: Architecture) -> bool:
    """True if `code` was compiled for the promised architecture: 90 and `90a` for 90, `90a` alone
    for `90a`.
    """
    return promised == code or (isinstance(promised, int) and number(code) == promised)


_EM_CUDA = 190
_NEW_ABI = 8
_SHT_SYMTAB = 2
_COMPAT = 0x70000086
_ACCELERATORS_V1 = 0x800
_ACCELERATORS = 0x8
_ONE_GPU = bytes((2, 9, 1))  # a byte as value, attribute 9: 1
_FUNCTION = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_SECTIONS = 65_000
# A stub has 0.6 to 1.7 kB. What is larger is not unpacked: a thousand large cubins would take
# minutes, and what a linker adds is never that large.
LOOKED_INTO = 16 << 10


def architecture(cubin: bytes) -> int | None:
    """35 for sm_35, by ELF's flags: their lowest byte, or with ABI 8 (CUDA 13) the second. None:
    they do not say.

    `cubin`: at least its first 52 bytes.
    """
    if not _is_cubin(cubin, 52):
        return None
    if cubin[8] >= _NEW_ABI:
        return cubin[49] or None
    return cubin[48] or None


def _is_cubin(content: bytes, size: int) -> bool:
    """True if at least so many bytes of a file for NVIDIA's GPUs are there."""
    if content[:4] != ELF_MAGIC or len(content) < size:
        return False
    return int.from_bytes(content[18:20], "little") == _EM_CUDA


def is_specific(cubin: bytes) -> bool:
    """True if it is for one GPU alone: sm_90a, not sm_90. Of code in a fat binary, that one says
    it.

    By ELF's flags (LLVM: EF_CUDA_ACCELERATORS_V1 and, for ABI 8, EF_CUDA_ACCELERATORS); CUDA 13 has
    it in the first attribute of `.nv.compat` (ISA_CLASS) instead.
    """
    bit = _ACCELERATORS if cubin[8] >= _NEW_ABI else _ACCELERATORS_V1
    if int.from_bytes(cubin[48:52], "little") & bit:
        return True
    attributes = [cubin[at : at + 3] for kind, at, _ in _sections(cubin) if kind == _COMPAT]
    return _ONE_GPU in attributes


def has_kernel(cubin: bytes) -> bool:
    """True if the symbol table names a function; False for what is not a cubin."""
    if not _is_cubin(cubin, 64):
        return False
    for kind, offset, length in _sections(cubin):
        if kind == _SHT_SYMTAB:
            return _names_function(cubin[offset : offset + length - length % _SYMBOL.size])
    return False


def _names_function(symbol_table: bytes) -> bool:
    """True if one of the symbols is a function with code."""
    for _, info, _, section, _, extent in _SYMBOL.iter_unpack(symbol_table):
        if info & 15 == _FUNCTION and section and extent:
            return True
    return False


def _sections(cubin: bytes) -> Iterator[tuple[int, int, int]]:
    """(type, offset, length) of each section that is in the file, up to the first header that does
    not.
    """
    # e_shoff, e_shentsize and e_shnum of a 64-bit ELF header, which a cubin is.
    (table,) = struct.unpack("<Q", cubin[40:48])
    (size, count) = struct.unpack("<HH", cubin[58:62])
    if size < _SECTION.size:
        return
    for index in range(min(count, _MAX_SECTIONS)):
        at = table + index * size
        if at + _SECTION.size > len(cubin):
            return
        _, kind, _, _, offset, length, *_ = _SECTION.unpack_from(cubin, at)
        if offset + length <= len(cubin):
            yield kind, offset, length


@lru_cache(maxsize=512)  # linkers put the same empty cubin into every library, a thousand times
def unpack(data: bytes, size: int, *, zstd: bool) -> bytes | None:
    """Unpack the code of an entry.

    Args:
        data: Its compressed bytes.
        size: Bytes of the code.
        zstd: It is compressed by Zstandard, else by LZ4.

    Returns:
        The code; None if these are no such data.
    """
    return _unpack_zstd(data, size) if zstd else _unpack_lz4(data, size)


def _unpack_zstd(data: bytes, size: int) -> bytes | None:
    import zstandard  # noqa: PLC0415 (seldom needed)

    try:
        # A frame may declare any length, which the decompressor would ask memory for.
        if zstandard.frame_content_size(data) > size:
            return None
        return zstandard.ZstdDecompressor(max_window_size=1 << 23).decompress(
            data, max_output_size=size
        )
    except zstandard.ZstdError:
        return None


def _unpack_lz4(data: bytes, size: int) -> bytes | None:
    """One LZ4 block (github.com/lz4/lz4, doc/lz4_Block_format.md)."""
    out = bytearray()
    at = 0
    try:
        while len(out) < size:
            token = data[at]
            at += 1
            literals, at = _length(data, at, token >> 4)
            out += data[at : at + literals]
            at += literals
            if at >= len(data):
                break
            distance = data[at] | data[at + 1] << 8
            at += 2
            match, at = _length(data, at, token & 15)
            if not 0 < distance <= len(out) or len(out) + match + 4 > size:
                break
            # Four is the shortest match. One that overlaps what it writes repeats it.
            match += 4
            start = len(out) - distance
            repeated = out[start:]
            if match > distance:
                repeated *= match // distance + 1
            out += repeated[:match]
    except IndexError:
        return None
    if len(out) != size:
        return None
    return bytes(out)


def _length(data: bytes, at: int, start: int) -> tuple[int, int]:
    """A length whose first four bits are `start`: 15 is continued in bytes, of which 255 is
    continued again.
    """
    length = start
    last = 255 if start == 15 else 0
    while last == 255:
        last = data[at]
        length += last
        at += 1
    return length, at


FATBIN_MAGIC = b"\x50\xed\x55\xba"  # as a file of its own (nvcc -fatbin)
FATBIN_SECTION = ".nv_fatbin"
UNUSED_SECTION = "__nv_relfatbin"
# A container: magic, version, bytes of this header, bytes of what follows.
_CONTAINER = struct.Struct("<IHHQ")
# An entry: kind, (version), bytes of its header and of its body, bytes that are used if it is
# compressed, place of its options in the header, …, sm, …, length of its source's name, flags.
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_FIXED = 64  # so long is a header without a source's name and options
_CONCATENATED = 0x100
_MAGIC = 0xBA55ED50
_KINDS: dict[int, Literal["ptx", "sass"]] = {1: "ptx", 2: "sass"}
_FLAG_LZ4 = 0x2000
_FLAG_ZSTD = 0x8000
_COMPRESSED = _FLAG_LZ4 | _FLAG_ZSTD
_FLAG_SPECIFIC = 0x100000
_FLAG_FAMILY = 0x200000  # the "a" of sm_90a, the "f" of sm_100f
_START = _CONTAINER.pack(0xBA55ED50, 1, 16, 0)[:8]
_PARTS_LOOKED_INTO = 4 * LOOKED_INTO
_MAX_ENTRIES = 200_000  # and containers, of one section; PyTorch's largest library has 2,600


class FatEntry(NamedTuple):
    """Code for one architecture.

    `is_stub`: SASS without a kernel. Linkers put an empty cubin of about 1.4 kB per architecture
    into every library, so an architecture that only stubs have is not a promise kept. What its
    symbol table says decides (`farm.wheel.fatbin`), of compressed ones too.
    """

    kind: Literal["ptx", "sass"]  # `sass` (machine code) or `ptx`
    sm: Architecture  # 35 for sm_35; "90a" and "100f" for code of one GPU or one family
    compressed: bool
    size: int  # bytes in the file, without the header
    is_stub: bool


class Container(NamedTuple):
    """One fat binary: the same kernels for each of its architectures. `offset` counts from the
    section's start.
    """

    offset: int
    size: int  # bytes, with its header
    entries: tuple[FatEntry, ...]

    @property
    def sass(self) -> frozenset[Architecture]:
        """Architectures with machine code."""
        return self._with_code("sass")

    @property
    def ptx(self) -> frozenset[Architecture]:
        """Architectures with PTX; none beside stubs only (source files without kernels give such
        containers).
        """
        if not self.sass and any(entry.kind == "sass" for entry in self.entries):
            return frozenset()
        return self._with_code("ptx")

    def _with_code(self, kind: Literal["ptx", "sass"]) -> frozenset[Architecture]:
        """The architectures of the entries of a kind that are no stubs."""
        architectures = set()
        for entry in self.entries:
            if entry.kind == kind and not entry.is_stub:
                architectures.add(entry.sm)
        return frozenset(architectures)


def read_fatbins(data: Buffer, start: int, end: int) -> list[Container]:
    """The containers between two offsets of a file, which is where its `.nv_fatbin` section
    lies.
    """
    containers = []
    budget = _MAX_ENTRIES
    position = _skip_padding(data, start, end)
    while position < end:
        if position + _CONTAINER.size > end:
            raise _damaged(position - start, "cut off")
        raw = data[position : position + _CONTAINER.size]
        magic, version, header, length = _CONTAINER.unpack(raw)
        if magic != _MAGIC or version != 1 or header < _CONTAINER.size:
            raise _damaged(position - start, "no container begins here")
        first = position + header
        if first + length > end:
            raise _damaged(position - start, "a container reaches beyond the section")
        all_entries = _entries(data, first, first + length, start)
        entries = tuple(islice(all_entries, budget))
        budget -= 1 + len(entries)
        if budget < 0:
            raise _damaged(position - start, f"more than {_MAX_ENTRIES} entries and containers")
        containers.append(Container(position - start, header + length, entries))
        position = _skip_padding(data, first + length, end)
    return containers


def _entries(data: Buffer, position: int, end: int, start: int) -> Iterator[FatEntry]:
    """The entries of a container.

    Args:
        data: The file.
        position: Where the first one begins.
        end: Where the container ends.
        start: What the offsets in messages count from.
    """
    while position < end:
        if position + _ENTRY.size > end:
            raise _damaged(position - start, "an entry is cut off")
        raw = data[position : position + _ENTRY.size]
        kind, _, header, length, packed, options, _, _, sm, _, _, flags = _ENTRY.unpack(raw)
        body = position + header
        if header < _ENTRY.size or body + length > end or packed > length:
            raise _damaged(position - start, "an entry reaches beyond its container")
        compressed = bool(flags & _COMPRESSED)
        size = length
        unpacked = length
        if compressed:
            size = packed
            unpacked = _unpacked_size(data, position, header)
        if kind == _CONCATENATED:
            headers = data[position + options : body]
            try:
                yield from _parts(headers, data[body : body + size], unpacked, flags)
            except struct.error:
                raise _damaged(
                    position - start, "the headers of its concatenated entries are cut off"
                ) from None
            except VerificationFailedError as error:
                raise _damaged(position - start, str(error)) from None
        elif kind in _KINDS:
            is_stub = length == 0
            true_sm = None
            if kind == 2 and length:
                is_stub, true_sm = _looked_into(data, body, size, unpacked, flags)
            if true_sm not in (None, sm):
                raise _damaged(
                    position - start, f"an entry for sm_{sm} holds code for sm_{true_sm}"
                )
            yield FatEntry(
                kind=_KINDS[kind],
                sm=_name(sm, flags),
                compressed=compressed,
                size=size,
                is_stub=is_stub,
            )
        position = body + length


def _unpacked_size(data: Buffer, position: int, header: int) -> int:
    """The unpacked size of an entry, which longer headers have in their last word; without it
    nothing is unpacked, so nothing is promised.
    """
    if header < _FIXED:
        return 0
    return int.from_bytes(data[position + 56 : position + 64], "little")


def _name(sm: int, flags: int) -> Architecture:
    """An architecture as CUDA names it: 90, `90a` or `100f`."""
    if flags & _FLAG_SPECIFIC:
        return f"{sm}a"
    if flags & _FLAG_FAMILY:
        return f"{sm}f"
    return sm


def _parts(
    headers: bytes,
    packed: bytes,
    unpacked: int,
    flags: int,
) -> Iterator[FatEntry]:
    """The entries of one of kind 0x100; `struct.error` where their headers are cut off."""
    compressed = bool(flags & _COMPRESSED)
    count, end = struct.unpack_from("<II", headers)
    # A linker's stubs for all architectures are this small together; what is larger is taken to
    # hold kernels.
    content: bytes | None = None
    is_small = unpacked <= _PARTS_LOOKED_INTO
    if is_small and compressed:
        content = unpack(packed, unpacked, zstd=bool(flags & _FLAG_ZSTD))
    elif is_small:
        content = packed
    position = 8
    for _ in range(min(count, _MAX_ENTRIES)):
        fields = _ENTRY.unpack_from(headers, position)
        kind, _, place, length, _, options, _, _, sm, _, name, own_flags = fields
        if place + length > unpacked:
            raise VerificationFailedError(
                "one of its concatenated entries reaches beyond the unpacked ones"
            )
        if kind in _KINDS:
            is_stub = length == 0
            if kind == 2 and is_small:
                part = (content or b"")[place : place + length]
                is_stub = not has_kernel(part)
                true_sm = architecture(part)
                if true_sm not in (None, sm):
                    raise VerificationFailedError(
                        f"an entry for sm_{sm} holds code for sm_{true_sm}"
                    )
            yield FatEntry(
                kind=_KINDS[kind],
                sm=_name(sm, own_flags),
                compressed=compressed,
                size=len(packed) * length // (unpacked or 1),
                is_stub=is_stub,
            )
        position += _header_size(headers, position, name, options)
    if position != end:
        raise VerificationFailedError(
            "the headers of its concatenated entries are not of the length that it says"
        )


def _header_size(headers: bytes, position: int, name: int, options: int) -> int:
    """The size of a header among those of concatenated entries.

    Behind the fixed header are the source's name, then place and length of the options, then these;
    each text has a zero behind it, and each header is aligned to 8.

    Args:
        headers: All of them.
        position: Where this one begins.
        name: The length of the source's name.
        options: Where place and length of the options are, counted from its begin; 0: nowhere.
    """
    last = _FIXED - 1
    if options:
        last = sum(struct.unpack_from("<II", headers, position + options))
    elif name:
        last = _FIXED + name
    return (last + 8) & ~7


def _looked_into(
    data: Buffer,
    start: int,
    size: int,
    unpacked: int,
    flags: int,
) -> tuple[bool, int | None]:
    """(Whether machine code holds no kernel, the architecture that it names itself.)

    What cannot be unpacked holds none that anything could load.
    """
    if not flags & _COMPRESSED:
        if size > LOOKED_INTO:
            head = data[start : start + 52]
            # Each kernel has a section `.text.<name>`: a name in the table of names answers without
            # reading the symbols.
            present = head[:4] == ELF_MAGIC and data.find(b"\0.text.", start, start + size) >= 0
            return not present, architecture(head)
        content: bytes | None = data[start : start + size]
    elif unpacked > LOOKED_INTO:
        return False, None  # so large an image is not unpacked: it is taken to hold kernels
    else:
        content = unpack(data[start : start + size], unpacked, zstd=bool(flags & _FLAG_ZSTD))
    return content is None or not has_kernel(content), architecture(content or b"")


def find_fatbins(
    data: Buffer,
    known: Sequence[tuple[int, int]] = (),
) -> list[Container]:
    """Containers outside the known ranges, by their place in the file: the driver finds them by a
    pointer.
    """
    containers: list[Container] = []
    position = data.find(_START)
    while position >= 0:
        size = int.from_bytes(data[position + 8 : position + 16], "little")
        end = position + 16 + size
        # The bytes of a known section were read by its headers already.
        known_end = _end_of_range(known, position)
        if known_end is not None:
            following = known_end
        elif size == 0 or end > len(data):
            following = position + 1
        else:
            for container in read_fatbins(data, position, end):
                containers.append(container._replace(offset=position))
            following = end
        if len(containers) > _MAX_ENTRIES:
            raise _damaged(following, f"more than {_MAX_ENTRIES} containers")
        position = data.find(_START, following)
    return containers


def _end_of_range(ranges: Sequence[tuple[int, int]], position: int) -> int | None:
    """The end of the range that holds a position; None where none does."""
    for start, end in ranges:
        if start <= position < end:
            return end
    return None


def _skip_padding(data: Buffer, position: int, end: int) -> int:
    """Containers are aligned with zeros: the offset of the next byte that is not zero."""
    while position < end:
        block = data[position : min(position + 4096, end)]
        payload = block.lstrip(b"\0")
        if payload:
            return position + len(block) - len(payload)
        position += len(block)
    return end


def _damaged(offset: int, what: str) -> VerificationFailedError:
    return VerificationFailedError(
        f"damaged fat binary at offset {offset} of {FATBIN_SECTION}: {what}"
    )
