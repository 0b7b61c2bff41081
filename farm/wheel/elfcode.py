"""Where the machine code of an ELF file is, and which functions it holds.

Source: System V gABI chapter 4, sections and symbol tables.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from farm.wheel.archive import Buffer
from farm.wheel.elf import SHF_EXECINSTR, Elf, Section, damaged, section_ranges

_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_MAX_SYMBOLS = 2_000_000

# Sections that are data wherever they lie: linkers of old put them into the segment of the code.
_DATA_NAMES = (
    ".rodata",
    ".eh_frame",
    ".gcc_except_table",
    ".note",
    ".interp",
    ".lrodata",
    ".gnu.",
    ".dyn",
    ".nv",
    "__nv_",
)
_PROGBITS = 1


def code_sections(data: Buffer, elf: Elf) -> list[tuple[Section, int, int]]:
    """Executable segments, with the (offset, end) of their bytes.

    The loader maps segments and never looks at sections, whose flags and names may say anything. They serve to tell
    data between the code, and are believed only where they name it. Without a section table all of an executable
    segment counts as code.

    Raises:
        VerificationFailedError: A section that is called code is outside the file.
    """
    found = section_ranges(data, (part for part in elf.sections if part.size and _may_run(part, elf)))
    for segment in elf.segments if not elf.sections and elf.is_loadable else ():
        if segment.is_code and segment.size:
            start = segment.offset + (_header_size(data, elf) if segment.offset == 0 else 0)
            skipped = start - segment.offset
            whole = Section("", _PROGBITS, SHF_EXECINSTR, segment.address + skipped, start, segment.size - skipped, 0)
            found += section_ranges(data, [whole])
    return found


def _header_size(data: Buffer, elf: Elf) -> int:
    """Bytes of the ELF header and the program headers, which a segment often begins with."""
    return 64 + 56 * int.from_bytes(data[56:58], "little") if elf.bits == 64 else 52


def _may_run(section: Section, elf: Elf) -> bool:
    if section.is_code:
        return True
    if section.kind != _PROGBITS or section.name.startswith(_DATA_NAMES):
        return False
    # By the place in the file: debugging information says address 0, where the code's segment begins in old layouts.
    return any(
        segment.is_code and segment.offset <= section.offset < segment.offset + segment.size for segment in elf.segments
    )


@dataclass(frozen=True)
class Functions:
    """Defined functions by address: `names` are file offsets for `symbol_name`, in the same order."""

    addresses: Sequence[int]
    names: Sequence[int]


def function_symbols(data: Buffer, elf: Elf) -> Functions:
    """The defined functions, each address once, from `.symtab`, or from `.dynsym` in a stripped file."""
    tables = {section.kind: section for section in elf.sections if section.kind in (_SHT_SYMTAB, _SHT_DYNSYM)}
    table = tables.get(_SHT_SYMTAB) or tables.get(_SHT_DYNSYM)
    if table is None or table.link >= len(elf.sections):
        return Functions((), ())
    [(_, start, end)] = section_ranges(data, [table])
    layout = struct.Struct(("<" if elf.little else ">") + ("IBBHQQ" if elf.bits == 64 else "IIIBBH"))
    count = (end - start) // layout.size
    if count > _MAX_SYMBOLS:
        raise damaged(f"{count} symbols; more than {_MAX_SYMBOLS} are refused")
    names = elf.sections[table.link].offset
    # One integer a symbol: a million tuples would take ten times the memory.
    found: list[int] = []
    for at in range(start, start + count * layout.size, layout.size):
        fields = layout.unpack_from(data, at)
        name, info, section, address = (
            (fields[0], fields[1], fields[3], fields[4])
            if elf.bits == 64
            else (fields[0], fields[3], fields[5], fields[1])
        )
        if info & 15 in _FUNCTIONS and section:
            # The name's offset has 32 bits in both classes, so one integer orders by address and keeps the name.
            found.append(address << 32 | name)
    found.sort()
    addresses, offsets = array("Q"), array("Q")
    for each in found:
        # Aliases share an address (C1 and C2 constructors, weak names): the first name serves.
        if not addresses or addresses[-1] != each >> 32:
            addresses.append(each >> 32)
            offsets.append(min(names + (each & 0xFFFFFFFF), len(data)))
    return Functions(addresses, offsets)
