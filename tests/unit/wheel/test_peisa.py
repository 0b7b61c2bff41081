"""CPU features of DLLs: all code by the function table, or what runs on loading."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel.isa.scan import scan_dll
from farm.wheel.pe import read_pe
from tests.examples import examples
from tests.unit.wheel.conftest import RET, VPADDD_YMM, call, text

BASE, TEXT, RDATA = 0x10000000, 0x1000, 0x2000


def lea(register, at, to):
    """`lea rdx/rcx, [rip+x]` at an offset of the text, of an offset of .rdata."""
    return {"rdx": b"\x48\x8d\x15", "rcx": b"\x48\x8d\x0d"}[register] + struct.pack(
        "<i", RDATA + to - TEXT - at - 7
    )


def pointers(*offsets):
    return b"".join(
        struct.pack("<Q", BASE + TEXT + offset if offset is not None else 0) for offset in offsets
    )


def make(make_pe, code, *, data=b"", entry=None, functions=None, tls=None, export="kernel"):
    """A DLL. `functions`: (begin, end) in the text, put behind `data`; `tls`: offset in .rdata of
    the callbacks; `export`: the name of what begins the text.
    """
    directories = {}
    if functions is not None:
        directories[3] = (len(data), 12 * len(functions))
        data += b"".join(struct.pack("<III", TEXT + low, TEXT + high, 0) for low, high in functions)
    if tls is not None:
        directories[9] = (len(data), 40)
        data += struct.pack("<QQQQQ", 0, 0, 0, BASE + RDATA + tls, 0)
    raw = bytearray(make_pe(text=code, data=data, exports=[export]))
    optional = 0x40 + 24
    if entry is not None:
        struct.pack_into("<I", raw, optional + 16, TEXT + entry)
    for index, (offset, size) in directories.items():
        struct.pack_into("<II", raw, optional + 112 + 8 * index, RDATA + offset, size)
    return bytes(raw)


@pytest.fixture
def scan(make_pe):
    def run(code, level="avx", *, on_load=True, **kwargs):
        raw = make(make_pe, code, **kwargs)
        found = scan_dll(raw, read_pe(raw), level, on_load=on_load)
        return {find.feature: find.count for find in found.result.beyond}, found

    return run


# What Microsoft's start-up code does: _initterm(first, last), both loaded relative to the code.
STARTUP = lea("rdx", 0, 16) + lea("rcx", 7, 0) + call(14, 32) + RET


def test_initialisers_between_two_addresses(scan):
    code = text(p0=STARTUP, p32=RET, p64=RET, p96=VPADDD_YMM + RET)
    found, seen = scan(code, data=pointers(None, 64, 96), entry=0)
    assert (found, seen.starts) == ({}, 2)  # the table ends at 16: the third pointer is not in it
    found, seen = scan(code, data=pointers(None, 96), entry=0)
    assert (found, seen.starts) == ({"AVX2": 1}, 2)
    assert scan(code, "avx2", data=pointers(None, 96), entry=0)[0] == {}


def test_the_table_is_found_behind_calls(scan):
    startup = lea("rdx", 128, 16) + lea("rcx", 135, 0) + RET
    code = text(p0=call(0, 32) + RET, p32=call(32, 128) + RET, p128=startup, p96=VPADDD_YMM + RET)
    assert scan(code, data=pointers(96, None), entry=0)[0] == {"AVX2": 1}


def test_other_data_are_no_table(scan):
    code = text(p0=STARTUP, p32=RET, p96=VPADDD_YMM + RET)
    for data in (pointers(96) + struct.pack("<Q", 7), pointers(96) + b"\1" * 8):
        found, seen = scan(code, data=data, entry=0)
        assert (found, seen.starts) == ({}, 1)


def test_the_list_of_mingw(scan):
    data = struct.pack("<Q", (1 << 64) - 1) + pointers(96, 64, None)
    code = text(p0=lea("rcx", 0, 0) + RET, p64=RET, p96=VPADDD_YMM + RET)
    found, seen = scan(code, data=data, entry=0)
    assert (found, seen.starts) == ({"AVX2": 1}, 3)


def test_entry_and_tls_callbacks(scan):
    assert scan(text(p0=VPADDD_YMM + RET), entry=0)[0] == {"AVX2": 1}
    assert scan(text(p0=RET, p64=VPADDD_YMM + RET), entry=0, data=pointers(64, None), tls=0)[0] == {
        "AVX2": 1
    }
    assert scan(text(p0=VPADDD_YMM + RET))[0] == {}  # no entry: nothing runs


def test_an_extension_module_runs_its_init_function(scan):
    code = text(p0=VPADDD_YMM + RET)
    assert scan(code)[0] == {}
    found, seen = scan(code, export="PyInit_m")
    assert (found, seen.starts) == ({"AVX2": 1}, 1)


@pytest.mark.parametrize("slots_at", [72, 88])  # with the lock of every object, and without
@pytest.mark.parametrize(("first", "expected"), [(2, {"AVX2": 1}), (0, {})])
def test_the_slots_of_a_module_run_on_import(scan, slots_at, first, expected):
    code = text(p0=lea("rcx", 0, 0) + RET, p96=VPADDD_YMM + RET)
    slots = struct.pack("<Q", first) + pointers(96) + bytes(16)
    data = bytes(slots_at) + struct.pack("<Q", BASE + RDATA + 128)
    assert scan(code, data=data.ljust(128, b"\0") + slots, export="PyInit_m")[0] == expected


def test_all_code_is_what_the_function_table_names(scan):
    """Bytes between functions (jump tables) are no code; without a table all is."""
    code = text(p0=RET, p64=VPADDD_YMM + RET, p128=VPADDD_YMM + RET)
    assert scan(code, on_load=False, functions=[(0, 1), (64, 69)])[0] == {"AVX2": 1}
    assert scan(code, on_load=False, functions=[(64, 69), (64, 69), (66, 69)])[0] == {"AVX2": 1}
    assert scan(code, on_load=False)[0] == {"AVX2": 2}
    assert scan(code, on_load=True, functions=[(0, 1), (64, 69)])[0] == {}


def test_leaf_functions_that_run_on_loading_are_seen_too(scan):
    code = text(p0=VPADDD_YMM + RET, p64=RET)
    assert scan(code, on_load=False, functions=[(64, 65)], entry=0)[0] == {"AVX2": 1}


def test_other_machines(make_pe):
    raw = make_pe(machine=0xAA64)
    assert "arm64" in scan_dll(raw, read_pe(raw), "avx", on_load=True).result.not_checked


def test_damaged_tables(make_pe):
    raw = bytearray(make(make_pe, text(), functions=[(0, 1)] * 3))
    struct.pack_into("<I", raw, 0x40 + 24 + 112 + 8 * 3 + 4, 1 << 20)
    with pytest.raises(VerificationFailedError, match="functions reaches beyond"):
        scan_dll(bytes(raw), read_pe(bytes(raw)), "avx", on_load=False)


@pytest.mark.parametrize("base", [(1 << 64) - 1, (1 << 64) - TEXT - 16, 1 << 63, (1 << 63) - TEXT])
def test_an_image_base_with_no_room_behind_it(make_pe, base):
    raw = bytearray(make(make_pe, text(), functions=[(0, 1)]))
    struct.pack_into("<Q", raw, 0x40 + 24 + 24, base)
    with pytest.raises(
        VerificationFailedError, match=f"do not fit behind its image base 0x{base:x}"
    ):
        read_pe(bytes(raw))


@examples(150)
@given(
    changes=st.lists(
        st.tuples(st.integers(0x40, 2047), st.integers(0, 255)), min_size=1, max_size=6
    )
)
def test_mutated_dlls_give_one_error_only(make_pe, changes):
    raw = bytearray(
        make(
            make_pe,
            text(p0=STARTUP, p64=RET),
            data=pointers(64, None, 64, None),
            entry=0,
            functions=[(0, 30)],
            tls=16,
        )
    )
    for at, value in changes:
        raw[at % len(raw)] = value
    for on_load in (True, False):
        try:
            found = scan_dll(bytes(raw), read_pe(bytes(raw)), "sse41", on_load=on_load)
        except VerificationFailedError:
            continue
        assert found.instructions <= len(raw)
