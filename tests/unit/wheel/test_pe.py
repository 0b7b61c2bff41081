import struct
from contextlib import suppress
from pathlib import Path

import distlib
import pefile
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel.library import read_library
from farm.wheel.pe import added_folders, owner, read_pe, windows_dlls
from tests.examples import examples


@pytest.fixture(scope="session")
def library(make_pe):
    return make_pe(
        needed=["KERNEL32.dll", "cudart64_110.dll"],
        delayed=["nvcuda.dll"],
        exports=["first", "second", "third"],
        text=b"\x90" * 600 + b"\xc3",
        fatbin=b"FAT",
    )


def test_facts_of_a_library_are_read(library):
    pe = read_pe(library)
    assert (pe.machine, pe.is_dll, pe.linker) == ("amd64", True, "14.29")
    assert (pe.needed, pe.delay_needed) == (("KERNEL32.dll", "cudart64_110.dll"), ("nvcuda.dll",))
    sections = {section.name: section for section in pe.sections}
    assert list(sections) == [".text", ".rdata", ".nv_fatb"]
    fatbin, text = sections[".nv_fatb"], sections[".text"]
    assert library[fatbin.offset : fatbin.end] == b"FAT"
    assert library[text.offset : text.end] == b"\x90" * 600 + b"\xc3"
    assert [section.name for section in pe.sections if section.is_code] == [".text"]


def test_other_kinds(make_pe):
    pe = read_pe(
        make_pe(machine=0x14C, needed=["a.dll"], delayed=["b.dll"], dll=False, linker=(9, 0))
    )
    assert (pe.machine, pe.is_dll, pe.linker, pe.needed, pe.delay_needed) == (
        "win32",
        False,
        "9.00",
        ("a.dll",),
        ("b.dll",),
    )
    assert read_pe(make_pe(machine=0xAA64)).machine == "arm64"
    assert read_pe(make_pe(machine=0x1234)).machine == "pe0x1234"
    assert read_pe(make_pe()).needed == ()


def test_delay_loads_of_old_linkers_hold_absolute_addresses(make_pe):
    assert read_pe(make_pe(delayed=["old.dll"], absolute=True)).delay_needed == ("old.dll",)


def test_names_that_would_move_a_cursor_are_escaped(make_pe):
    assert read_pe(make_pe(needed=["a\x1b[2J.dll"])).needed == (r"a\x1b[2J.dll",)


def test_fat_binaries(make_pe, make_entry, make_container):
    fatbin = make_container(make_entry("sass", 35), make_entry("ptx", 50))
    found = read_library("torch/lib/torch_cuda.dll", "", make_pe(fatbin=fatbin))
    assert [(group.sass, group.ptx, group.containers) for group in found.fatbins] == [
        ((35,), (50,), 1)
    ]
    assert (found.format, found.machine, found.kind, found.linker) == (
        "pe",
        "amd64",
        "shared",
        "14.29",
    )


@pytest.mark.parametrize("encoding", ["ascii", "utf-16-le"])
def test_what_cudnn_loads_by_name(make_pe, encoding):
    text = "\0Could not locate zlibwapi.dll\0cudnn_ops_infer64_8.dll\0other.dll\0cudnn64_8.dll\0".encode(
        encoding
    )
    raw = make_pe(data=text)
    named = read_library("torch/lib/cudnn64_8.dll", "", raw).named
    assert named == ("cudnn_ops_infer64_8.dll", "zlibwapi.dll")
    assert read_library("torch/lib/torch_cpu.dll", "", raw).named == ()


def test_known_dlls_have_their_owner():
    owned = {
        "kernel32.dll": "system",
        "WS2_32.dll": "system",
        "api-ms-win-crt-heap-l1-1-0.dll": "system",
        "ucrtbase.dll": "system",
        "D3D12.dll": "system",  # PySide6 6.12 needs it; Windows 7 has none
        "nvcuda.dll": "driver",
        "ze_loader.dll": "driver",
        "NVML.dll": "driver",
        "python311.dll": "python",
        "python3.dll": "python",
        "VCRUNTIME140_1.dll": "python",
        "MSVCP140.dll": "vc runtime",
        "msvcp140d.dll": None,
        "libiomp5md.dll": None,
        "cudart64_110.dll": None,
        "zlibwapi.dll": None,
    }
    assert {name: owner(name) for name in owned} == owned
    assert len(windows_dlls()) > 1000
    assert "torch/lib" in added_folders()


def read_everything(raw):
    read_pe(raw)
    read_library("torch/lib/cudnn64_8.dll", "", raw)


@examples(500)
@given(data=st.data())
def test_mutated_libraries_give_one_error_only(library, data):
    raw = bytearray(library)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(raw) - 4))
        value = data.draw(
            st.sampled_from([0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF]) | st.integers(0, 2**32 - 1)
        )
        struct.pack_into("<I", raw, at, value) if data.draw(st.booleans()) else raw.__setitem__(
            at, value & 255
        )
    with suppress(VerificationFailedError):  # any other exception fails the test
        read_everything(bytes(raw))


def agrees(raw):
    theirs = pefile.PE(data=raw, fast_load=True)
    theirs.parse_data_directories([1, 13], import_dllnames_only=True)
    pe = read_pe(raw)
    imports = [entry.dll.decode() for entry in getattr(theirs, "DIRECTORY_ENTRY_IMPORT", [])]
    delayed = [entry.dll.decode() for entry in getattr(theirs, "DIRECTORY_ENTRY_DELAY_IMPORT", [])]
    assert (list(pe.needed), list(pe.delay_needed)) == (list(dict.fromkeys(imports)), delayed)
    assert pe.is_dll == theirs.is_dll()
    names = [section.Name.rstrip(b"\0").decode() for section in theirs.sections]
    assert [section.name for section in pe.sections] == names


def test_agrees_with_pefile(library):
    agrees(library)


REAL = sorted(Path(distlib.__file__).parent.glob("*.exe"))


def test_agrees_with_pefile_on_the_launchers_that_distlib_brings():
    assert len(REAL) >= 2
    for path in REAL:
        agrees(path.read_bytes())
