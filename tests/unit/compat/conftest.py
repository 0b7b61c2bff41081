from pathlib import Path

import pytest

from farm.cli.main import main
from farm.plan.compat.nearest import advise
from farm.plan.compat.reason import Reason
from farm.plan.compat.rules import check
from farm.plan.compat.stack import Stack
from farm.plan.variant import Variant

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def farm(capsys):
    """Exit code and output of a command in this repository."""

    def run(*words):
        code = main(["--project", str(PROJECT), *words])
        return code, capsys.readouterr()

    return run


@pytest.fixture
def stack():
    """A stack by variant name and fields; Linux and no base image unless said otherwise."""

    def make(variant, platform="linux", **fields):
        return Stack(package="torch", variant=Variant.parse(variant), platform=platform, **fields)

    return make


@pytest.fixture
def reason_of():
    """The one reason of a rule; fails when the rule says nothing."""

    def find(stack, rule) -> Reason:
        found = [reason for reason in advise(stack, check(stack)) if reason.rule == rule]
        assert found, f"{rule} says nothing; said: {[reason.rule for reason in check(stack)]}"
        return found[0]

    return find


@pytest.fixture
def silent():
    """No reason of the rule."""

    return lambda stack, rule: rule not in {reason.rule for reason in check(stack)}
