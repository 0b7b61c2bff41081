from typing import get_args

from farm.policy.rules import CheckId
from farm.wheel.checks.registry import CHECKS


def test_the_report_has_every_check_in_the_order_of_its_schema():
    assert tuple(CHECKS) == get_args(CheckId)
