import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from elftools.elf import elffile
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel.elf import Elf, function_symbols, read_elf, section_ranges, symbol_name
from farm.wheel.elf_symbols import _versions
from tests.examples import examples


@pytest.fixture(scope="session")
def library(make_elf):
    return make_elf(
        needed=["libc.so.6", "libcudart.so.11.0"],
        soname="libx.so.1",
        runpath="$ORIGIN:$ORIGIN/../lib",
        versions={"libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.17"], "libm.so.6": ["GLIBC_2.29"]},
        text=b"\x90" * 32 + b"\xc3",
        symbols={"second": 16, "first": 0},
        fatbin=b"FAT",
    )


def test_facts_of_a_library_are_read(library):
    elf = read_elf(library)
    assert (elf.machine, elf.kind, elf.soname) == ("x86_64", "shared", "libx.so.1")
    assert elf.needed == ("libc.so.6", "libcudart.so.11.0")
    assert elf.search_path == ("$ORIGIN", "$ORIGIN/../lib")
    assert elf.versions == {
        "libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.17"),
        "libm.so.6": ("GLIBC_2.29",),
    }
    sections = {section.name: section for section in elf.sections}
    [(_, start, end)] = section_ranges(library, [sections[".nv_fatbin"]])
    assert library[start:end] == b"FAT"
    assert [name for name, section in sections.items() if section.is_code] == [".text"]
    symbols = function_symbols(library, elf)
    text = sections[".text"].address
    assert [address - text for address in symbols.addresses] == [0, 16]
    assert [symbol_name(library, name) for name in symbols.names] == ["first", "second"]


def test_runpath_hides_rpath(make_elf):
    """The loader ignores DT_RPATH where there is a DT_RUNPATH, even an empty one."""
    assert read_elf(make_elf(rpath="/old", runpath="$ORIGIN")).search_path == ("$ORIGIN",)
    assert read_elf(make_elf(rpath="/old", runpath="")).search_path == ()
    assert read_elf(make_elf(rpath="$ORIGIN/a")).search_path == ("$ORIGIN/a",)
    assert read_elf(make_elf()).search_path == ()


def test_names_that_would_move_a_cursor_are_escaped(make_elf):
    raw = make_elf(needed=["lib\x1b[2J.so"], symbols={"f\x07": 0})
    elf = read_elf(raw)
    assert elf.needed == (r"lib\x1b[2J.so",)
    assert [symbol_name(raw, name) for name in function_symbols(raw, elf).names] == [r"f\x07"]


def test_other_machines(make_elf):
    assert read_elf(make_elf(machine=183)).machine == "aarch64"
    assert read_elf(make_elf(machine=190, kind=2)).machine == "cuda"
    assert read_elf(make_elf(machine=4711)).machine == "em4711"


def test_of_other_widths_and_byte_orders_the_machine_is_read_alone():
    raw = b"\x7fELF\x01\x02\x01" + b"\0" * 9 + struct.pack(">HH", 3, 21)
    assert read_elf(raw) == Elf("ppc64, 32 bits, big-endian", "shared")


def test_agrees_with_pyelftools_on_this_python():
    """A real file that is at hand wherever tests run on Linux: an extension module or the
    interpreter itself.
    """
    if sys.platform != "linux":
        pytest.skip("the interpreter is not an ELF file here")
    with Path(sys.executable).open("rb") as file:
        theirs = elffile.ELFFile(file)
        dynamic = theirs.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        names = [section.name for section in theirs.iter_sections()]
        versions = {
            need.name: tuple(entry.name for entry in entries)
            for need, entries in theirs.get_section_by_name(".gnu.version_r").iter_versions()
        }
        file.seek(0)
        elf = read_elf(file.read())
    assert list(elf.needed) == needed
    assert [section.name for section in elf.sections] == names
    assert elf.versions == versions


def test_sections_that_overlap_a_thousand_times_are_refused(library):
    code = next(section for section in read_elf(library).sections if section.is_code)
    with pytest.raises(VerificationFailedError, match="overlap"):
        section_ranges(library, [code] * 1000)


def read_everything(raw):
    elf = read_elf(raw)
    section_ranges(raw, [section for section in elf.sections if section.is_code])
    for name in function_symbols(raw, elf).names:
        symbol_name(raw, name)


@examples(500)
@given(data=st.data())
def test_mutated_libraries_give_one_error_only(library, data):
    raw = bytearray(library)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 8))
        value = data.draw(
            st.sampled_from([0, 1, 0xFF, 0xFFFFFFFF, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
        )
        struct.pack_into("<Q", raw, at, value) if data.draw(st.booleans()) else raw.__setitem__(
            at, value & 255
        )
    with suppress(VerificationFailedError):  # any other exception fails the test
        read_everything(bytes(raw))


def test_versions_of_symbols_may_end_with_the_file():
    elf = SimpleNamespace(file_offset=lambda address: address - 0x1000)
    tags = {0x6FFFFFF0: 0x1002}  # DT_VERSYM
    assert _versions(b"..\1\0\2\0", elf, tags, 2) == (1, 2)
    with pytest.raises(VerificationFailedError, match="beyond the end"):
        _versions(b"..\1\0\2\0", elf, tags, 3)


@pytest.mark.parametrize("field", [54, 58])  # e_phentsize, e_shentsize
def test_headers_do_not_overlap(make_elf, field):
    """A small file could ask for tens of thousands of them, which took half a second."""
    raw = bytearray(make_elf())
    struct.pack_into("<H", raw, field, 1)
    with pytest.raises(VerificationFailedError, match="headers have 1 bytes each"):
        read_elf(bytes(raw))
