"""What Windows' loader refuses before it looks for functions. Wine was asked about each of these changes."""

import struct

import pytest

from farm.wheel.pe import read_pe
from farm.wheel.peload import refusal
from tests.differential.libraries import pe_at, pe_sections, put

BASE = 0x180000000
TEXT, DATA, RELOCATIONS = 0x1000, 0x2000, 0x3000
CODE, WRITTEN, READ = 0x60000020, 0xC0000040, 0x42000040
# What lies where in .data: thread-local variables, callbacks, load configuration, resources, an import.
TLS, CALLBACKS, CONFIG, RESOURCES, IMPORT = 0, 64, 96, 256, 288


def library():
    """A DLL of 64 bits that has one of everything; each address in it is listed in .reloc."""
    data = bytearray(512)
    struct.pack_into("<4QII", data, TLS, *(BASE + DATA + at for at in (48, 52, 52, CALLBACKS)), 0, 0)
    struct.pack_into("<QQ", data, CALLBACKS, BASE + TEXT + 16, 0)
    struct.pack_into("<I84xQ", data, CONFIG, 96, BASE + DATA + 56)
    struct.pack_into("<IIHHHH", data, RESOURCES, 0, 0, 0, 0, 0, 0)
    struct.pack_into("<5I", data, IMPORT, DATA + 336, 0, 0, DATA + 400, DATA + 368)
    struct.pack_into("<QQ", data, 336, 1 << 63 | 1, 0)
    struct.pack_into("<QQ", data, 368, 1 << 63 | 1, 0)
    data[400:406] = b"a.dll\0"
    places = [TLS, TLS + 8, TLS + 16, TLS + 24, CALLBACKS, CONFIG + 88]
    relocations = struct.pack(f"<II{len(places)}H", DATA, 8 + 2 * len(places), *(10 << 12 | at for at in places))
    directories = [(0, 0)] * 16
    directories[1], directories[2] = (DATA + IMPORT, 40), (DATA + RESOURCES, 16)
    directories[5], directories[9] = (RELOCATIONS, len(relocations)), (DATA + TLS, 40)
    directories[10] = (DATA + CONFIG, 96)
    parts = [
        (b".text", TEXT, b"\xc3" * 512, CODE),
        (b".data", DATA, bytes(data), WRITTEN),
        (b".reloc", RELOCATIONS, relocations, READ),
    ]
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 29, 0, 0, 0, TEXT, 0)
    optional += struct.pack("<QIIHHHHHHIII", BASE, 4096, 512, 6, 0, 0, 0, 6, 0, 0, 0x4000, 1024)
    optional = optional.ljust(108, b"\0") + struct.pack("<I", 16)
    optional += b"".join(struct.pack("<II", *place) for place in directories)
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40) + b"PE\0\0"
    head += struct.pack("<HHIIIHH", 0x8664, len(parts), 0, 0, 0, len(optional), 0x2022) + optional
    body = b""
    for name, address, content, flags in parts:
        stored = content.ljust(-(-len(content) // 512) * 512, b"\0")
        head += struct.pack(
            "<8sIIIIIIHHI", name, len(content), address, len(stored), 1024 + len(body), 0, 0, 0, 0, flags
        )
        body += stored
    return head.ljust(1024, b"\0") + body


def refused(data):
    return refusal(data, read_pe(data))


def test_a_good_one_is_taken():
    assert refused(library()) is None


IN_DATA, IN_RELOC = 1024 + 512, 1024 + 1024
OPTIONAL = 0x40 + 24
SECTIONS = pe_sections(library())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((pe_at(library()) + 18, "H", 0x22), "a program, not a library"),
        ((OPTIONAL + 24, "Q", BASE + 0x1000), "not a multiple of 64 KiB"),
        ((OPTIONAL + 32, "I", 0x3000), "not to pages"),
        ((OPTIONAL + 56, "I", 0x3000), "beyond the length that its header declares"),
        ((SECTIONS[2] + 12, "I", 0x3800), "is not where the one before it ends"),
        ((SECTIONS[2] + 12, "I", 0x4000), "is not where the one before it ends"),
        ((SECTIONS[0] + 8, "I", 0x1001), "is not where the one before it ends"),
        ((OPTIONAL + 16, "I", DATA), "entered outside its code"),
        ((SECTIONS[0] + 36, "I", READ), "entered outside its code"),
        ((SECTIONS[0] + 16, "I", 0), "entered outside its code"),
        ((OPTIONAL + 112 + 40, "II", 0, 0), "cannot be moved"),
        ((OPTIONAL + 112 + 44, "I", 4096), "reaches beyond its section"),
        ((IN_RELOC, "I", DATA + 8), "outside its sections"),
        ((IN_RELOC, "I", 0), "outside its sections"),
        ((IN_RELOC, "I", 0x80000000), "outside its sections"),
        ((IN_RELOC + 4, "I", 0), "table of relocations is damaged"),
        ((IN_RELOC + 4, "I", 7), "table of relocations is damaged"),
        ((IN_RELOC + 4, "I", 64), "table of relocations is damaged"),
        ((IN_RELOC + 10, "H", 0x9008), "a kind that the loader does not know"),
        ((IN_RELOC + 10, "H", 0x3008), "a kind that the loader does not know"),
        ((OPTIONAL + 112 + 72, "I", 0x7FFFFFFF), "outside its sections"),
        ((IN_DATA + TLS, "Q", BASE - 8), "variables lie outside it"),
        ((IN_DATA + TLS + 8, "Q", BASE), "variables lie outside it"),
        ((IN_DATA + TLS + 16, "Q", BASE + TEXT), "lies outside its data"),
        ((IN_DATA + CALLBACKS, "Q", BASE + DATA), "runs on loading lies outside its code"),
        ((IN_DATA + CONFIG + 88, "Q", BASE + TEXT), "security cookie lies outside"),
        ((SECTIONS[1] + 36, "I", READ), "outside its data"),
        ((IN_DATA + RESOURCES, "I", 1), "table of resources is damaged"),
        ((IN_DATA + RESOURCES + 12, "H", 200), "reaches beyond its section"),
        ((IN_DATA + IMPORT + 16, "I", 0x40), "outside its sections"),
        ((IN_DATA + IMPORT + 16, "I", DATA + 480), "outside its tables"),
    ],
)
def test_what_is_refused(change, said):
    at, layout, *values = change
    assert said in (refused(put(library(), at, layout, *values)) or "nothing")


def test_without_relocations_only_what_needs_none_is_taken(make_pe):
    """MinGW's linker writes no .reloc for a small library in which no address stands."""
    plain = make_pe()
    plain = put(plain, 0x40 + 24 + 56, "I", 0x4000)
    assert refused(plain) is None
    stripped = put(plain, pe_at(plain) + 18, "H", 0x2023)
    assert "cannot be moved" in (refused(stripped) or "nothing")
