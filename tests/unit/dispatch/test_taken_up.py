"""A build that a new controller takes up and finds lost."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.engines.base import Observation
from farm.engines.swarm import SwarmEngine
from farm.errors import InfrastructureError
from farm.pipeline.mainjob import MainJob
from farm.pipeline.report import Outcomes, Silent
from farm.pipeline.run import request_for
from farm.pipeline.workspace import Workspace, open_journal
from farm.plan import Selectors, resolve
from farm.settings import load_settings
from farm.variant import Variant

ROOT = Path(__file__).parents[3]


class Lost:
    """An engine whose node went down while nobody looked."""

    name = "swarm"
    traits = SwarmEngine.traits

    def __init__(self):
        self.submitted, self.released = [], []

    def observe(self, _handle):
        return Observation("lost", why="node two is down")

    def release(self, handle):
        self.released.append(handle)

    def submit(self, job):
        self.submitted.append(job)
        raise AssertionError("nothing is to be submitted here")


def test_the_dispatcher_decides_where_it_is_tried_again(tmp_path):
    """Not the job itself: it would go to the same runner, past quarantine, exclusion and the count of tries."""
    workspace = Workspace(tmp_path, load_settings(ROOT).model_copy(update={"artifacts": str(tmp_path)}), Silent())
    plan = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), package="canary"))
    engine = Lost()
    with open_journal(workspace.project, workspace.settings) as journal:
        run = journal.create_run(
            plan.digest, request_for(plan, until="build", on="swarm", detached=True), json.loads(plan.to_json())
        )
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "two")
        journal.set_handle(attempt.id, "service")
        journal.set_state(attempt.id, "running")
        backend = SimpleNamespace(engine=engine)
        job = MainJob(workspace, plan, journal, run, Outcomes(run=run.id), lambda: backend, runner="two")
        with pytest.raises(InfrastructureError, match="the build was lost: node two is down"):
            job.steps("build")
        (one,) = journal.jobs(run.id)[0].attempts
    assert (one.state, one.result, one.why) == ("lost", "infra", "node two is down")
    assert (engine.submitted, engine.released) == ([], ["service"])
