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
        ["--variant", "cpu-avx2-py311"],
    ],
)
def test_plan_says_nothing_of_upstream_where_its_wheel_does_not_do(capsys, words):
    assert main(["plan", *words]) == 0
    assert "PyTorch's own wheel of" not in capsys.readouterr().out


def test_submit_of_a_needless_build_wants_to_be_told(capsys):
    assert main(["submit", "--variant", "sm61-avx2-py311"]) == 2
    output, errors = capsys.readouterr()
    assert PIP in errors
    assert "--anyway" in errors
    assert output == ""
