import contextlib

import pytest

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.tags import (
    SystemNeed,
    check_supported,
    earned_level,
    for_musl,
    is_system_library,
    level_of_tag,
    levels,
    unmet_needs,
)


def need(*versions, libraries=("libc.so.6",), who="a.so"):
    return SystemNeed(who, frozenset(libraries), frozenset(versions))


@pytest.mark.parametrize(
    ("versions", "machine", "tags"),
    [
        ((), "x86_64", ("manylinux_2_5_x86_64", "manylinux1_x86_64")),
        (
            ("GLIBC_2.2.5", "GLIBC_2.17"),
            "x86_64",
            ("manylinux_2_17_x86_64", "manylinux2014_x86_64"),
        ),
        (("GLIBC_2.18",), "x86_64", ("manylinux_2_24_x86_64",)),
        (("GLIBC_2.28", "GCC_3.0"), "x86_64", ("manylinux_2_28_x86_64",)),
        # glibc 2.36 is Debian 12's; libstdc++ of GCC 12 (GLIBCXX_3.4.30) came to Ubuntu 22.04 with
        # glibc 2.35
        (("GLIBC_2.36",), "x86_64", ("manylinux_2_36_x86_64",)),
        (("GLIBCXX_3.4.30",), "x86_64", ("manylinux_2_35_x86_64",)),
        (("GLIBC_2.17",), "aarch64", ("manylinux_2_17_aarch64", "manylinux2014_aarch64")),
        (("UNKNOWN_9",), "x86_64", ("manylinux_2_5_x86_64", "manylinux1_x86_64")),
    ],
)
def test_the_lowest_level_that_fits(versions, machine, tags):
    assert earned_level([need(), need(*versions)], machine).tags(machine) == tags


def test_libraries_raise_the_level():
    """libexpat is promised from 2.12 on only; the driver by none, which is not this function's
    affair.
    """
    assert earned_level([need(libraries=["libexpat.so.1"])], "x86_64").name == "manylinux_2_12"
    assert earned_level([need(libraries=["libcuda.so.1"])], "x86_64").name == "manylinux_2_5"


def test_a_newer_glibc_than_any_level():
    with pytest.raises(VerificationFailedError, match=r"b\.so needs GLIBC_2\.99") as caught:
        earned_level([need(), need("GLIBC_2.99", who="b.so")], "x86_64")
    assert "older distribution" in caught.value.hint


def test_an_unknown_machine():
    with pytest.raises(VerificationFailedError, match="pdp11"):
        earned_level([need()], "pdp11")


def test_levels_are_ordered():
    order = [policy.glibc for policy in levels()]
    assert order == sorted(order)
    assert order[0] == (2, 5)


def test_system_libraries():
    system = [
        "libc.so.6",
        "libstdc++.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libz.so.1",
    ]
    others = [
        "libgomp.so.1",
        "libcuda.so.1",
        "libcudart.so.11.0",
        "libpython3.11.so.1.0",
        "ld-linux.so",
    ]
    assert [name for name in system + others if is_system_library(name)] == system


def test_tags_are_read_back():
    policy, machine = level_of_tag("manylinux2014_x86_64")
    assert (policy.name, machine) == ("manylinux_2_17", "x86_64")
    assert level_of_tag("linux_x86_64") is None
    assert unmet_needs(policy, need("GLIBC_2.17", "GLIBC_2.34", "GLIBC_2.18"), machine) == [
        "GLIBC_2.18",
        "GLIBC_2.34",
    ]


def test_levels_of_which_auditwheel_has_no_list():
    """NVIDIA's wheels have manylinux_2_25, which pip takes (PEP 600)."""
    policy, machine = level_of_tag("manylinux_2_25_x86_64")
    assert (policy.glibc, machine) == ((2, 25), "x86_64")
    assert unmet_needs(policy, need("GLIBC_2.25", "GLIBC_2.2.5", "GLIBC_2.26"), machine) == [
        "GLIBC_2.26"
    ]
    assert unmet_needs(policy, need("GLIBCXX_3.4.22", "GLIBCXX_3.4.29"), machine) == [
        "GLIBCXX_3.4.29"
    ]
    for tag in (
        "manylinux_2_4_x86_64",
        "manylinux_3_25_x86_64",
        "manylinux_2_x_x86_64",
        "manylinux_2_25_",
    ):
        assert level_of_tag(tag) is None


@pytest.mark.parametrize(
    ("who", "libraries", "musl"),
    [
        ("_C.cpython-312-x86_64-linux-musl.so", ["libc.musl-x86_64.so.1"], True),
        ("_C.cpython-312-x86_64-linux-musl.so", [], True),
        ("_C.abi3.so", ["libc.so"], True),  # as tokenizers 0.23 is linked
        (
            "_C.cpython-312-x86_64-linux-musl.so",
            ["libc.so.6"],
            False,
        ),  # what it needs counts for more than its name
        ("_C.cpython-312-x86_64-linux-gnu.so", [], False),
    ],
)
def test_musl_by_what_is_needed_or_by_the_name(who, libraries, musl):
    assert for_musl(who, libraries) == musl
    if musl:
        with pytest.raises(VerificationFailedError, match=r"is for musl \(Alpine Linux\)"):
            earned_level([need(libraries=libraries, who=who)], "x86_64")


@pytest.mark.parametrize(
    ("tags", "ok"),
    [
        ("cp311-cp311-musllinux_1_2_x86_64", False),
        ("cp311-cp311-manylinux_2_17_i686", False),
        ("cp311-cp311-manylinux_2_17_x86_64.musllinux_1_1_x86_64", True),
    ],
)
def test_machines_that_no_variant_is_for(tags, ok):
    with contextlib.nullcontext() if ok else pytest.raises(UsageError, match="are not supported"):
        check_supported(f"x-1-{tags}.whl")
