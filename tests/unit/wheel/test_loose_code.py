"""GPU code in files of its own: cubins and fat binaries that a program loads itself."""

import struct

import pytest

from farm.policy.rules import Policy
from farm.wheel.verify import verify

TAG = "cp311-cp311-manylinux_2_17_x86_64"


@pytest.mark.parametrize(
    ("flags", "abi", "sm"), [(0x230523, 7, 35), (0x4B054B, 7, 75), (0x06004B04, 8, 75)]
)
def test_a_loose_cubin_is_judged(
    tmp_path, make_wheel, make_elf, make_container, make_entry, make_cubin, flags, abi, sm
):
    """ELF flags as ptxas of CUDA 11.8 and 13.0 wrote them."""
    cubin = bytearray(make_cubin())
    cubin[8] = abi
    cubin[48:52] = struct.pack("<I", flags)
    own = make_elf(needed=["libc.so.6"], fatbin=make_container(make_entry("sass", 35)))
    path = make_wheel(
        tmp_path, {"canary/_C.so": own, "canary/kernels.cubin": bytes(cubin)}, tag=TAG
    )
    found = [f.where for f in verify(path, Policy(sass=[35])).findings]
    assert set(found) == (set() if sm == 35 else {"canary/kernels.cubin"})


@pytest.mark.parametrize("sm", [35, 75])
def test_a_loose_fat_binary_is_judged(tmp_path, make_wheel, make_container, make_entry, sm):
    path = make_wheel(
        tmp_path, {"canary/k.fatbin": make_container(make_entry("sass", sm))}, tag=TAG
    )
    found = {f.where for f in verify(path, Policy(sass=[35])).findings}
    assert found == (set() if sm == 35 else {"canary/k.fatbin"})


def test_a_renamed_section_and_a_removed_section_table_hide_nothing(
    tmp_path, make_wheel, make_elf, make_container, make_entry
):
    own = make_elf(needed=["libc.so.6"], fatbin=make_container(make_entry("sass", 75)))
    renamed = own.replace(b".nv_fatbin", b".rv_fatbin")
    stripped = bytearray(own)
    stripped[40:48] = bytes(8)  # e_shoff
    stripped[60:64] = bytes(4)  # e_shnum, e_shstrndx
    for raw in (own, renamed, bytes(stripped)):
        path = make_wheel(tmp_path, {"canary/_C.so": raw}, tag=TAG)
        assert {f.where for f in verify(path, Policy(sass=[35])).findings} == {"canary/_C.so"}


def test_a_library_without_sections_is_not_said_to_be_fine(tmp_path, make_wheel, make_elf):
    stripped = bytearray(make_elf(needed=["libc.so.6"], text=bytes.fromhex("c5f5fec2c3")))
    stripped[40:48] = bytes(8)
    stripped[60:64] = bytes(4)
    path = make_wheel(tmp_path, {"canary/_C.so": bytes(stripped)}, tag=TAG)
    [cpu] = [each for each in verify(path, Policy(cpu="avx")).checks if each.id == "cpu"]
    assert (cpu.status, "no section table to find its code by" in cpu.note) == ("not_run", True)
