"""What a person is told first: that PyTorch's own wheel runs, where it does."""

import pytest

from farm.cli.main import main

PIP = "pip install torch==2.14.1 --index-url https://download.pytorch.org/whl/cu126"


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_plan_begins_with_the_wheel_that_makes_the_build_needless(capsys, platform):
    assert main(["plan", "--variant", "sm61-avx2-py311", "--platform", platform]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("PyTorch's own wheel of torch 2.14.1")
    assert second.strip() == PIP


@pytest.mark.parametrize(
    "words",
    [
        # no wheel of PyTorch has code for it
        ["--variant", "sm35-avx-py311"],
        # upstream does not test such CPUs
        ["--variant", "sm61-avx-py311"],
        # an option that upstream's wheel does not have
        ["--variant", "sm61-avx2-py311", "--blas", "openblas"],
        ["--variant", "sm61-avx2-py311", "--package", "canary"],
        ["--variant", "cpu-avx-py311"],
        ["--variant", "cpu-avx2-py311", "--blas", "openblas"],
    ],
)
def test_plan_says_nothing_of_upstream_where_its_wheel_does_not_do(capsys, words):
    assert main(["plan", *words]) == 0
    assert "PyTorch's own wheel of" not in capsys.readouterr().out


def test_an_option_from_the_environment_counts_as_one_of_the_command_line(capsys, monkeypatch):
    monkeypatch.setenv("FARM_BLAS", "openblas")
    assert main(["plan", "--variant", "sm61-avx2-py311"]) == 0
    assert "PyTorch's own wheel of" not in capsys.readouterr().out


def test_submit_of_a_needless_build_asks_first(capsys):
    assert main(["submit", "--variant", "sm61-avx2-py311"]) == 2
    output, errors = capsys.readouterr()
    assert PIP in errors
    assert "--anyway" in errors
    assert output == ""


def test_a_machine_without_a_card_is_offered_the_wheel_for_cpus(capsys):
    assert main(["plan", "--variant", "cpu-avx2-py311"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("PyTorch's own wheel of torch ")
    assert first.endswith(" for CPUs runs there:")
    assert second.strip().endswith("--index-url https://download.pytorch.org/whl/cpu")


def test_submit_of_a_pattern_with_needless_builds_asks_first(capsys):
    """sm35 has no wheel of PyTorch's own, sm61 has one."""
    assert main(["submit", "--variant", "sm35-avx2-py311", "--variant", "sm61-avx2-py311"]) == 2
    output, errors = capsys.readouterr()
    assert "sm61-avx2-py311" in errors
    assert "sm35" not in errors
    assert "for 1 of 2 builds" in errors
    assert "--anyway builds them all" in errors
    assert output == ""


def test_a_pattern_of_a_named_channel_is_not_asked_about(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("farm.cli.submit.confirm", lambda *_: bool(asked.append(1)))
    words = ["submit", "--variant", "sm60-avx2-py3*", "--variant", "sm61-avx2-py311"]
    main([*words, "--channel", "legacy-2.14.1"])
    assert "PyTorch's own" not in capsys.readouterr().err
    assert asked
