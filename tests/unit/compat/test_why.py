"""`farm why` from the command line to its answer, with this project's own channels."""

import json
from pathlib import Path

import pytest

from farm.cli.main import main

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def why(capsys):
    def ask(*words):
        code = main(["--project", str(PROJECT), "why", "--package", "torch", *words])
        return code, capsys.readouterr()

    return ask


def rules(out):
    return {reason["rule"]: reason for reason in json.loads(out)["reasons"]}


def test_the_rtx_5070_log(why):
    code, said = why(
        *("--variant", "sm120-avx2-py311", "--platform", "windows", "--torch", "2.7", "--cuda", "12.3"),
        *("--gpu", "NVIDIA GeForce RTX 5070", "--msvc", "2022", "--arch-list", "8.9", "--json"),
    )
    found = rules(said.out)
    assert code == 3
    assert {"cuda-sm", "arch-list-gpu", "cuda-msvc"} <= set(found)
    assert "NVIDIA GeForce RTX 5070 (sm_120)" in found["arch-list-gpu"]["text"]
    assert json.loads(said.out)["nearest"] == "--cuda 12.8 --arch-list '12.0'"


def test_a_warning_does_not_forbid(why):
    code, said = why("--variant", "sm35-avx-py311", "--gpu", "Tesla K40c", "--driver", "470", "--json")
    assert code == 0
    assert json.loads(said.out)["buildable"] is True
    assert rules(said.out)["driver-limited"]["severity"] == "warning"


def test_a_version_by_its_beginning(why):
    code, said = why("--variant", "sm35-avx-py311", "--cudnn", "8.9", "--json")
    assert code == 3
    assert "cuDNN 8.9.7" in rules(said.out)["cudnn-sm"]["text"]


def test_the_table_reads_from_cause_to_cure(why):
    words = ("--channel", "kepler-2.0.1", "--variant", "sm35-avx-py311", "--numpy", "2.0.2", "--flash-attention")
    code, said = why(*words)
    assert code == 3
    assert said.out.startswith("torch for sm35-avx-py311 on linux cannot be built\n")
    assert said.out.endswith("nearest that the rules allow: --numpy 1.26.4 --no-flash-attention\n")


def test_a_card_with_several_chips_takes_the_one_of_the_variant(why):
    assert why("--variant", "sm35-avx-py311", "--gpu", "GT 730")[0] == 0
    code, said = why("--variant", "sm52-avx-py311", "--gpu", "GT 730")
    assert code == 2
    assert "was sold with several chips" in said.err


@pytest.mark.parametrize("name", ["sm_35", "sm35", "3.5", "35"])
def test_a_card_by_its_sm(why, name):
    assert why("--variant", "sm35-avx-py311", "--gpu", name)[0] == 0
    assert why("--variant", "sm75-avx-py311", "--gpu", name)[0] == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "RTX 9999"), "no card of the catalogue"),
        (("--msvc", "2021"), "no MSVC version"),
        (("--gpu", "RX 7900 XTX"), "is a card of AMD: it runs no CUDA"),
        (("--numpy", ">=2"), "is not a version"),
        (("--driver", "new"), "is not a version"),
    ],
)
def test_what_cannot_be_read_is_a_usage_error(why, words, says):
    code, said = why("--variant", "sm35-avx-py311", *words)
    assert code == 2
    assert says in said.err
    assert "Traceback" not in said.err
