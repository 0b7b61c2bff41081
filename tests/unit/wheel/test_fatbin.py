import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import VerificationFailedError
from farm.wheel.fatbin import find_fatbins, read_fatbins
from farm.wheel.library import read_library
from tests.examples import examples

FATBINS = Path(__file__).parent / "fatbins"
LZ4, ZSTD, SPECIFIC = 0x2011, 0x8011, 0x100011
CONCATENATED = ["cuda13.5-concat", "cuda13.5-concat-lz4"]  # several entries compressed as one


def read(raw):
    return read_fatbins(raw, 0, len(raw))


def test_sets_are_kept_apart_per_container(make_container, make_entry):
    first = make_container(make_entry("sass", 35), make_entry("sass", 60), make_entry("ptx", 60))
    second = make_container(make_entry("sass", 50, header=80))
    [one, two] = read(first + b"\0" * 24 + second + b"\0" * 8)
    assert (one.sass, one.ptx) == ({35, 60}, {60})
    assert (two.sass, two.ptx, two.offset) == ({50}, set(), len(first) + 24)


def test_offsets_count_from_the_section(make_container, make_entry):
    section = make_container(make_entry("sass", 35))
    raw = b"garbage!" + section + b"garbage!"
    [container] = read_fatbins(raw, 8, 8 + len(section))
    assert (container.offset, container.sass) == (0, {35})


def test_entry_facts(make_container, make_entry, make_cubin):
    [container] = read(
        make_container(
            make_entry("sass", 90, flags=SPECIFIC),
            make_entry("sass", 35, data=b"packed", flags=LZ4, unpacked=37840),
            make_entry("ptx", 120, data=b"packed", flags=ZSTD, unpacked=95),
        )
    )
    assert [(e.kind, e.sm, e.compressed, e.is_stub) for e in container.entries] == [
        ("sass", "90a", False, False),
        ("sass", 35, True, False),
        ("ptx", 120, True, False),
    ]
    assert [entry.size for entry in container.entries] == [4096, 6, 6]


@pytest.mark.parametrize(
    ("abi", "flags", "compat", "sm"),
    [
        # As ptxas of CUDA 12.9 and 13.0 writes them.
        (7, 0x5A0D5A, None, "90a"),
        (7, 0x5A055A, None, 90),
        (8, 0x600780A, None, "120a"),
        (8, 0x6007802, None, 120),
        (8, 0x6005A04, b"\2\x09\1\0", "90a"),
        (8, 0x6005A04, b"\2\x09\0\0", 90),
        (8, 0x6005A04, b"\2\x09", 90),
    ],
)
def test_a_cubin_for_one_gpu_alone(make_cubin, abi, flags, compat, sm):
    raw = bytearray(make_cubin())
    raw[8] = abi
    raw[48:52] = flags.to_bytes(4, "little")
    if compat is not None:
        at, (table,) = len(raw), struct.unpack_from("<Q", raw, 40)
        symbols = raw[table : table + 64]
        raw += compat
        raw[40:48], raw[60] = len(raw).to_bytes(8, "little"), 2
        raw += symbols + struct.pack(
            "<IIQQQQIIQQ", 0, 0x70000086, 0, 0, at, len(compat), 0, 0, 4, 0
        )
    library = read_library("own/kernels.cubin", "", bytes(raw))
    assert (library.error, [group.sass for group in library.fatbins]) == (None, [(sm,)])


@pytest.mark.parametrize("how", ["no kernel", "compressed", "empty", "no cubin"])
def test_stubs_do_not_count_as_device_code(make_container, make_entry, make_cubin, how):
    stub = {
        "no kernel": make_entry("sass", 35, data=make_cubin(kernel=False, size=1456)),
        "compressed": make_entry("sass", 35, data=b"packed", flags=LZ4, unpacked=616),
        "empty": make_entry("sass", 35, data=b""),
        "no cubin": make_entry("sass", 35, data=b".text.".rjust(4096)),
    }[how]
    [alone, beside, with_ptx] = read(
        make_container(stub)
        + make_container(stub, make_entry("sass", 50), make_entry("ptx", 50))
        + make_container(stub, make_entry("ptx", 50))
    )
    assert (alone.sass, alone.ptx) == (set(), set())
    assert (beside.sass, beside.ptx) == ({50}, {50})
    assert (with_ptx.sass, with_ptx.ptx) == (set(), set())  # a source file without kernels


def test_ptx_alone_counts(make_container, make_entry):
    [container] = read(make_container(make_entry("ptx", 120)))
    assert (container.sass, container.ptx) == (set(), {120})


def test_empty_section_and_empty_container(make_container):
    assert read(b"") == []
    assert read(b"\0" * 5000) == []
    [container] = read(make_container())
    assert container.entries == ()


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        (0, "<I", 0xBA55ED51),
        (4, "<H", 2),
        (8, "<Q", 2**40),
        (20, "<I", 8),
        (20, "<I", 2**31),
        (24, "<Q", 2**63),
    ],
)
def test_damaged_fat_binaries_are_reported(make_container, make_entry, offset, form, value):
    raw = bytearray(make_container(make_entry("sass", 35)))
    struct.pack_into(form, raw, offset, value)
    with pytest.raises(VerificationFailedError, match="damaged fat binary"):
        read(bytes(raw))


@examples(300)
@given(data=st.data())
def test_mutated_sections_give_one_error_only(make_container, make_entry, make_cubin, data):
    raw = bytearray(
        make_container(make_entry("sass", 35, data=make_cubin(size=64)), make_entry("ptx", 35))
        + make_container(make_entry("sass", 50, data=b"x", flags=LZ4, unpacked=9999))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(VerificationFailedError):  # any other exception fails the test
        assert len(read(bytes(raw))) <= 20


@pytest.mark.parametrize("how", CONCATENATED)
@given(data=st.data())
def test_mutated_headers_of_concatenated_entries_give_one_error_only(how, data):
    raw = bytearray((FATBINS / f"kernel-{how}.fatbin").read_bytes())
    [start] = [at for at in range(16, len(raw), 8) if raw[at : at + 4] == b"\0\1\1\1"]
    for _ in range(data.draw(st.integers(1, 6))):
        raw[start + data.draw(st.integers(0, 231))] = data.draw(st.integers(0, 255))
    with suppress(VerificationFailedError):  # any other exception fails the test
        [container] = read(bytes(raw))
        assert len(container.entries) <= 3


@given(st.binary(max_size=300))
def test_random_bytes_give_one_error_only(raw):
    magic = struct.pack("<IHH", 0xBA55ED50, 1, 16)
    for section in (raw, magic + raw):
        with suppress(VerificationFailedError):  # any other exception fails the test
            read(section)


@pytest.mark.parametrize("how", ["cuda11.8", "cuda11.8-lz4", "cuda13.0-zstd", *CONCATENATED])
def test_small_kernels_of_real_compilers_are_no_stubs(how):
    """A kernel of 1,960 bytes is one; what the compiler makes of a file without kernels is none."""
    [kernel] = read((FATBINS / f"kernel-{how}.fatbin").read_bytes())
    [empty] = read((FATBINS / f"empty-{how}.fatbin").read_bytes())
    assert kernel.sass == ({35, 75} if "11" in how else {75, "90a", "100f"})
    assert empty.sass == set()
    assert [entry.is_stub for entry in empty.entries] == [True] * len(kernel.entries)


def test_fat_binaries_are_found_wherever_they_lie(make_container, make_entry):
    hidden = make_container(make_entry("sass", 75))
    raw = b"x" * 100 + hidden + b"y" * 50 + hidden
    assert [each.sass for each in find_fatbins(raw, [])] == [{75}, {75}]
    assert [each.sass for each in find_fatbins(raw, [(100, 100 + len(hidden))])] == [{75}]
    with pytest.raises(VerificationFailedError, match="damaged fat binary"):
        find_fatbins(raw.replace(hidden, hidden[:20] + b"\xff" * 8 + hidden[28:]), [])


@pytest.mark.parametrize(
    "name", ["kernel-cuda11.8", "kernel-cuda11.8-lz4", "kernel-cuda13.0-zstd", "empty-cuda11.8-lz4"]
)
def test_code_must_be_for_the_architecture_that_its_entry_names(name):
    """The driver chooses by the entry and loads by the code: such an image fails on either GPU."""
    data = (Path(__file__).parent / "fatbins" / f"{name}.fatbin").read_bytes()
    assert read_fatbins(data, 0, len(data))
    (sm,) = struct.unpack_from("<I", data, 16 + 28)
    changed = data[: 16 + 28] + struct.pack("<I", 52) + data[16 + 32 :]
    with pytest.raises(VerificationFailedError, match=f"an entry for sm_52 holds code for sm_{sm}"):
        read_fatbins(changed, 0, len(changed))
