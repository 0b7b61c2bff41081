"""Is there a kernel in a cubin? Compressed ones are unpacked: LZ4 (CUDA up to 12.x), zstd (12.x and newer).

A cubin is an ELF file for machine 190. Its kernels are function symbols whose `st_other` says "entry"; device
functions that other kernels call are in `.text.` sections too, which relocatable code may have alone. Linkers put a
cubin without either into every library. Read off files of CUDA 10.2 to 13.0.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache

from farm.wheel.magic import ELF_MAGIC

_EM_CUDA = 190
_NEW_ABI = 8
_SHT_SYMTAB, _COMPAT = 2, 0x70000086
_ACCELERATORS_V1, _ACCELERATORS = 0x800, 0x8
_ONE_GPU = bytes((2, 9, 1))  # a byte as value, attribute 9: 1
_FUNCTION = 2
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAX_SECTIONS = 65_000
# A stub has 0.6 to 1.7 kB. What is larger is not unpacked: a thousand large cubins would take minutes, and what a
# linker adds is never that large.
LOOKED_INTO = 16 << 10


def architecture(cubin: bytes) -> int | None:
    """35 for sm_35, by ELF's flags: their lowest byte, or with ABI 8 (CUDA 13) the second. None: they do not say.

    `cubin`: at least its first 52 bytes.
    """
    if cubin[:4] != ELF_MAGIC or len(cubin) < 52 or int.from_bytes(cubin[18:20], "little") != _EM_CUDA:
        return None
    return cubin[49 if cubin[8] >= _NEW_ABI else 48] or None


def is_specific(cubin: bytes) -> bool:
    """True if it is for one GPU alone: sm_90a, not sm_90. Of code in a fat binary, that one says it.

    By ELF's flags (LLVM: EF_CUDA_ACCELERATORS_V1 and, for ABI 8, EF_CUDA_ACCELERATORS); CUDA 13 has it in the first
    attribute of `.nv.compat` (ISA_CLASS) instead.
    """
    bit = _ACCELERATORS if cubin[8] >= _NEW_ABI else _ACCELERATORS_V1
    return bool(int.from_bytes(cubin[48:52], "little") & bit) or any(
        kind == _COMPAT and cubin[at : at + 3] == _ONE_GPU for kind, at, _ in _sections(cubin)
    )


def has_kernel(cubin: bytes) -> bool:
    """True if the symbol table names a function; False for what is not a cubin."""
    if cubin[:4] != ELF_MAGIC or len(cubin) < 64 or int.from_bytes(cubin[18:20], "little") != _EM_CUDA:
        return False
    for kind, offset, length in _sections(cubin):
        if kind == _SHT_SYMTAB:
            whole = cubin[offset : offset + length - length % _SYMBOL.size]
            return any(
                info & 15 == _FUNCTION and section and extent
                for _, info, _, section, _, extent in _SYMBOL.iter_unpack(whole)
            )
    return False


def _sections(cubin: bytes) -> Iterator[tuple[int, int, int]]:
    """(type, offset, length) of each section that is in the file, up to the first header that does not."""
    # e_shoff, e_shentsize and e_shnum of a 64-bit ELF header, which a cubin is.
    table, size, count = (
        int.from_bytes(cubin[40:48], "little"),
        int.from_bytes(cubin[58:60], "little"),
        int.from_bytes(cubin[60:62], "little"),
    )
    for index in range(min(count, _MAX_SECTIONS) if size >= _SECTION.size else 0):
        at = table + index * size
        if at + _SECTION.size > len(cubin):
            return
        _, kind, _, _, offset, length, *_ = _SECTION.unpack_from(cubin, at)
        if offset + length <= len(cubin):
            yield kind, offset, length


@lru_cache(maxsize=512)  # linkers put the same empty cubin into every library, a thousand times
def unpack(data: bytes, size: int, *, zstd: bool) -> bytes | None:
    """The `size` bytes that were compressed; None if these are no such data."""
    return _unpack_zstd(data, size) if zstd else _unpack_lz4(data, size)


def _unpack_zstd(data: bytes, size: int) -> bytes | None:
    import zstandard  # noqa: PLC0415 (seldom needed)

    try:
        # A frame may declare any length, which the decompressor would ask memory for.
        if zstandard.frame_content_size(data) > size:
            return None
        return zstandard.ZstdDecompressor(max_window_size=1 << 23).decompress(data, max_output_size=size)
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
            out += repeated[:match] if match <= distance else (repeated * (match // distance + 1))[:match]
    except IndexError:
        return None
    return bytes(out) if len(out) == size else None


def _length(data: bytes, at: int, start: int) -> tuple[int, int]:
    """A length whose first four bits are `start`: 15 is continued in bytes, of which 255 is continued again."""
    if start == 15:
        while True:
            start += data[at]
            at += 1
            if data[at - 1] != 255:
                break
    return start, at
