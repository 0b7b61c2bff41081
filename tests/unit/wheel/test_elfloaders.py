"""What glibc's loader is on each machine, and what it puts into paths."""

import sys
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from farm.wheel.elf import MACHINES
from farm.wheel.elfloaders import elf_loaders
from farm.wheel.expansion import SITE, System, expanded


def test_a_machine_is_named_as_the_reader_of_elf_files_does():
    assert set(elf_loaders()) <= {*MACHINES.values(), "ppc64le"}


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_this_machine():
    with Path(sys.executable).resolve().open("rb") as file:
        named = [each.get_interp_name() for each in ELFFile(file).iter_segments("PT_INTERP")]
    if not named or "musl" in named[0]:
        pytest.skip("a Python without glibc's loader")
    ours = elf_loaders()[sysconfig.get_platform().removeprefix("linux-")]
    assert named == [ours.interpreter]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        assert ours.lib["debian"] == f"lib/{multiarch}"


@pytest.mark.parametrize(
    ("machine", "system", "entry", "folder"),
    [
        ("i686", System.FEDORA, "$LIB", "lib"),
        ("i686", System.DEBIAN, "$LIB", "lib/i386-linux-gnu"),
        ("riscv64", System.FEDORA, "${LIB}", "lib64/lp64d"),
        ("aarch64", System.DEBIAN, "$PLATFORM", "aarch64"),
        ("s390x", System.FEDORA, "$PLATFORM", "$PLATFORM"),
        ("x86_64", System.MUSL, "$LIB/$PLATFORM", "$LIB/$PLATFORM"),
        ("em8", System.FEDORA, "$LIB", "$LIB"),
    ],
)
def test_what_is_put_for_it(machine, system, entry, folder):
    assert expanded("canary/_C.so", f"$ORIGIN/{entry}", machine, system) == f"{SITE}/canary/{folder}"
