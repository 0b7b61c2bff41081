"""Which smoke test each of the farm's own recipes asks for."""

import pytest

from farm.plan.recipe import names, recipe


@pytest.mark.parametrize("name", names())
def test_every_torch_gets_the_whole_probe(name):
    """A recipe that forgets it would be published after a mere import."""
    expected = "torch" if recipe(name).package in ("torch", "canary") else None
    assert recipe(name).smoke.interface == expected
