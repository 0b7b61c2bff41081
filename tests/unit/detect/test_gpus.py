"""The GPU list and its look-up."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm import catalog
from farm.catalog import gpus as module
from farm.catalog.gpus import cards, find, gpus, nearest_names

# What the guides and logs that the farm was made for name, with NVIDIA's compute capability. L40S: one of them says
# 9.0; it is an Ada card (AD102), 8.9. Orin: one of them puts it under 11.0; it is 8.7.
NAMED = {
    "Tesla K40c": "sm35", "K40": "sm35", "K80": "sm37", "RTX 5070": "sm120", "RTX 5090": "sm120", "DGX Spark": "sm121",
    "NVIDIA DRIVE Thor": "sm110", "B300": "sm103", "B100": "sm100", "B200": "sm100", "H100": "sm90", "H200": "sm90",
    "L40S": "sm89", "RTX 4090": "sm89", "RTX 4080": "sm89", "RTX 4070 Ti": "sm89", "RTX 4070": "sm89",
    "RTX 4060 Ti": "sm89", "L4": "sm89", "L40": "sm89", "RTX 3090": "sm86", "RTX 3090 Ti": "sm86",
    "RTX 3080 Ti": "sm86", "A5000": "sm86", "A40": "sm86", "A100 (40GB)": "sm80", "A100 80GB": "sm80", "A30": "sm80",
    "T4": "sm75", "RTX 2080 Ti": "sm75", "RTX 2080 Super": "sm75", "RTX 2070": "sm75", "Quadro RTX 8000": "sm75",
    "GTX 1070": "sm61", "GTX 1080": "sm61", "GTX 1080 Ti": "sm61", "Orin": "sm87",
}  # fmt: skip

# Where a name misleads.
TRAPS = {
    "Tesla K20": "sm35", "GTX 780 Ti": "sm35", "GTX TITAN": "sm35", "GTX 770": "sm30", "GTX 680": "sm30",
    "GTX 750 Ti": "sm50", "GTX TITAN X": "sm52", "NVIDIA TITAN X (Pascal)": "sm61", "TITAN V": "sm70", "MX450": "sm75",
    "RTX 2050": "sm86", "MX570": "sm86", "GeForce RTX 3050 A Laptop GPU": "sm89", "Quadro RTX 6000": "sm75",
    "Quadro 6000": "sm20", "RTX A6000": "sm86", "RTX 6000 Ada Generation": "sm89", "RTX PRO 6000 Blackwell": "sm120",
    "Jetson Nano": "sm53", "Jetson Orin Nano": "sm87", "Jetson AGX Thor": "sm110", "GB10": "sm121", "GB200": "sm100",
    "GB300": "sm103", "GH200 480GB": "sm90", "Quadro K5000": "sm30", "Quadro K5200": "sm35", "Quadro K2200": "sm50",
    "A10G": "sm86", "T4G": "sm75",
}  # fmt: skip

# As drivers, lspci and people write them.
SPELLINGS = {
    "NVIDIA GeForce GTX 1080 Ti": "GeForce GTX 1080 Ti",
    "gtx1080ti": "GeForce GTX 1080 Ti",
    "1080 TI": "GeForce GTX 1080 Ti",
    "GeForce(TM) GTX 1080 Ti (11 GB)": "GeForce GTX 1080 Ti",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100 80GB PCIe MIG 1g.10gb": "A100",
    "GRID A100-10C": "A100",
    # vGPUs, as NVIDIA's Virtual GPU Software User Guide lists them; a driver in a guest prints them so.
    "GRID A100D-40C": "A100D",
    "GRID V100DX-32C": "V100DX",
    "GRID P100X-16Q": "P100X",
    "GRID P40-2B4": "Tesla P40",
    "NVIDIA H100XM-80C": "H100XM",
    "NVIDIA H100L-94C": "H100L",
    "NVIDIA RTX6000-Ada-48Q": "RTX 6000 Ada",
    "NVIDIA RTXA6000-48Q": "RTX A6000",
    "GRID RTX6000-24Q": "Quadro RTX 6000",
    "NVIDIA L40S-48Q": "L40S",
    "GRID M60-8Q": "Tesla M60",
    "NVIDIA RTX Pro 6000 Blackwell DC-48Q": "RTX PRO 6000 Blackwell",
    "H100 PCIe": "H100",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA GH200 144G HBM3e": "GH200",
    "NVIDIA GB10": "GB10",
    "Tesla V100-DGXS-32GB": "Tesla V100",
    "NVIDIA GeForce RTX 3050Ti Laptop GPU": "GeForce RTX 3050 Ti",
    "GeForce GTX 1070 with Max-Q Design": "GeForce GTX 1070",
    "NVIDIA RTX 2000 Ada Generation Laptop GPU": "RTX 2000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "RTX PRO 6000 Blackwell",
    "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super": "Jetson Orin Nano Super",
    "01:00.0 3D controller [0302]: NVIDIA Corporation GM107GLM [Quadro M2000M] [10de:13b0] (rev a2)": "Quadro M2000M",
    "NVIDIA Corporation GA102 [GeForce RTX 3090] (rev a1)": "GeForce RTX 3090",
    "GPU 0: Tesla K40m (UUID: GPU-5d0e5a2c-1e0b-4b5e-a27a-1f0c0d8e9b11)": "Tesla K40m",
}


@pytest.mark.parametrize(("name", "sm"), (NAMED | TRAPS).items())
def test_each_gpu_that_matters_has_its_sm(name, sm):
    assert {card.sm for card in find(name)} == {sm}


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_spellings(spelling, name):
    assert {card.name for card in find(spelling)} == {name}


@pytest.mark.parametrize(
    ("line", "sm"),
    [
        ("GK208B [GeForce GT 730]", "sm35"),
        ("GK107 [GeForce GT 730]", "sm30"),
        ("GF108 [GeForce GT 730]", "sm21"),
        ("GM108M [GeForce 940MX]", "sm50"),
        ("GP107M [GeForce GTX 1050 Ti Mobile]", "sm61"),
        ("AD107M [GeForce RTX 4060 Max-Q / Mobile]", "sm89"),
        ("TU117M [GeForce GTX 1650 Mobile / Max-Q]", "sm75"),
        ("03:00.0 3D controller: NVIDIA Corporation GK210GL [Tesla K80] (rev a1)", "sm37"),
    ],
)
def test_the_chip_of_lspci_decides_between_cards_of_one_name(line, sm):
    """By the chips' names in pci.ids, and NVIDIA's list of compute capabilities."""
    assert {card.sm for card in find(line)} == {sm}


def test_names_sold_with_several_chips_say_so():
    assert [card.sm for card in find("NVIDIA GeForce GT 730")] == ["sm21", "sm30", "sm35"]
    assert [card.sm for card in find("GTX 860M")] == ["sm30", "sm50"]


@pytest.mark.parametrize("name", ["", " ", "🙂", "Radeon RX 6800", "Intel UHD Graphics 630", "nvidia", "gtx"])
def test_what_is_no_nvidia_gpu_is_not_found(name):
    assert find(name) == ()


@pytest.mark.parametrize(
    ("name", "company"),
    [
        ("RX 7900 XTX", "AMD"),
        ("AMD Instinct MI300X", "AMD"),
        ("Radeon VII", "AMD"),
        ("Arc A770", "Intel"),
        ("Intel(R) Iris(R) Xe Graphics", "Intel"),
        ("Apple M3 Pro", "Apple"),
        ("RTX 9999", None),
        ("NVIDIA GeForce RTX 3090", None),
        ("Quadro M2000M", None),
    ],
)
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


@pytest.mark.parametrize(("series", "begin"), [("RTX 50", "RTX 50"), ("rtx 50 series", "RTX 50"), ("GTX 10", "GTX 10")])
def test_the_name_of_a_series_gives_cards_that_begin_so(series, begin):
    near = nearest_names(series)
    assert len(near) == 3
    assert all(begin in name for name in near)


def test_every_sm_is_a_variant_or_too_old_with_a_reason():
    known = set(catalog.architectures().architectures)
    compiled = {
        f"sm{sm}" for toolkit in catalog.toolkits().values() for sm in toolkit.sm
    }  # sm_107, not a variant's yet
    assert {card.sm for card in cards()} <= known | set(gpus().too_old) | compiled
    assert known <= {card.sm for card in cards()}, "an SM without a single name"
    assert not known & set(gpus().too_old)
    assert all(len(old.why) > 40 for old in gpus().too_old.values())
    assert set(gpus().renamed.values()) <= known


def test_the_example_of_every_architecture_is_found():
    for sm, architecture in catalog.architectures().architectures.items():
        found = {card.sm for card in find(architecture.example)}
        assert sm in found, architecture.example


def test_every_fact_has_a_source_and_no_name_stands_twice_in_a_group():
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
BEFORE = st.sampled_from(["", "NVIDIA ", "nvidia ", "NVIDIA Corporation ", "NVIDIA(R) ", "NVIDIA® "])
AFTER = st.sampled_from(
    ["", " 8GB", " 80 GB", "-40GB", " 24G", " (TM)", "™", " PCIe", "-SXM4-40GB", "-PCIE-16GB", " 80GB HBM3", " GPU",
     " Laptop GPU", " with Max-Q Design", " Mobile", " OEM", " (rev a1)"]
)  # fmt: skip


@pytest.mark.parametrize("between", ["", " ", "  ", "-", "_"])
@pytest.mark.parametrize("case", [str, str.lower, str.upper, str.title, str.swapcase])
def test_every_name_finds_itself_with_any_or_no_space(case, between):
    """Each of them: inputs drawn at random found DGX Spark, B300 SXM6 AC and GeForce 940A after months."""
    written = {case(card.name).replace(" ", between): card for card in cards()}
    assert [name for name, card in written.items() if card not in find(name)] == []


@given(st.sampled_from(cards()), BEFORE, CASES, BETWEEN, AFTER)
def test_every_name_finds_itself_however_it_is_written(card, before, case, between, after):
    written = before + case(card.name).replace(" ", between) + after
    assert card in find(written), written


@given(st.text(max_size=400))
@example("a/b [x]")  # which was looked up again without end
def test_no_text_makes_it_fail(text):
    for card in find(text):
        assert card in cards()
    assert len(nearest_names(text)) <= 3
