"""What refusals of 2,000 random requests call the nearest, each planned as it is typed."""

import random

import pytest

from farm import catalog
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.variant import PYTHONS, Variant
from tests.unit.core.test_nearest_plans import CARDS, ROOT, VERSIONS, hold

REQUESTS = 2000
PARTS = 8
SEED = 20261128
PACKAGES = ("torch", "torch", "torchvision", "canary")
PLATFORMS = ("linux", "linux", "windows")
CHANNEL_OFTEN = 0.6
OPTION_OFTEN = 0.4


def random_requests(seed, number):
    """Requests of cards, CPUs, Pythons, packages, platforms, channels and versions."""
    draw = random.Random(seed)
    channels = list(load_matrix(ROOT).channels)
    for _ in range(number):
        variant = Variant(
            draw.choice(CARDS), draw.choice(list(catalog.cpu_levels())), draw.choice(PYTHONS)
        )
        options = {}
        for name, versions in VERSIONS.items():
            if draw.random() < OPTION_OFTEN:
                options[name] = Choice(draw.choice(list(versions())), "test")
        channel = draw.choice(channels) if draw.random() < CHANNEL_OFTEN else None
        yield BuildRequest(variant, draw.choice(PACKAGES), draw.choice(PLATFORMS), channel, options)


@pytest.mark.parametrize("part", range(PARTS))
def test_the_nearest_of_every_request_is_a_plan(part):
    requests = list(random_requests(SEED + part, REQUESTS // PARTS))
    followed = sum(hold(request) for request in requests)
    assert followed > len(requests) / 5
