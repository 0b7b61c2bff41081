"""Variant names: read, written, and the nearest to a wrong one."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import NotBuildableError, UsageError
from farm.plan.variant import PYTHONS, Variant, cpu_words, gpu_words

CASES = yaml.safe_load(Path(__file__).with_name("variant.yaml").read_text(encoding="utf-8"))

VARIANTS = st.builds(
    Variant, st.sampled_from(gpu_words()), st.sampled_from(cpu_words()), st.sampled_from(PYTHONS)
)


@given(VARIANTS)
def test_a_name_is_read_back(variant):
    assert Variant.parse(str(variant)) == variant
    assert str(variant) == f"{variant.group}-{variant.python}"


def test_the_axes_are_those_of_the_naming_rule():
    sms = (35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
    assert set(gpu_words()) == {
        "cpu",
        "mps",
        "kepler",
        "legacy",
        "sm50to70",
        *(f"sm{sm}" for sm in sms),
    }
    assert set(cpu_words()) == {
        "sse41", "avx", "avx2", "avx512", "avx512bf16", "avx512vnni", "armv8_2", "armv9", "arm64",
    }  # fmt: skip
    assert PYTHONS == ("py39", "py310", "py311", "py312", "py313", "py314", "py313t", "py314t")


@pytest.mark.parametrize(
    ("name", "sms", "python", "machine"),
    [
        ("sm35-avx-py311", (35,), "3.11", "x86_64"),
        ("kepler-sse41-py39", (35, 37), "3.9", "x86_64"),
        ("legacy-avx512-py310", (35, 37, 50, 52, 60, 61, 70, 75), "3.10", "x86_64"),
        ("sm50to70-avx2-py312", (50, 52, 60, 61, 70), "3.12", "x86_64"),
        ("cpu-armv8_2-py314", (), "3.14", "aarch64"),
        ("mps-arm64-py312", (), "3.12", "arm64"),
        ("sm90-avx2-py314t", (90,), "3.14t", "x86_64"),
    ],
)
def test_a_variant_name_gives_sms_python_and_machine(name, sms, python, machine):
    variant = Variant.parse(name)
    assert (variant.sms, variant.python_version, variant.machine) == (sms, python, machine)


@pytest.mark.parametrize(("name", "first"), CASES["the_nearest_name_comes_first"])
def test_the_nearest_name_comes_first(name, first):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert name in str(caught.value)
    assert caught.value.hint.removeprefix("nearest: ").split(", ")[0] == first


@pytest.mark.parametrize(("name", "message", "hint"), CASES["a_card_in_place_of_its_sm_is_known"])
def test_a_card_in_place_of_its_sm_is_known(name, message, hint):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert message in str(caught.value)
    assert caught.value.hint == hint
    assert "known: cpu" not in str(caught.value)


@pytest.mark.parametrize("last", ["py399", "sm35"])
def test_each_wrong_word_is_reported_once(last):
    """The second stands in the place of the Python, and is a GPU's: the card is still one."""
    with pytest.raises(UsageError) as caught:
        Variant.parse(f"K40-avx-{last}")
    card, python = str(caught.value).split("; ")
    assert card.endswith("the card Tesla K40 is sm35")
    assert python.startswith(f"Python {last!r} (known: py39, ")


def test_three_names_are_given_where_more_are_as_near():
    """Each of the words is wrong: all of what is near would be a page."""
    with pytest.raises(UsageError) as caught:
        Variant.parse("K40-avx9-py399")
    names = caught.value.hint.removeprefix("did you mean ").removesuffix("?").split(", ")
    assert len({str(Variant.parse(name)) for name in names}) == len(names) == 3


@pytest.mark.parametrize(
    ("python", "releases", "near"),
    [
        ("py38", "torch 1.12.0 to 2.4.1", "py39 or py310 or py311"),
        ("py315", "torch 2.15.0", "py314 or py313 or py312"),
    ],
)
def test_a_python_that_only_pytorch_itself_is_made_for_is_refused_with_the_reason(
    python, releases, near
):
    """Releases: the names of the published wheels of torch on the Python index."""
    with pytest.raises(NotBuildableError, match=f"the farm builds nothing for {python}") as caught:
        Variant.parse(f"sm70-avx2-{python}")
    assert f"({releases}: " in caught.value.hint
    assert caught.value.hint.endswith(f"nearest that the farm builds for: {near}")


@pytest.mark.parametrize(
    "name", ["", "sm35", "sm35-avx", "sm35-avx-py311-x", "--", "sm35 avx py311"]
)
def test_a_name_of_another_shape_is_explained(name):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert "<gpu>-<cpu>-<python>" in str(caught.value) or "unknown variant" in str(caught.value)


PIECES = st.sampled_from(
    ["sm", "35", "-", "avx", "py", "311", "٣٥", "_", "cpu", "\x1b", "999999999"]
)


@given(
    st.text()
    | st.lists(st.text(max_size=6) | PIECES).map("".join)
    | st.lists(PIECES, min_size=3).map("-".join)
)
def test_arbitrary_text_is_read_or_refused_as_usage(text):
    try:
        variant = Variant.parse(text)
    except (UsageError, NotBuildableError):
        return
    assert str(variant) == text
