"""Variant names: read, written, and the nearest to a wrong one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.base.errors import NotBuildableError, UsageError
from farm.plan.variant import PYTHONS, Variant, cpus, gpus

VARIANTS = st.builds(Variant, st.sampled_from(gpus()), st.sampled_from(cpus()), st.sampled_from(PYTHONS))


@given(VARIANTS)
def test_a_name_is_read_back(variant):
    assert Variant.parse(str(variant)) == variant
    assert str(variant) == f"{variant.group}-{variant.python}"


def test_the_axes_are_those_of_the_naming_rule():
    sms = (35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
    assert set(gpus()) == {"cpu", "mps", "kepler", "legacy", *(f"sm{sm}" for sm in sms)}
    assert set(cpus()) == {
        "sse41", "avx", "avx2", "avx512", "avx512bf16", "avx512vnni", "armv8_2", "armv9", "arm64",
    }  # fmt: skip
    assert PYTHONS == ("py39", "py310", "py311", "py312", "py313", "py314", "py313t", "py314t")


@pytest.mark.parametrize(
    ("name", "sms", "python", "machine"),
    [
        ("sm35-avx-py311", (35,), "3.11", "x86_64"),
        ("kepler-sse41-py39", (35, 37), "3.9", "x86_64"),
        ("legacy-avx512-py310", (35, 37, 50, 52, 60, 61, 70, 75), "3.10", "x86_64"),
        ("cpu-armv8_2-py314", (), "3.14", "aarch64"),
        ("mps-arm64-py312", (), "3.12", "arm64"),
        ("sm90-avx2-py314t", (90,), "3.14t", "x86_64"),
    ],
)
def test_what_a_name_means(name, sms, python, machine):
    variant = Variant.parse(name)
    assert (variant.sms, variant.python_version, variant.machine) == (sms, python, machine)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("sm34-avx-py311", "sm35-avx-py311"),
        ("sm99-avx-py311", "sm100-avx-py311"),
        ("keppler-avx-py311", "kepler-avx-py311"),
        ("sm35-avx3-py311", "sm35-avx2-py311"),
        ("sm35-sse42-py311", "sm35-sse41-py311"),
        ("sm35-avx-py316", "sm35-avx-py314"),
        ("sm35-avx-py3.11", "sm35-avx-py311"),
        ("sm34-avx-py38", "sm35-avx-py39"),
        ("sm35-avx-cp310", "sm35-avx-py310"),
        ("sm35-avx-python3.9", "sm35-avx-py39"),
        ("sm75-avx2-3.13t", "sm75-avx2-py313t"),
        ("sm90-aarch64-py312", "sm90-armv8_2-py312"),
        ("sm75-AMD64-py312", "sm75-sse41-py312"),
    ],
)
def test_the_nearest_name_comes_first(name, first):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert name in str(caught.value)
    assert caught.value.hint.removeprefix("nearest: ").split(", ")[0] == first


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("K40-avx-py311", "the card Tesla K40 is sm35", "did you mean sm35-avx-py311?"),
        ("gtx 1080 ti-avx2-py313", "the card GeForce GTX 1080 Ti is sm61", "did you mean sm61-avx2-py313?"),
        ("A100-SXM4-40GB-avx2-py312", "the card A100 is sm80", "did you mean sm80-avx2-py312?"),
        ("RTX-5070-avx2-py312", "the card GeForce RTX 5070 is sm120", "did you mean sm120-avx2-py312?"),
        ("t4-AVX2-py312", "the card Tesla T4 is sm75", "did you mean sm75-avx2-py312?"),
        ("GT730-avx-py311", "sold with several chips: sm21, sm30, sm35", "did you mean sm35-avx-py311?"),
        ("gtx580-avx-py311", "the card GeForce GTX 580 is sm20: CUDA 8.0 was the last toolkit", None),
        ("sm30-avx-py310", "CUDA 10.2 was the last toolkit for sm_30", None),
        ("SM_21-avx-py310", "(Fermi): CUDA 8.0 was the last toolkit", None),
        ("sm_35-avx-py311", "variants write it sm35", "did you mean sm35-avx-py311?"),
        ("SM35-AVX-PY311", "variants write it sm35", "did you mean sm35-avx-py311?"),
        ("3.5-avx-py311", "variants write it sm35", "did you mean sm35-avx-py311?"),
        ("compute_120-avx2-py312", "variants write it sm120", "did you mean sm120-avx2-py312?"),
        ("12.0-avx2-py312", "variants write it sm120", "did you mean sm120-avx2-py312?"),
        ("sm_90a-avx2-py312", "variants write it sm90", "did you mean sm90-avx2-py312?"),
        ("radeon-avx2-py312", "a card of AMD runs no CUDA", "did you mean cpu-avx2-py312?"),
        ("Arc A770-avx2-py312", "a card of Intel runs no CUDA", "did you mean cpu-avx2-py312?"),
        ("M3-avx2-py312", "its variants are those of mps", "did you mean mps-arm64-py312?"),
        ("K40", "is not a variant name", "an example: sm35-avx-py311"),
        ("P40-avx2", "the card Tesla P40 is sm61", "an example: sm61-avx-py311"),
        ("sm35-avx-avx-py311", "is not a variant name", "an example: sm35-avx-py311"),
    ],
)
def test_a_card_in_place_of_its_sm_is_known(name, said, hint):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert said in str(caught.value)
    assert caught.value.hint == hint
    assert "known: cpu" not in str(caught.value)


@pytest.mark.parametrize("last", ["py399", "sm35"])
def test_each_wrong_word_is_told_once(last):
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
def test_a_python_that_only_pytorch_itself_is_made_for_is_refused_with_the_reason(python, releases, near):
    """Releases: the names of the published wheels of torch on the Python index."""
    with pytest.raises(NotBuildableError, match=f"the farm builds nothing for {python}") as caught:
        Variant.parse(f"sm70-avx2-{python}")
    assert f"({releases}: " in caught.value.hint
    assert caught.value.hint.endswith(f"nearest that the farm builds for: {near}")


@pytest.mark.parametrize("name", ["", "sm35", "sm35-avx", "sm35-avx-py311-x", "--", "sm35 avx py311"])
def test_another_shape_is_explained(name):
    with pytest.raises(UsageError) as caught:
        Variant.parse(name)
    assert "<gpu>-<cpu>-<python>" in str(caught.value) or "unknown variant" in str(caught.value)


PIECES = st.sampled_from(["sm", "35", "-", "avx", "py", "311", "٣٥", "_", "cpu", "\x1b", "999999999"])


@given(st.text() | st.lists(st.text(max_size=6) | PIECES).map("".join) | st.lists(PIECES, min_size=3).map("-".join))
def test_arbitrary_text_is_read_or_refused_as_usage(text):
    try:
        variant = Variant.parse(text)
    except (UsageError, NotBuildableError):
        return
    assert str(variant) == text
