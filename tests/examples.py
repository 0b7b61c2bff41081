"""How many inputs a property test draws: its own number, scaled by the profile that FARM_HYPOTHESIS
chose.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import settings

USUAL = 60  # of a test that asks for no number of its own


def examples(count: int, **others: Any) -> Callable[..., Any]:
    """`@settings(max_examples=count)` that a profile scales: a number that stands there as it is
    would hold in all.
    """
    return settings(max_examples=max(count * settings.default.max_examples // USUAL, 1), **others)
