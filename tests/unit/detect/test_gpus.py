"""The GPU list and its look-up."""

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from farm import catalog
from farm.catalog import gpus as module
from farm.catalog.gpus import cards, find, gpus, nearest_names

NAMES = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "sm"), (NAMES["named"] | NAMES["traps"]).items())
def test_each_gpu_that_matters_has_its_sm(name, sm):
    assert {card.sm for card in find(name)} == {sm}


@pytest.mark.parametrize(("spelling", "name"), NAMES["spellings"].items())
def test_different_spellings_find_the_same_card(spelling, name):
    assert {card.name for card in find(spelling)} == {name}


@pytest.mark.parametrize(("line", "sm"), NAMES["chips"].items())
def test_the_chip_of_lspci_decides_between_cards_of_one_name(line, sm):
    """By the chips' names in pci.ids, and NVIDIA's list of compute capabilities."""
    assert {card.sm for card in find(line)} == {sm}


def test_names_sold_with_several_chips_are_marked():
    assert [card.sm for card in find("NVIDIA GeForce GT 730")] == ["sm21", "sm30", "sm35"]
    assert [card.sm for card in find("GTX 860M")] == ["sm30", "sm50"]


@pytest.mark.parametrize(
    "name", ["", " ", "🙂", "Radeon RX 6800", "Intel UHD Graphics 630", "nvidia", "gtx"]
)
def test_text_without_an_nvidia_gpu_gives_no_card(name):
    assert find(name) == ()


@pytest.mark.parametrize(("name", "company"), NAMES["makers"].items())
def test_cards_of_other_makers_are_named_as_such(name, company):
    assert module.maker(name) == company


def test_no_name_of_the_catalogue_is_taken_for_another_makers():
    assert [card.name for card in cards() if module.maker(card.name)] == []


def test_unknown_names_give_the_nearest():
    assert nearest_names("GeForce RTX 5071")[0] == "GeForce RTX 5070"
    assert "Tesla K40" in nearest_names("Tesla K40x")
    assert nearest_names("Telsa K40")[0] == "Tesla K40"
    assert nearest_names("") == []
    assert "GeForce RTX 5070" in {card.name for card in find("RTX 5070 series")}


@pytest.mark.parametrize(
    ("series", "begin"), [("RTX 50", "RTX 50"), ("rtx 50 series", "RTX 50"), ("GTX 10", "GTX 10")]
)
def test_the_name_of_a_series_gives_cards_that_begin_so(series, begin):
    near = nearest_names(series)
    assert len(near) == 3
    assert all(begin in name for name in near)


def test_every_sm_is_a_variant_or_too_old_with_a_reason():
    known = set(catalog.architectures().architectures)
    compiled = {
        f"sm{sm}" for toolkit in catalog.toolkits().values() for sm in toolkit.sm
    }  # sm_107, no variant yet
    assert {card.sm for card in cards()} <= known | set(gpus().too_old) | compiled
    assert known <= {card.sm for card in cards()}, "an SM without a single name"
    assert not known & set(gpus().too_old)
    assert all(len(old.why) > 40 for old in gpus().too_old.values())
    assert set(gpus().renamed.values()) <= known


def test_the_example_of_every_architecture_is_found():
    for sm, architecture in catalog.architectures().architectures.items():
        found = {card.sm for card in find(architecture.example)}
        assert sm in found, architecture.example


def test_every_fact_has_a_source_and_no_name_is_in_a_group_twice():
    assert {group.source for group in gpus().groups} == set(gpus().sources)
    for group in gpus().groups:
        assert len(group.gpus) == len(set(group.gpus)), group
    assert len(cards()) == len({(card.name, card.sm) for card in cards()})
    assert len({card.name for card in cards()}) > 400


def test_doubtful_sms_are_marked():
    assert [card.unconfirmed is None for card in find("Quadro M5000M")] == [False]
    assert [card.unconfirmed for card in find("Tesla K40")] == [None]


def test_names_of_different_sms_do_not_fall_together():
    """Strict keys are unambiguous but for names that are really the same."""
    by_key: dict[str, set[str]] = {}
    for card in cards():
        by_key.setdefault(module.KEYS[0](card.name), set()).add(card.name)
    assert {key: names for key, names in by_key.items() if len(names) > 1} == {}


CASES = st.sampled_from([str, str.lower, str.upper, str.title, str.swapcase])
BETWEEN = st.sampled_from(["", " ", "  ", "-", "_"])
BEFORE = st.sampled_from(
    ["", "NVIDIA ", "nvidia ", "NVIDIA Corporation ", "NVIDIA(R) ", "NVIDIA® "]
)
AFTER = st.sampled_from(
    ["", " 8GB", " 80 GB", "-40GB", " 24G", " (TM)", "™", " PCIe", "-SXM4-40GB", "-PCIE-16GB", " 80GB HBM3", " GPU",
     " Laptop GPU", " with Max-Q Design", " Mobile", " OEM", " (rev a1)"]
)  # fmt: skip


@pytest.mark.parametrize("between", ["", " ", "  ", "-", "_"])
@pytest.mark.parametrize("case", [str, str.lower, str.upper, str.title, str.swapcase])
def test_every_name_finds_itself_with_any_or_no_space(case, between):
    """Each of them: inputs drawn at random found DGX Spark, B300 SXM6 AC and GeForce 940A after
    months.
    """
    written = {case(card.name).replace(" ", between): card for card in cards()}
    assert [name for name, card in written.items() if card not in find(name)] == []


@given(st.sampled_from(cards()), BEFORE, CASES, BETWEEN, AFTER)
def test_every_name_finds_itself_however_it_is_written(card, before, case, between, after):
    written = before + case(card.name).replace(" ", between) + after
    assert card in find(written), written


@given(st.text(max_size=400))
@example("a/b [x]")  # which was looked up again without end
def test_any_text_can_be_searched_for_cards(text):
    for card in find(text):
        assert card in cards()
    assert len(nearest_names(text)) <= 3
