"""CUDA fat binaries: which GPU architectures a library carries code for.

NVIDIA does not document the format. What stands here was read off files of CUDA 10.2 to 13.0 and agrees with
`cuobjdump --list-elf --list-ptx` on them; see also the open parsers jiegec/fatbinary and
n-eiling/cuda-fatbin-decompression. A linked library has a section `.nv_fatbin` that holds containers back to back:

    container  u32 magic 0xBA55ED50, u16 version 1, u16 header size 16, u64 size of the entries
    entry      u16 kind (1 PTX, 2 SASS), u16, u32 header size, u64 data size (padded),
               u32 compressed size, u32, u16 minor, u16 major, u32 sm, u32, u32, u64 flags,
               u64, u64 uncompressed size; then the data

The architecture is in clear: nothing is decompressed. `__nv_relfatbin` holds leftovers of relocatable device code
that no program loads; it is not read. One container holds the same kernels for several architectures, so what a
library can run on must be judged container by container: a library with sm_35 somewhere may lack it elsewhere.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from farm.errors import VerificationFailedError
from farm.wheel.archive import Buffer
from farm.wheel.magic import ELF_MAGIC

FATBIN_SECTION = ".nv_fatbin"
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_MAGIC = 0xBA55ED50
_KINDS: dict[int, Literal["ptx", "sass"]] = {1: "ptx", 2: "sass"}
_FLAGS_COMPRESSED = 0x2000 | 0x8000  # LZ4, zstd
_FLAG_SPECIFIC = 0x100000  # the "a" of sm_90a
_EM_CUDA = 190
_STUB_BYTES = 2048
_MAX_ENTRIES = 200_000  # and containers, of one section; PyTorch's largest library has 2,600


@dataclass(frozen=True)
class FatEntry:
    """Code for one architecture.

    Attributes:
        kind: `sass` (machine code) or `ptx`.
        sm: 35 for sm_35.
        specific: Only for exactly this architecture (the "a" of sm_90a).
        size: Bytes in the file, without the header.
        is_stub: SASS without a kernel. Linkers put an empty cubin of about 1.4 kB per architecture into every
            library, so an architecture seen only in stubs is no promise kept. A cubin that is not compressed is a
            stub if no section name in it starts with `.text.` (where cubins keep kernels) or it is no cubin at
            all; a compressed one is a stub if it unpacks to 2 KiB or less, which no kernel fits in.
    """

    kind: Literal["ptx", "sass"]
    sm: int
    specific: bool
    compressed: bool
    size: int
    is_stub: bool


@dataclass(frozen=True)
class Container:
    """One fat binary: the same kernels for each of its architectures. `offset` counts from the section's start."""

    offset: int
    entries: tuple[FatEntry, ...]

    @property
    def sass(self) -> frozenset[int]:
        return frozenset(entry.sm for entry in self.entries if entry.kind == "sass" and not entry.is_stub)

    @property
    def ptx(self) -> frozenset[int]:
        """Architectures with PTX; none beside stubs only (source files without kernels give such containers)."""
        stubs = [entry.is_stub for entry in self.entries if entry.kind == "sass"]
        if stubs and all(stubs):
            return frozenset()
        return frozenset(entry.sm for entry in self.entries if entry.kind == "ptx" and not entry.is_stub)


def read_fatbins(data: Buffer, start: int, end: int) -> list[Container]:
    """The containers between two offsets of a file, which is where its `.nv_fatbin` section lies.

    Raises:
        VerificationFailedError: The bytes are not containers back to back.
    """
    containers = []
    budget = _MAX_ENTRIES
    position = start
    while (position := _skip_padding(data, position, end)) < end:
        if position + _CONTAINER.size > end:
            raise _damaged(position - start, "cut off")
        magic, version, header, length = _CONTAINER.unpack_from(data, position)
        if magic != _MAGIC or version != 1 or header < _CONTAINER.size:
            raise _damaged(position - start, "no container begins here")
        first = position + header
        if first + length > end:
            raise _damaged(position - start, "a container reaches beyond the section")
        budget -= 1
        entries = []
        for entry in _entries(data, first, first + length, start):
            entries.append(entry)
            budget -= 1
            if budget < 0:
                break
        if budget < 0:
            raise _damaged(position - start, f"more than {_MAX_ENTRIES} entries and containers")
        containers.append(Container(position - start, tuple(entries)))
        position = first + length
    return containers


def _entries(data: Buffer, position: int, end: int, start: int) -> Iterator[FatEntry]:
    while position < end:
        if position + _ENTRY.size > end:
            raise _damaged(position - start, "an entry is cut off")
        kind, _, header, length, packed, _, _, _, sm, _, _, flags = _ENTRY.unpack_from(data, position)
        body = position + header
        if header < _ENTRY.size or body + length > end or packed > length:
            raise _damaged(position - start, "an entry reaches beyond its container")
        if kind in _KINDS:
            compressed = bool(flags & _FLAGS_COMPRESSED)
            unpacked = 0
            if compressed and header >= 64:
                unpacked = int.from_bytes(data[position + 56 : position + 64], "little")
            stub = (
                length == 0
                or (compressed and kind == 2 and unpacked <= _STUB_BYTES)
                or (not compressed and kind == 2 and not _has_kernel(data, body, body + length))
            )
            size = packed if compressed else length
            yield FatEntry(_KINDS[kind], sm, bool(flags & _FLAG_SPECIFIC), compressed, size, stub)
        position = body + length


def _has_kernel(data: Buffer, start: int, end: int) -> bool:
    head = data[start : start + 20]
    is_cubin = head[:4] == ELF_MAGIC and head[18:20] == _EM_CUDA.to_bytes(2, "little")
    return is_cubin and data.find(b"\0.text.", start, end) >= 0


def _skip_padding(data: Buffer, position: int, end: int) -> int:
    """Containers are aligned with zeros: the offset of the next byte that is not zero."""
    while position < end:
        block = data[position : min(position + 4096, end)]
        rest = block.lstrip(b"\0")
        if rest:
            return position + len(block) - len(rest)
        position += len(block)
    return end


def _damaged(offset: int, what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged fat binary at offset {offset} of {FATBIN_SECTION}: {what}")
