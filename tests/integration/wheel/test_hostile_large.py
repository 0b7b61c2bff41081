"""The hostile wheels that take seconds each: refused in bounded memory and time, as those of
tests/unit/wheel.
"""

import pytest

from tests.unit.wheel.hostile_corpus import LARGE
from tests.unit.wheel.test_hostile_corpus import attempt, hold, kit  # noqa: F401


@pytest.mark.parametrize("name", sorted(LARGE))
def test_hostile(name, kit, attempt):  # noqa: F811
    hold(name, kit, attempt)
