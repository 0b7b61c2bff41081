import pytest

from farm.plan.compat import Reason, Stack, reasons
from farm.plan.variant import Variant


@pytest.fixture
def stack():
    """A stack by variant name and fields; Linux and no base image unless said otherwise."""

    def make(variant, platform="linux", **fields):
        return Stack(package="torch", variant=Variant.parse(variant), platform=platform, **fields)

    return make


@pytest.fixture
def told():
    """The one reason of a rule; fails when the rule says nothing."""

    def find(stack, rule) -> Reason:
        found = [reason for reason in reasons(stack) if reason.rule == rule]
        assert found, f"{rule} says nothing; said: {[reason.rule for reason in reasons(stack)]}"
        return found[0]

    return find


@pytest.fixture
def silent():
    """No reason of the rule."""

    def check(stack, rule) -> bool:
        return rule not in {reason.rule for reason in reasons(stack)}

    return check
