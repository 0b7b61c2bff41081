"""Would the loader map this library? What glibc checks before it looks for names.

Sources: glibc, elf/dl-load.c (`open_verify`, `_dl_map_object_from_fd`) and elf/dl-map-segments.h; System V gABI
chapters 4 and 5. What is refused here was loaded by no loader that was tried (tests/differential).
"""

import struct

from farm.wheel.archive import View
from farm.wheel.elf import Elf

_PT_LOAD, _PT_DYNAMIC = 1, 2
_OSABI_NONE, _OSABI_GNU = 0, 3
_MAX_GNU_ABI = 3  # LIBC_ABI_MAX - 1 of glibc 2.36
# Tables that the loader reads: DT_HASH, STRTAB, SYMTAB, RELA, JMPREL, INIT_ARRAY, GNU_HASH, VERSYM, VERNEED.
_TABLES = (4, 5, 6, 7, 23, 25, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE)
_DT_FLAGS_1, _DF_1_PIE = 0x6FFFFFFB, 0x08000000


def refusal(data: View, elf: Elf) -> str | None:
    """Why a loader of this library's machine refuses it, or dies of it; None: it maps it."""
    head = data[:64]
    order, wide = "<" if elf.little else ">", elf.bits == 64
    (version,) = struct.unpack_from(f"{order}I", head, 20)
    start, _, _, _, size, count = struct.unpack_from(
        f"{order}QQIHHH" if wide else f"{order}IIIHHH", head, 32 if wide else 28
    )
    if head[6] != 1 or version != 1:
        return "its ELF version is not 1"
    if head[7] not in (_OSABI_NONE, _OSABI_GNU) or head[8] > (_MAX_GNU_ABI if head[7] == _OSABI_GNU else 0):
        return f"it is for another system (OS ABI {head[7]}, version {head[8]})"
    if elf.kind != "shared":
        return "it is a program, not a library" if elf.kind == "executable" else "it is neither a library nor a program"
    if count and size != (56 if wide else 32):
        return f"its program headers have {size} bytes each"
    return _unmapped(data, elf, [data[start + size * index : start + size * (index + 1)] for index in range(count)])


def _unmapped(data: View, elf: Elf, headers: list[bytes]) -> str | None:
    layout = ("<" if elf.little else ">") + ("IIQQQQQQ" if elf.bits == 64 else "IIIIIIII")
    spans = []
    dynamic = False
    for raw in headers:
        fields = struct.unpack(layout, raw)
        if elf.bits == 64:
            kind, _, offset, address, _, stored, wanted, alignment = fields
        else:
            kind, offset, address, _, stored, wanted, _, alignment = fields
        dynamic = dynamic or kind == _PT_DYNAMIC
        if kind != _PT_LOAD:
            continue
        if stored > wanted or offset + stored > len(data):
            return "a segment reaches beyond the end of the file"
        if alignment > 1 and (address - offset) % alignment:
            return "a segment's place in the file does not fit its address"
        spans.append((address, address + wanted))
    if not spans or not dynamic:
        return "nothing of it is loaded" if not spans else "it has no dynamic section"
    for tag, value in elf.dynamic:
        if tag in _TABLES and value and not any(low <= value < high for low, high in spans):
            return "a table lies outside what is loaded"
        if tag == _DT_FLAGS_1 and value & _DF_1_PIE:
            return "it is a program, not a library"
    return None
