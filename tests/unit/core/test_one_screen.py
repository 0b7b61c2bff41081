"""`farm plan` for a person is one screen, and its next command is the same plan."""

import json
import shlex

import pytest

from farm.cli.main import main

BUILDS = [
    "--variant sm35-avx-py311",
    "--variant sm61-avx2-py312 --torch 2.15",
    "--variant sm70-avx2-py310 --ptx --blas openblas",
    "--variant legacy-avx-py311 --without kineto",
    "--variant sm87-armv8_2-py310",
    "--variant sm120-avx2-py312 --platform windows",
    "--variant mps-arm64-py313 --platform macos",
    "--variant sm61-avx2-py311 --package torchvision --channel debian-2.6.0",
    "--variant cpu-avx-py311 --package canary --rebuild 2",
    "--variant cpu-avx512bf16-py311",
]


@pytest.mark.parametrize("words", BUILDS)
def test_a_plan_fits_a_screen_and_its_next_command_is_the_same_plan(words, capsys):
    assert main(["plan", *words.split()]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    copied = [line for line in lines if line.strip().startswith(("pip ", "farm ", "next "))]
    assert len(lines) <= 24, out
    assert [line for line in lines if len(line) > 80 and line not in copied] == []
    typed = next(line for line in lines if line.strip().startswith("next")).split("farm submit ")[1]
    digests = []
    for asked in (words.split(), shlex.split(typed)):
        assert main(["plan", *asked, "--json"]) == 0
        digests.append(json.loads(capsys.readouterr().out)["digest"])
    assert digests[0] == digests[1]


def test_all_prints_the_reasons_and_where_values_come_from(capsys):
    assert main(["plan", "--variant", "sm35-avx-py311", "--all"]) == 0
    out = capsys.readouterr().out
    assert "FBGEMM (needs AVX2)" in out
    assert "channel debian-2.6.0" in out
    assert "the PTX is dead weight" in out  # a note


def test_the_same_build_is_not_what_to_build_instead(capsys):
    assert main(["plan", "--variant", "sm35-avx-py311"]) == 0
    assert "farm plan --variant sm35-avx-py311" not in capsys.readouterr().out
