import struct

import pytest

from farm.base.errors import VerificationFailedError
from farm.wheel.imports import system_needs
from farm.wheel.library import Library, read_library
from farm.wheel.manylinux import (
    SystemNeed,
    earned_policy,
    is_system_library,
    policies,
    policy_of_tag,
    unmet_needs,
    why_linux_only,
)


def need(*versions, libraries=("libc.so.6",), who="a.so"):
    return SystemNeed(who, frozenset(libraries), frozenset(versions))


@pytest.mark.parametrize(
    ("versions", "machine", "tags"),
    [
        ((), "x86_64", ("manylinux_2_5_x86_64", "manylinux1_x86_64")),
        (("GLIBC_2.2.5", "GLIBC_2.17"), "x86_64", ("manylinux_2_17_x86_64", "manylinux2014_x86_64")),
        (("GLIBC_2.18",), "x86_64", ("manylinux_2_24_x86_64",)),
        (("GLIBC_2.28", "GCC_3.0"), "x86_64", ("manylinux_2_28_x86_64",)),
        # glibc 2.36 is Debian 12's; libstdc++ of GCC 12 (GLIBCXX_3.4.30) came to Ubuntu 22.04 with glibc 2.35
        (("GLIBC_2.36",), "x86_64", ("manylinux_2_36_x86_64",)),
        (("GLIBCXX_3.4.30",), "x86_64", ("manylinux_2_35_x86_64",)),
        (("GLIBC_2.17",), "aarch64", ("manylinux_2_17_aarch64", "manylinux2014_aarch64")),
        (("UNKNOWN_9",), "x86_64", ("manylinux_2_5_x86_64", "manylinux1_x86_64")),
    ],
)
def test_the_lowest_level_that_fits(versions, machine, tags):
    assert earned_policy([need(), need(*versions)], machine).tags(machine) == tags


def test_libraries_raise_the_level():
    """libexpat is promised from 2.12 on only; the driver by none, which is not this function's affair."""
    assert earned_policy([need(libraries=["libexpat.so.1"])], "x86_64").name == "manylinux_2_12"
    assert earned_policy([need(libraries=["libcuda.so.1"])], "x86_64").name == "manylinux_2_5"


@pytest.mark.parametrize("symbol", ["__issignaling", "__cxa_thread_atexit_impl"])
def test_what_is_internal_at_old_levels_alone_raises_the_level(symbol):
    """As libgfortran's `__issignaling`, of glibc's interface from 2.18 on: auditwheel says manylinux_2_35."""
    libraries, internals = frozenset(["libc.so.6", "libm.so.6"]), frozenset([symbol])
    gfortran = SystemNeed("torch.libs/libgfortran.so.5", libraries, frozenset(["GLIBC_2.17"]), internals)
    assert why_linux_only([gfortran]) is None
    assert earned_policy([gfortran], "x86_64").name == "manylinux_2_24"
    (old, _), (new, _) = policy_of_tag("manylinux2014_x86_64"), policy_of_tag("manylinux_2_35_x86_64")
    assert (unmet_needs(old, gfortran, "x86_64"), unmet_needs(new, gfortran, "x86_64")) == ([symbol], [])
    elsewhere = SystemNeed("a.so", frozenset(["libother.so.1"]), frozenset(), internals)
    assert earned_policy([elsewhere], "x86_64").name == "manylinux_2_5"


def test_what_is_internal_at_every_level_earns_none():
    asks = SystemNeed("a.so", frozenset(["libz.so.1"]), frozenset(), frozenset(["inflate_fast"]))
    assert why_linux_only([asks]) == "a.so uses inflate_fast, an internal symbol of libz.so.1"


def test_a_newer_glibc_than_any_level():
    with pytest.raises(VerificationFailedError, match=r"b\.so needs GLIBC_2\.99") as caught:
        earned_policy([need(), need("GLIBC_2.99", who="b.so")], "x86_64")
    assert "older distribution" in caught.value.hint


def test_an_unknown_machine():
    with pytest.raises(VerificationFailedError, match="pdp11"):
        earned_policy([need()], "pdp11")


def test_levels_are_ordered():
    order = [policy.glibc for policy in policies()]
    assert order == sorted(order)
    assert order[0] == (2, 5)


def test_system_libraries():
    system = ["libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1", "libz.so.1"]
    others = ["libgomp.so.1", "libcuda.so.1", "libcudart.so.11.0", "libpython3.11.so.1.0", "ld-linux.so"]
    assert [name for name in system + others if is_system_library(name)] == system


def test_tags_are_read_back():
    policy, machine = policy_of_tag("manylinux2014_x86_64")
    assert (policy.name, machine) == ("manylinux_2_17", "x86_64")
    assert policy_of_tag("linux_x86_64") is None
    assert unmet_needs(policy, need("GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.18"), machine) == ["GLIBC_2.18", "GLIBC_2.34"]


def test_levels_of_which_auditwheel_has_no_list():
    """NVIDIA's wheels have manylinux_2_25, which pip takes (PEP 600)."""
    policy, machine = policy_of_tag("manylinux_2_25_x86_64")
    assert (policy.glibc, machine) == ((2, 25), "x86_64")
    assert unmet_needs(policy, need("GLIBC_2.25", "GLIBC_2.2.5", "GLIBC_2.26"), machine) == ["GLIBC_2.26"]
    assert unmet_needs(policy, need("GLIBCXX_3.4.22", "GLIBCXX_3.4.29"), machine) == ["GLIBCXX_3.4.29"]
    for tag in ("manylinux_2_4_x86_64", "manylinux_3_25_x86_64", "manylinux_2_x_x86_64", "manylinux_2_25_"):
        assert policy_of_tag(tag) is None


MUSL = "canary/_C.cpython-312-x86_64-linux-musl.so"


@pytest.mark.parametrize(
    ("who", "libraries", "level"),
    [
        (MUSL, ["libc.musl-x86_64.so.1"], "musllinux_1_2"),
        (MUSL, [], "musllinux_1_2"),
        ("canary/_C.abi3.so", ["libc.so"], "musllinux_1_2"),  # as tokenizers 0.23 is linked
        ("_C.cpython-312-arm-linux-musleabihf.so", [], "musllinux_1_2"),
        (MUSL, ["libc.so.6"], "manylinux_2_5"),  # what it needs counts for more than its name
        ("_C.cpython-312-x86_64-linux-gnu.so", [], "manylinux_2_5"),
        ("a.so", ["libc.musl-x86_64.so.1"], "musllinux_1_2"),
    ],
)
def test_musl_by_what_is_needed_or_by_the_name(who, libraries, level):
    assert earned_policy([need(libraries=libraries, who=who)], "x86_64").name == level


def note(kind, value, name=b"GNU\0"):
    described = struct.pack("<III4x", kind, 4, value)
    return struct.pack("<III", len(name), len(described), 5) + name + described


@pytest.mark.parametrize(
    ("found", "level"),
    [
        (note(0xC0008002, 1), None),  # the baseline
        (note(0xC0008002, 3), "v2"),
        (note(0xC0008002, 7), "v3"),
        (note(0xC0008002, 15), "v4"),
        (note(0xC0010002, 15), None),  # what it uses, which binds nobody
        (note(0xC0008002, 4, b"XYZ\0"), None),
        (note(0xC0000002, 3) + note(0xC0008002, 4), "v3"),
        (b"\xff" * 40, None),
        (b"\x04", None),
    ],
)
@pytest.mark.parametrize("kind", [4, 0x6474E553])
def test_a_library_that_is_marked_for_newer_cpus(make_elf, kind, found, level):
    """glibc refuses it elsewhere: `-z x86-64-v3` of the linker, `-mneeded` of the assembler."""
    raw = make_elf(needed=["libc.so.6"])
    (start, count) = struct.unpack_from("<Q", raw, 32)[0], struct.unpack_from("<H", raw, 56)[0]
    headers = raw[start : start + 56 * count]
    at = len(raw) + len(found)
    headers += struct.pack("<IIQQQQQQ", kind, 4, len(raw), 0, 0, len(found), len(found), 8)
    changed = bytearray(raw + found + headers)
    struct.pack_into("<Q", changed, 32, at)
    struct.pack_into("<H", changed, 56, count + 1)
    library = read_library("a.so", "", bytes(changed), None)
    assert (library.error, library.cpu_level) == (None, level)
    reason = why_linux_only([SystemNeed("a.so", frozenset(), frozenset(), frozenset(), level)])
    assert reason is None if level is None else f"x86-64-{level}" in reason


@pytest.mark.parametrize(
    ("path", "level", "asked"),
    [
        ("own/glibc-hwcaps/x86-64-v3/a.so", "v3", None),
        ("own/glibc-hwcaps/x86-64-v4/a.so", "v3", None),
        ("own/glibc-hwcaps/x86-64-v3/a.so", "v4", "v4"),
        ("own/glibc-hwcaps/x86-64-v3/deeper/a.so", "v3", "v3"),
        ("own/x86-64-v3/a.so", "v3", "v3"),
    ],
)
def test_a_library_that_the_loader_takes_on_newer_cpus_only(path, level, asked):
    """ld.so(8): other CPUs pass the folder by. auditwheel keeps the tag of such a wheel too."""
    library = Library(path=path, sha256="", size=1, machine="x86_64", kind="shared", cpu_level=level)
    assert [need.cpu_level for need in system_needs([library], [])] == [asked]


def test_narrow_unicode():
    reason = why_linux_only([SystemNeed("a.so", frozenset(), frozenset(), frozenset(["PyUnicodeUCS2_Format"]))])
    assert "built for UCS2" in reason
