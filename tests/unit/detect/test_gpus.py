"""The GPU list and its look-up."""

import pytest
from hypothesis import given
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


# Names from public lists and lspci that are in no table above, with NVIDIA's compute capability (developer.nvidia.com,
# CUDA GPUs and legacy GPUs; pci.ids for the chip of what those lists leave out).
FURTHER = """
52: Titan X Maxwell, GeForce GTX 980M, Quadro M6000 24GB, Tesla M40 24GB
50: Tesla M10, Quadro K620, GeForce GTX 745, GeForce MX130, GeForce 830M, NVS 810, GM108M [GeForce 940MX]
50: Quadro M600M
61: P106-090, P104-100, P102-100, Tesla P6, Quadro P520, GP107M [GeForce GTX 1050 Ti Mobile], GP102 [TITAN X]
61: GeForce GTX 1060 3GB
60: Tesla P100-PCIE-16GB
70: Tesla V100S-PCIE-32GB, Quadro GV100
75: NVIDIA CMP 30HX, CMP 50HX, GeForce GTX 1630, NVIDIA T400 4GB, T1200 Laptop GPU, Quadro T2000 with Max-Q Design
75: TU117GLM [Quadro T1000 Mobile]
75: TU116M [GeForce GTX 1660 Ti Mobile] (rev a1), GeForce MX550, Tesla T40 24GB
80: NVIDIA CMP 170HX, A800-SXM4-80GB, A100X, A30X, NVIDIA A800 40GB Active
86: NVIDIA CMP 90HX, CMP 70HX, NVIDIA A16, NVIDIA A2, NVIDIA RTX A400, GA107M [GeForce RTX 3050 Ti Mobile], A40-48Q
86: RTX A4500 Embedded
86: GA106 [GeForce RTX 3060 Lite Hash Rate]
89: NVIDIA L20, NVIDIA L2, RTX 4090 D, RTX 5880 Ada Generation, RTX 2000E Ada Generation
89: AD107M [GeForce RTX 4060 Max-Q / Mobile], RTX 4000 SFF Ada
90: NVIDIA H20, NVIDIA H800 PCIe, NVIDIA H100 NVL, H100 80GB HBM3 MIG 1g.10gb
103: NVIDIA B300 SXM6 AC
120: GeForce RTX 5090 D v2, RTX 5050 Laptop GPU, RTX PRO 5000 72GB Blackwell
120: RTX PRO 500 Blackwell Generation Laptop GPU
120: 01:00.0 VGA compatible controller: NVIDIA Corporation GB202 [GeForce RTX 5090] (rev a1)
35: Quadro K610M, GeForce 910M, GK208B [GeForce GT 730], GK208B [GeForce GT 710], GTX TITAN Z
37: 03:00.0 3D controller: NVIDIA Corporation GK210GL [Tesla K80] (rev a1)
30: GK107 [GeForce GT 730], GRID K520, GeForce GTX 690, Quadro K4200, NVS 510, Tesla K8, GK104M [GeForce GTX 860M]
21: GF108 [GeForce GT 730], NVS 315
87: Orin (nvgpu), Jetson Orin Nano Super Developer Kit
72: Jetson Xavier NX
62: Jetson TX2
110: NVIDIA Jetson T5000, DRIVE AGX Thor
52: GeForce GTX 960, NVIDIA GeForce GTX 965M, GeForce GTX 950, Quadro M4000, Quadro M5500, GeForce GTX 970M
52: Quadro M3000M, Quadro M2200, GTX 980 Ti, GRID M60-1Q, GRID M6-8Q, Quadro M4000M, GM206 [GeForce GTX 960]
50: GeForce GTX 960M, GTX 950M, Quadro M1000M, Quadro M1200, Quadro K1200, GeForce MX110, GeForce 920MX, Quadro M520
50: Quadro M620, GeForce GTX 750, GeForce 845M, Quadro M500M, GeForce 930MX, GeForce 930M, GRID M10-1B
50: GM107 [GeForce GTX 745], Quadro K2200M, GeForce GTX 850M
61: GeForce MX150, GeForce MX250, NVIDIA GeForce MX330, GeForce MX350, GeForce GT 1030, NVIDIA GeForce GT 1010
61: Quadro P400, Quadro P600, Quadro P620, Quadro P1000, Quadro P2000, Quadro P2200, Quadro P3000
61: Quadro P3200 with Max-Q Design, Quadro P4000, Quadro P4200, Quadro P5000, Quadro P5200, Quadro P6000, TITAN Xp
61: NVIDIA TITAN Xp COLLECTORS EDITION, P106-100, NVIDIA GeForce GTX 1060 6GB, GeForce MX230, Quadro P500
61: GP108M [GeForce MX150], GeForce GTX 1050 3GB, GP106 [GeForce GTX 1060 6GB], GeForce GTX 1070 Ti
61: GeForce GTX 1080 with Max-Q Design, GRID P4-8Q, GRID P6-4Q, NVIDIA TITAN Xp COLLECTOR'S EDITION
60: Quadro GP100, Tesla P100-SXM2-16GB, Tesla P100-PCIE-12GB, GP100GL [Tesla P100 PCIe 16GB]
70: NVIDIA TITAN V CEO Edition, Tesla V100-FHHL-16GB, Tesla V100-SXM3-32GB, Tesla V100-SXM2-16GB-N
70: GV100GL [Tesla V100 SXM2 16GB], GRID V100S-32Q, Tesla V100-SXM3-32GB-H, Tesla V100-PCIE-16GB
70: Tesla V100-SXM2-32GB-LS
75: NVIDIA GeForce GTX 1650 SUPER, GeForce GTX 1650 Ti with Max-Q Design, NVIDIA GeForce RTX 2060 12GB, RTX 2060 SUPER
75: GeForce RTX 2070 SUPER, TITAN RTX, Quadro RTX 3000, Quadro RTX 4000, Quadro RTX 5000 with Max-Q Design
75: NVIDIA T500, NVIDIA T550 Laptop GPU, NVIDIA T600, NVIDIA T1000 8GB, NVIDIA CMP 40HX, Tesla T10, GRID T4-16Q
75: TU104 [GeForce RTX 2080 SUPER], Quadro RTX 3000 with Max-Q Design, NVIDIA T600 Laptop GPU
75: GeForce GTX 1650 Mobile / Max-Q, TU117M [GeForce GTX 1650 Mobile / Max-Q], GeForce RTX 2080 with Max-Q Design
75: GRID RTX8000-48Q, NVIDIA T4G, NVIDIA T1200 Laptop GPU
80: NVIDIA A100-SXM-64GB, NVIDIA DRIVE-PG199-PROD, A100-PG509-200, NVIDIA A800 80GB PCIe, NVIDIA A800-SXM4-40GB
80: NVIDIA A30 MIG 1g.6gb, GA100 [A100 PCIe 40GB], A100-SXM4-80GB MIG 3g.40gb, A30-24C, NVIDIA A100-PCIE-40GB
80: GA100GL [A30 PCIe], NVIDIA A30-4-24C, NVIDIA A100-1-5CME, GRID A100D-7-80C, A100-4-20C, NVIDIA DGX A100
86: NVIDIA RTX A2000 12GB, NVIDIA RTX A1000, RTX A500 Laptop GPU, NVIDIA A10-24Q, NVIDIA A10M, RTX 3060 Laptop GPU
86: GeForce RTX 3080 Laptop GPU, GeForce RTX 3070 Ti Laptop GPU, RTX 3060 Ti, NVIDIA RTX A5500, RTX A3000 Laptop GPU
86: NVIDIA RTX A2000 8GB Laptop GPU, GeForce RTX 3050 6GB Laptop GPU, NVIDIA GeForce MX570, GeForce RTX 3080 12GB
86: RTX A5500 Laptop GPU, NVIDIA RTX A5000-24Q, RTX A1000 6GB Laptop GPU, GA104 [GeForce RTX 3060]
86: GeForce RTX 3060 12GB, GA102GL [A40], GeForce RTX 3070 Lite Hash Rate, GA107 [GeForce RTX 3050 8GB]
86: NVIDIA A10G-24Q, NVIDIA A2-16Q, NVIDIA A16-2B, RTX A3000 12GB Laptop GPU
87: NVIDIA Jetson AGX Orin Developer Kit, NVIDIA Jetson AGX Orin Industrial, Jetson Orin NX 16GB
87: NVIDIA Jetson Orin NX Engineering Reference Developer Kit, Jetson AGX Orin 64GB, NVIDIA IGX Orin
87: Jetson Orin Nano 8GB, AGX Orin, Orin NX
89: NVIDIA L4-24Q, NVIDIA L40G, GeForce RTX 4080 SUPER, GeForce RTX 4070 Ti SUPER, RTX 4060 Laptop GPU
89: RTX 4050 Laptop GPU, RTX 4090 Laptop GPU, NVIDIA RTX 3500 Ada Generation Laptop GPU
89: RTX 1000 Ada Generation Laptop GPU, NVIDIA RTX 500 Ada Generation Laptop GPU, RTX 5000 Ada Generation
89: RTX 4500 Ada Generation, RTX 4000 Ada Generation, NVIDIA L40-48Q, GeForce RTX 4070 SUPER
89: RTX 5000 Ada Generation Embedded GPU, NVIDIA RTX 4000 Ada Generation Laptop GPU, AD104GL [L4]
89: AD102 [GeForce RTX 4090], NVIDIA RTX 2000 Ada Generation Embedded GPU, GeForce RTX 4070 Laptop GPU
89: RTX 4060 Ti 16GB, NVIDIA RTX 3000 Ada Generation Laptop GPU, NVIDIA L20-48C, AD103 [GeForce RTX 4070 Ti SUPER]
89: GeForce RTX 4070 12GB
90: NVIDIA H100 64GB HBM2, H100-SXM5-80GB, NVIDIA H200 NVL, NVIDIA H20-3e, NVIDIA GH200 96GB HBM3, NVIDIA GH200 120GB
90: H200 141GB HBM3e, GH100 [H100 SXM5 80GB], NVIDIA H100 PCIe MIG 2g.20gb, NVIDIA H100 80GB HBM2e, NVIDIA H200-141C
90: NVIDIA H800 NVL, GH100 [H200 SXM 141GB], H100 SXM, NVIDIA H100-1-10C, NVIDIA H100XM-7-80C, HGX H100
90: NVIDIA H200-1-18CME, NVIDIA H100-1-10CME
100: NVIDIA B200, NVIDIA GB200, B200 180GB, GB100 [B200], NVIDIA B200 MIG 1g.23gb, HGX B200, DGX B200
103: NVIDIA GB300, B300 288GB
120: GeForce RTX 5070 Ti, GeForce RTX 5080, GeForce RTX 5060 Ti 16GB, GeForce RTX 5060, GeForce RTX 5050
120: RTX 5090 Laptop GPU, RTX 5070 Ti Laptop GPU, GeForce RTX 5080 Laptop GPU
120: NVIDIA RTX PRO 6000 Blackwell Server Edition, NVIDIA RTX PRO 4500 Blackwell, RTX PRO 4000 Blackwell SFF Edition
120: NVIDIA RTX PRO 2000 Blackwell, RTX PRO 1000 Blackwell Generation Laptop GPU
120: NVIDIA RTX PRO 3000 Blackwell Generation Laptop GPU, RTX PRO 6000 Blackwell Workstation Edition
120: NVIDIA RTX PRO 4500 Blackwell Server Edition, GB203 [GeForce RTX 5080], GB205 [GeForce RTX 5070] (rev a1)
120: NVIDIA GeForce RTX 5070 Laptop GPU, RTX PRO 5000 Blackwell Generation Laptop GPU, NVIDIA RTX PRO 4000 Blackwell
120: GB206 [GeForce RTX 5060 Ti], GeForce RTX 5060 Laptop GPU, GB202GL [RTX PRO 6000 Blackwell Workstation Edition]
120: RTX Pro 6000 96GB
121: GB20B [GB10]
110: NVIDIA Thor, NVIDIA Jetson AGX Thor Developer Kit, NVIDIA Jetson T4000, Jetson Thor
53: Jetson TX1, NVIDIA Jetson Nano Developer Kit, Jetson Nano 2GB, TX1
62: NVIDIA Jetson TX2 NX, Jetson TX2 Developer Kit
72: Jetson AGX Xavier, NVIDIA Jetson Xavier NX Developer Kit, AGX Xavier
35: GeForce GTX 780, Tesla K20Xm, Tesla K20m, Tesla K40m, Tesla K40t, Tesla K20s, Quadro K6000, GTX TITAN Black
35: GeForce 920M, Tesla K20c, Tesla K40s, Quadro K510M, GK110BGL [Tesla K40m], GK208BM [GeForce 920M]
35: GeForce GTX TITAN Black, GK110GL [Tesla K20Xm]
30: GRID K1, GRID K2, Tesla K10, Quadro K4000, GeForce GTX 660, GeForce GTX 650, Quadro K2000, GeForce GT 650M
30: GeForce GTX 760, Quadro K5100M, GeForce GTX 880M, GeForce GTX 780M, Quadro K3100M, Quadro K600
30: GK104 [GeForce GTX 670], GeForce GTX 660 Ti, GeForce GT 750M, GeForce GTX 645
20: GeForce GTX 480, GeForce GTX 580, Tesla M2090, Tesla C2075, Quadro 4000, Tesla C2050, Quadro 5000
21: Quadro 2000, GeForce GTX 460, NVS 4200M, GeForce GT 430, GeForce GTX 550 Ti
"""


@pytest.mark.parametrize(
    ("sm", "name"),
    [(line.split(":")[0], name) for line in FURTHER.split("\n") if line for name in line.split(": ", 1)[1].split(", ")],
)
def test_further_names(sm, name):
    assert {card.sm for card in find(name)} == {f"sm{sm}"}


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
def test_no_text_makes_it_fail(text):
    for card in find(text):
        assert card in cards()
    assert len(nearest_names(text)) <= 3
