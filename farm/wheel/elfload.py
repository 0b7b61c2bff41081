"""Would the loader map this library? What glibc checks before it looks for names.

Sources: glibc, elf/dl-load.c (`open_verify`, `_dl_map_object_from_fd`), elf/dl-map-segments.h, elf/dl-version.c and
sysdeps/x86/dl-prop.h; System V gABI chapters 4 and 5; x86-64 psABI, "Program
Property". What is refused here was loaded by no loader that was tried (tests/differential).
"""

import struct

from farm.wheel.archive import View
from farm.wheel.elf import Elf
from farm.wheel.elftables import astray

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE, _PT_GNU_PROPERTY = 1, 2, 4, 0x6474E553
_PROGRAM = 56  # bytes of a program header
_NT_GNU_PROPERTY = 5
_X86_ISA_1_NEEDED = 0xC0008002
_CPU_LEVELS = ((8, "v4"), (4, "v3"), (2, "v2"))
_MAX_NOTES = 64 << 10  # bytes
_OSABI_NONE, _OSABI_GNU = 0, 3
_MAX_GNU_ABI = 3  # LIBC_ABI_MAX - 1 of glibc 2.36
# Tables that the loader reads: DT_HASH, STRTAB, SYMTAB, RELA, JMPREL, INIT_ARRAY, GNU_HASH, VERSYM, VERNEED.
_TABLES = (4, 5, 6, 7, 23, 25, 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFE)
_DT_FLAGS_1, _DF_1_NOOPEN, _DF_1_NODEFLIB, _DF_1_PIE = 0x6FFFFFFB, 0x40, 0x800, 0x08000000
# Relocations: tags of a table and of its length in bytes, and the words of an entry; None: DT_PLTREL says which kind.
_RELOCATIONS = ((7, 8, 3), (17, 18, 2), (23, 2, None))
_DT_RELA, _DT_PLTREL, _DT_RELR = 7, 20, 36
_DT_ANDROID = (0x6000000F, 0x60000011, 0x6FFFE000)  # DT_ANDROID_REL, RELA and RELR of Android's <elf.h>
_RELR_VERSION = "GLIBC_ABI_DT_RELR"  # of libc.so.6, since glibc 2.36; older ones would pass such relocations over


def refusal(data: View, elf: Elf, *, tables: bool) -> str | None:
    """Why a loader of this library's machine refuses it, or dies of it; None: it maps it.

    `tables`: look into those that it follows, too, which lie all over the file.
    """
    head = data[:64]
    (version,) = struct.unpack_from("<I" if elf.little else ">I", head, 20)
    start, size, count = _table(head, elf)
    if any(head[9:16]):
        return "its ELF header has bytes where there must be none"
    if head[6] != 1 or version != 1:
        return "its ELF version is not 1"
    if head[7] not in (_OSABI_NONE, _OSABI_GNU) or head[8] > (_MAX_GNU_ABI if head[7] == _OSABI_GNU else 0):
        return f"it is for another system (OS ABI {head[7]}, version {head[8]})"
    if elf.kind != "shared":
        return "it is a program, not a library" if elf.kind == "executable" else "it is neither a library nor a program"
    if count and size != (56 if elf.bits == 64 else 32):
        return f"its program headers have {size} bytes each"
    headers = [data[start + size * index : start + size * (index + 1)] for index in range(count)]
    if any(len(raw) != size for raw in headers):
        return "its program headers are cut off"
    return _unmapped(data, elf, headers) or (astray(data, elf, headers) if tables else None)


def _table(head: bytes, elf: Elf) -> tuple[int, int, int]:
    """Where the program headers begin, the bytes of one, and how many there are."""
    order, wide = "<" if elf.little else ">", elf.bits == 64
    # e_phoff to e_phnum of the ELF header; what lies between them is not needed.
    start, _, _, _, size, count = struct.unpack_from(
        f"{order}QQIHHH" if wide else f"{order}IIIHHH", head, 32 if wide else 28
    )
    return start, size, count


def cpu_level(data: View, elf: Elf) -> str | None:
    """`v2`, `v3` or `v4` where the linker marked the library so (`-z x86-64-v3`): the loader refuses lesser CPUs.

    That is GNU_PROPERTY_X86_ISA_1_NEEDED in the note that PT_GNU_PROPERTY or PT_NOTE leads to.
    """
    if (elf.machine, elf.bits) != ("x86_64", 64):
        return None
    start, size, count = _table(data[:64], elf)
    bits = 0
    for at in range(start, start + size * count if size == _PROGRAM else start, _PROGRAM):
        kind, _, offset, _, _, stored = struct.unpack("<IIQQQQ", data[at : at + 40])
        if kind in (_PT_NOTE, _PT_GNU_PROPERTY) and stored <= _MAX_NOTES:
            bits |= _needed_level(data[offset : offset + stored])
    return next((name for bit, name in _CPU_LEVELS if bits & bit), None)


def writes_code(data: View, elf: Elf) -> bool:
    """Whether a relocation changes what cannot be written; for files that say so (DT_TEXTREL).

    Linkers for RISC-V say it of files where none does any more: relaxing leaves R_RISCV_NONE (0) behind.
    """
    tags = dict(elf.dynamic)
    order, width, kind_of = ("<" if elf.little else ">"), elf.bits // 8, (1 << 32) - 1 if elf.bits == 64 else 0xFF
    fixed = [(part.address, part.address + part.size) for part in elf.segments if not part.is_writable]
    for tag, length, words in _RELOCATIONS:
        count = words or (3 if tags.get(_DT_PLTREL) == _DT_RELA else 2)
        if not tags.get(tag) or not tags.get(length):
            continue
        at = elf.file_offset(tags[tag])
        raw = data[at : at + tags[length]]
        form = struct.Struct(order + ("Q" if width == 8 else "I") * count)
        for place, info, *_ in form.iter_unpack(raw[: len(raw) - len(raw) % form.size]):
            if info & kind_of and any(low <= place < high for low, high in fixed):
                return True
    return False


def _needed_level(notes: bytes) -> int:
    at, found = 0, 0
    while at + 16 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        if kind == _NT_GNU_PROPERTY and notes[at + 12 : at + 12 + name_size] == b"GNU\0":
            found |= _property(notes[at + 16 : at + 16 + size])
        # Property notes are padded to 8 bytes in 64-bit files, all others to 4.
        step = 4 if kind != _NT_GNU_PROPERTY else 8
        at += 12 + -(-name_size // 4) * 4 + -(-size // step) * step
    return found


def _property(properties: bytes) -> int:
    at = 0
    while at + 12 <= len(properties):
        kind, size, value = struct.unpack_from("<III", properties, at)
        if kind == _X86_ISA_1_NEEDED and size == 4:
            return int(value)
        at += 8 + -(-size // 8) * 8
    return 0


def _unmapped(data: View, elf: Elf, headers: list[bytes]) -> str | None:
    layout = ("<" if elf.little else ">") + ("IIQQQQQQ" if elf.bits == 64 else "IIIIIIII")
    spans = []
    dynamic = False
    for raw in headers:
        fields = struct.unpack(layout, raw)
        # The flags stand second in a 64-bit header, last but one in a 32-bit one.
        if elf.bits == 64:
            kind, _, offset, address, _, stored, wanted, alignment = fields
        else:
            kind, offset, address, _, stored, wanted, _, alignment = fields
        dynamic = dynamic or (kind == _PT_DYNAMIC and stored > 0)
        if kind != _PT_LOAD:
            continue
        if stored > wanted or offset + stored > len(data):
            return "a segment reaches beyond the end of the file"
        # A segment is mapped at multiples of its alignment, so file offset and address must agree modulo that.
        if alignment > 1 and (address - offset) % alignment:
            return "a segment's place in the file does not fit its address"
        spans.append((address, address + wanted))
    if not spans or not dynamic:
        return "nothing of it is loaded" if not spans else "it has no dynamic section"
    of_glibc = elf.versions.get("libc.so.6")
    for tag, value in elf.dynamic:
        if tag == _DT_RELR and of_glibc and _RELR_VERSION not in of_glibc:
            return f"its relocations are packed (DT_RELR), and it does not require {_RELR_VERSION}"
        if tag in _DT_ANDROID and of_glibc:
            return "its relocations are packed for Android, and no other loader unpacks them"
        if tag in _TABLES and value and not any(low <= value < high for low, high in spans):
            return "a table lies outside what is loaded"
        if tag == _DT_FLAGS_1 and value & _DF_1_PIE:
            return "it is a program, not a library"
        # What a program's own libraries may be: Python opens all of a wheel's, and what they need in turn.
        if tag == _DT_FLAGS_1 and value & _DF_1_NOOPEN:
            return "no program may open it while it runs (DF_1_NOOPEN)"
        if tag == _DT_FLAGS_1 and value & _DF_1_NODEFLIB and elf.needed:
            return "it keeps the loader from looking in the system's folders (DF_1_NODEFLIB)"
    return None
