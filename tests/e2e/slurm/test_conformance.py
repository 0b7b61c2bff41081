"""What every engine promises, asked of Slurm: the tests are those of tests/e2e/dispatch."""

import pytest

from farm.engines.slurm import SlurmEngine
from tests.e2e.dispatch.test_conformance import *  # noqa: F403
from tests.e2e.dispatch.test_conformance import start  # noqa: F401 a fixture, which `*` brings as well

# Of a swarm alone.
del test_a_capability_that_no_runner_has_is_waited_for_and_said, test_a_gpu_is_lent_to_one_job_at_a_time  # noqa: F821


@pytest.fixture
def engine(slurm_engine: SlurmEngine) -> SlurmEngine:
    return slurm_engine


@pytest.fixture
def image(tree: str) -> str:
    return tree
