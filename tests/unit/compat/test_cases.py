"""What people really asked for and lost days over (`cases.yaml`)."""

from pathlib import Path

import pytest
import yaml

from farm import catalog
from farm.plan.compat.compilers import parse_msvc
from farm.plan.compat.nearest import solve
from farm.plan.compat.rules import check

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())


@pytest.mark.parametrize("name", CASES)
def test_each_recorded_case_gets_its_answer(stack, reason_of, silent, name):
    case = CASES[name]
    variant, fields = case["ask"]
    fields |= {
        k: kind(fields[k])
        for k, kind in (("switches", frozenset), ("components", tuple))
        if k in fields
    }
    build = stack(variant, fields.pop("platform", "linux"), **fields)
    if "not" in case:
        assert silent(build, case["not"])
        return
    reason, (severity, *nearest) = reason_of(build, case["rule"]), case["is"]
    assert [text for text in case.get("says", ()) if text not in reason.text + reason.fact] == []
    assert reason.severity == severity
    assert not nearest or [reason.nearest] == nearest
    assert not {"--arch-list", "--driver", "--gcc", "--msvc", "--numpy"} & set(
        str(reason.nearest).split()
    )  # of `why`


def test_the_whole_rtx_5070_log_needs_two_changes(stack, reason_of):
    build = stack(
        "sm120-avx2-py311",
        "windows",
        cuda="12.3",
        torch="2.7.1",
        gpu=120,
        arch_list="8.9",
        msvc=parse_msvc("2022"),
    )
    errors = {reason.rule for reason in check(build) if reason.severity == "error"}
    assert errors == {"cuda-sm", "arch-list-gpu", "cuda-msvc"}
    assert (
        reason_of(build, "cuda-msvc").nearest == "--cuda 12.8"
    )  # an older compiler would leave the card without code
    solved = solve(build)
    assert (solved.cuda, solved.arch_list, solved.msvc, solved.torch) == (
        "12.8",
        "12.0",
        1944,
        "2.7.1",
    )


def test_the_demo_build_has_no_errors_or_warnings(stack):
    build = stack("sm35-avx-py311", base="debian-bookworm", toolkit="debian", cuda="11.8")
    assert check(build) == []
    assert solve(build) == build


def test_the_kepler_stack_has_no_errors(stack):
    build = stack(
        "kepler-avx-py311",
        base="debian-bookworm",
        toolkit="nvidia",
        cuda="11.7",
        torch="2.0.1",
        cudnn="8.7.0",
    )
    assert check(build) == []


def test_suggestions_only_change_what_was_asked(stack, reason_of):
    """A stack without cuDNN, driver and compiler gets none in a suggestion."""
    nearest = reason_of(stack("sm35-avx-py311", cuda="12.6", torch="2.9.1"), "cuda-sm").nearest
    assert set(nearest.split()[::2]) <= {"--cuda", "--torch"}


@pytest.mark.parametrize("name", catalog.architectures().architectures)
def test_every_branch_around_a_cards_own_is_judged(stack, name):
    """Too old below the first branch that knows the card, an early one below the one that guides
    ask for, else fine.
    """
    card = catalog.architectures().architectures[name]
    first, wanted, last = (
        card.first_driver or 0,
        card.wanted_driver or 0,
        card.last_driver or 10_000,
    )
    for branch in {first - 1, first, wanted - 1, wanted, wanted + 1, last, last + 30} & set(
        range(300, 1000)
    ):
        cpu = "armv9" if name in {"sm53", "sm62", "sm72", "sm87", "sm110", "sm121"} else "avx2"
        rules = {
            reason.rule for reason in check(stack(f"{name}-{cpu}-py311", driver=f"{branch}.10"))
        }
        assert ("driver-gpu-old" in rules) == (branch < first), branch
        assert ("driver-gpu-early" in rules) == (first <= branch < wanted), branch
        assert ("driver-gpu" in rules) == (branch > last), branch


def test_ptx_of_a_set_may_meet_the_driver_of_its_newest_card(stack, silent):
    """580 is the last driver for Volta, not for Turing, which the set has too."""
    newest = [name for name, cuda in catalog.toolkits().items() if cuda.driver("linux")][-1]
    assert not silent(stack("sm70-avx2-py311", cuda=newest, ptx=True), "ptx-driver")
    assert silent(stack("legacy-avx2-py311", cuda=newest, ptx=True), "ptx-driver")
