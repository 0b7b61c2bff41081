"""What every engine promises, asked of Slurm: the tests are those of tests/e2e/dispatch."""

import pytest

from farm.engines.slurm import SlurmEngine
from tests.e2e.dispatch.test_conformance import *  # noqa: F403
from tests.e2e.dispatch.test_conformance import start  # noqa: F401 a fixture, which `*` brings as well


@pytest.fixture
def engine(slurm_engine: SlurmEngine) -> SlurmEngine:
    return slurm_engine


@pytest.fixture
def image(tree: str) -> str:
    return tree
