from contextlib import suppress

import iced_x86
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import UsageError, VerificationFailedError
from farm.policy import levels
from farm.policy.levels import level_names
from farm.policy.rules import Chosen
from farm.wheel.elf import read_elf
from farm.wheel.isa import x86
from farm.wheel.isa.scan import scan_isa
from tests.examples import examples
from tests.unit.wheel.conftest import RET, VPADDD_YMM

# Encodings by hand from Intel SDM vol. 2.
PSHUFB = bytes.fromhex("660f3800c1")  # SSSE3
CRC32 = bytes.fromhex("f20f38f1c1")  # SSE4.2
VADDPS_YMM = bytes.fromhex("c5f458c2")  # AVX
VFMADD_YMM = bytes.fromhex("c4e275b8c2")  # FMA
VADDPS_ZMM = bytes.fromhex("62f1744858c2")  # AVX-512F
VPDPBUSD_ZMM = bytes.fromhex("62f2754850c2")  # AVX-512 VNNI
VDPBF16PS_ZMM = bytes.fromhex("62f2764852c2")  # AVX-512 BF16
TZCNT = bytes.fromhex("f30fbcc0")
LZCNT = bytes.fromhex("f30fbdc0")
ANDN = bytes.fromhex("c4e270f2c2")  # BMI1
ENDBR64 = bytes.fromhex("f30f1efa")
XGETBV = bytes.fromhex("0f01d0")
CPUID = bytes.fromhex("0fa2")
RDRAND = bytes.fromhex("0fc7f0")


def scan(raw, level):
    return scan_isa(raw, read_elf(raw), level)


def features(make_elf, text, level):
    return {find.feature for find in scan(make_elf(text=text + RET), level).beyond}


def test_an_avx2_instruction_is_found_for_avx_and_not_for_avx2(make_elf):
    raw = make_elf(text=b"\x90" * 8 + VPADDD_YMM * 5 + RET, symbols={"kernel": 4})
    [find] = scan(raw, "avx").beyond
    assert (find.feature, find.count) == ("AVX2", 5)
    assert find.places == ("kernel+0x4", "kernel+0x8", "kernel+0xc")
    assert scan(raw, "avx2").beyond == ()


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (Chosen(), ["uv_run", "xnn_add", "_ZN2atE", "_ZeroState", "mkl_add", "owns", "_Zpl"]),
        (Chosen(functions=("xnn_*", "_ZN*")), ["uv_run", "_ZeroState", "mkl_add", "owns", "_Zpl"]),
        # The whole of an archive, to the next function of C++ on both sides.
        (Chosen(archives=("mkl_*",)), ["uv_run", "xnn_add", "_ZN2atE", "_Zpl"]),
    ],
)
def test_functions_that_are_chosen_at_run_time_are_left_out_and_no_others(make_elf, chosen, found):
    names = ["uv_run", "xnn_add", "_ZN2atE", "_ZeroState", "mkl_add", "owns", "_Zpl"]
    places = {name: len(VPADDD_YMM) * index for index, name in enumerate(names)}
    for name in names:
        code = b"".join(VPADDD_YMM if each == name else b"\x90" * len(VPADDD_YMM) for each in names)
        raw = make_elf(text=code + RET, symbols=places)
        beyond = scan_isa(raw, read_elf(raw), "avx", chosen).beyond
        assert [place for find in beyond for place in find.places] == [f"{name}+0x0"] * (
            name in found
        )


@pytest.mark.parametrize(
    ("code", "feature", "first_level"),
    [
        (PSHUFB, "SSSE3", "sse41"),
        (CRC32, "SSE4_2", "avx"),
        (VADDPS_YMM, "AVX", "avx"),
        (VPADDD_YMM, "AVX2", "avx2"),
        (VFMADD_YMM, "FMA", "avx2"),
        (LZCNT, "LZCNT", "avx2"),
        (ANDN, "BMI1", "avx2"),
        (RDRAND, "RDRAND", "avx2"),
        (VADDPS_ZMM, "AVX512F", "avx512"),
        (VPDPBUSD_ZMM, "AVX512_VNNI", "avx512vnni"),
        (VDPBF16PS_ZMM, "AVX512_BF16", "avx512bf16"),
    ],
)
def test_levels_build_on_one_another(make_elf, code, feature, first_level):
    order = level_names()
    assert order == ("sse41", "avx", "avx2", "avx512", "avx512vnni", "avx512bf16")
    for level in order:
        expected = {feature} if order.index(level) < order.index(first_level) else set()
        assert features(make_elf, code, level) & {feature} == expected


def test_harmless_instructions(make_elf):
    """TZCNT has the bytes of `rep bsf`, which GCC writes for any CPU."""
    assert features(make_elf, ENDBR64 + CPUID + XGETBV + TZCNT, "sse41") == set()


def test_code_is_found_across_block_borders(make_elf, monkeypatch):
    """A block ends in the middle of an instruction in most of these, whatever the block size."""
    raw = make_elf(text=(b"\x90" * 3 + VPADDD_YMM) * 400 + RET)
    for block in (1, 7, 64, 1000, 1 << 20):
        monkeypatch.setattr(x86, "_BLOCK", block)
        [find] = scan(raw, "avx").beyond
        assert find.count == 400


def test_block_borders_do_not_make_instructions(make_elf, monkeypatch):
    """A constant that looks like an AVX2 instruction, inside `mov rax, imm64`, stays a constant."""
    raw = make_elf(text=(b"\x48\xb8\x90\x90" + VPADDD_YMM + b"\x90\x90") * 400 + RET)
    for block in (1, 4, 7, 64, 1000, 1 << 20):
        monkeypatch.setattr(x86, "_BLOCK", block)
        assert scan(raw, "avx").beyond == ()


def test_decoding_restarts_at_every_symbol(make_elf):
    """A byte of data that swallows the next function's first bytes does not hide that function."""
    swallowing = b"\xe8"  # call rel32: takes the four bytes behind it
    text = RET + swallowing + VPADDD_YMM + RET
    assert scan(make_elf(text=text), "avx").beyond == ()
    [find] = scan(make_elf(text=text, symbols={"f": 2}), "avx").beyond
    assert (find.count, find.places) == (1, ("f+0x0",))


def test_bytes_that_are_no_instruction_are_counted(make_elf):
    # PUSH ES does not exist in 64-bit mode; the decoder steps over two bytes at a time there.
    result = scan(make_elf(text=b"\x06" * 4 + RET), "avx")
    assert (result.beyond, result.undecodable) == ((), 2)


def test_other_machines_are_not_checked(make_elf):
    result = scan(make_elf(machine=183, text=VPADDD_YMM), "avx")
    assert result.not_checked == "machine code for aarch64 is not decoded"


def test_an_unknown_level_is_the_callers_mistake(make_elf):
    with pytest.raises(UsageError, match="avx9") as caught:
        scan(make_elf(), "avx9")
    assert "avx2" in caught.value.hint


def test_the_table_names_only_what_the_decoder_knows():
    table = levels.table()
    known = {name for name in vars(iced_x86.CpuidFeature) if name.isupper()}
    listed = list(table["harmless"]) + [
        name for level in table["levels"].values() for name in level["features"]
    ]
    assert set(listed) <= known
    assert len(listed) == len(set(listed))
    assert set(table["harmless_instructions"]) <= set(vars(iced_x86.Mnemonic))
    assert yaml.safe_load(yaml.safe_dump(table)) == table


@examples(200)
@given(text=st.binary(min_size=1, max_size=200), cut=st.integers(0, 10))
def test_any_bytes_can_be_swept(make_elf, text, cut):
    raw = make_elf(text=text, symbols={"f": min(cut, len(text) - 1)})
    result = scan(raw, "avx")
    assert all(find.count >= len(find.places) > 0 for find in result.beyond)


@examples(200)
@given(data=st.data())
def test_mutated_libraries_give_one_error_only(make_elf, data):
    raw = bytearray(make_elf(text=VPADDD_YMM * 4, symbols={"f": 4}))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(VerificationFailedError):  # any other exception fails the test
        scan(bytes(raw), "avx")
