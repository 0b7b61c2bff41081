import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm import catalog
from farm.base.errors import UsageError
from farm.plan.compat.compilers import compiler, msc_ver, parse_msvc, toolset
from farm.plan.compat.stack import Entry, entries, reaches, spell


def test_entries_of_an_arch_list(stack):
    build = stack(
        "sm86-avx2-py311",
        cuda="12.8",
        torch="2.7.1",
        arch_list="Pascal 8.6(8.0); 9.0a;12.0+PTX;nonsense",
    )
    assert entries(build) == [
        Entry(60, "", False),
        Entry(61, "", False),
        Entry(86, "", False),
        Entry(90, "a", False),
        Entry(120, "", True),
    ]


@pytest.mark.parametrize(("torch", "sms"), [("1.13.1", [80]), ("2.1.2", [80, 86])])
def test_ampere_means_more_from_2_1_on(stack, torch, sms):
    assert [
        one.sm
        for one in entries(stack("sm86-avx2-py311", cuda="11.8", torch=torch, arch_list="Ampere"))
    ] == sms


def test_the_arch_list_follows_from_the_variant(stack):
    assert entries(stack("kepler-avx-py311", cuda="11.7", ptx=True)) == [
        Entry(35, "", False),
        Entry(37, "", True),
    ]
    assert entries(stack("cpu-avx-py311")) == []


def test_where_ptx_is_compiled():
    assert Entry(35, "", True).compiles_on(120)
    assert not Entry(35, "", False).compiles_on(120)
    assert not Entry(90, "a", True).compiles_on(100)
    assert not Entry(61, "", True).compiles_on(60)


@given(
    st.lists(
        st.sampled_from(sorted(int(name[2:]) for name in catalog.architectures().architectures)),
        min_size=1,
        unique=True,
    )
)
def test_spelling_and_reading_are_inverse(sms):
    ordered = sorted(sms)
    assert [int(word.replace(".", "")) for word in spell(ordered).split(";")] == ordered
    for sm in ordered:
        assert spell([sm]) == catalog.architectures().architectures[f"sm{sm}"].arch_list


def test_a_driver_branch_is_its_newest_release():
    assert reaches("470", "470.82.01")
    assert reaches("470.82.01", "470.82.01")
    assert not reaches("470.57.02", "470.82.01")
    assert not reaches("465", "470.82.01")
    assert reaches("580.65.06", "525")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2019", 1929),
        ("vs2022", 1944),
        ("14.29", 1929),
        ("14.29.30133", 1929),
        ("19.40", 1940),
        ("1940", 1940),
    ],
)
def test_names_of_msvc(text, version):
    assert parse_msvc(text) == version


@pytest.mark.parametrize("text", ["", "2021", "13.0", "19", "14.29;calc", "١٩٢٩"])
def test_other_names_are_refused(text):
    with pytest.raises(UsageError, match="nor an MSVC version"):
        parse_msvc(text)


def test_toolsets():
    assert (toolset(1929), msc_ver("14.29")) == ("14.29", 1929)
    assert compiler(1929) == "MSVC 19.29 (VS 2019, toolset 14.29)"
    assert compiler(1950) == "MSVC 19.50 (VS 2026, toolset 14.50)"
    assert compiler(1960) == "MSVC 19.60"
