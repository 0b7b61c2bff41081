"""A build that a new controller takes up and finds lost."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError, NoRunnerError
from farm.engines.base import Observation
from farm.engines.swarm import SwarmEngine
from farm.engines.transfer import LocalDiskError, RefusedOutputError
from farm.plan.settings import load_settings
from farm.run.build_step import EngineUnreachableError, StillRunningError
from farm.run.mainjob import MainJob
from farm.run.run import request_for
from farm.run.workspace import Outcomes, Watcher, Workspace, open_journal
from tests.plans import plan_of

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
    """Not the job itself: it would go to the same runner, past quarantine, exclusion and the count
    of tries.
    """
    workspace = Workspace(
        tmp_path, load_settings(ROOT).model_copy(update={"artifacts": str(tmp_path)}), Watcher()
    )
    plan = plan_of("cpu-avx-py311", "canary")
    engine = Lost()
    with open_journal(workspace.project, workspace.settings) as journal:
        run = journal.create_run(
            plan.digest,
            request_for(plan, until="build", on="swarm", detached=True),
            json.loads(plan.to_json()),
        )
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "two")
        journal.set_handle(attempt.id, "service")
        journal.set_state(attempt.id, "running")
        backend = SimpleNamespace(engine=engine)
        job = MainJob(
            workspace,
            plan,
            journal,
            run,
            Outcomes(run=run.id),
            lambda _runner: backend,
            runner="two",
        )
        with pytest.raises(InfrastructureError, match="the build was lost: node two is down"):
            job.steps("build")
        (one,) = journal.jobs(run.id)[0].attempts
    assert (one.state, one.result, one.why) == ("lost", "infra", "node two is down")
    assert (engine.submitted, engine.released) == ([], ["service"])


class Full(Lost):
    """An engine with a build that has ended; the first times it is collected, this machine's disk
    is full.
    """

    def __init__(self, times, error=None):
        super().__init__()
        self.left, self.collected = times, 0
        self.error = error or LocalDiskError("run/built.part/x.whl: No space left on device")

    def observe(self, _handle):
        return Observation("done", exit_code=0)

    def logs(self, _handle, **_since):
        yield b"built\n"

    def collect(self, _handle, dest, _max_bytes):
        self.collected += 1
        (dest / "wheel").mkdir(parents=True)
        (dest / "wheel" / "x.whl").write_bytes(b"PK")
        if self.left:
            self.left -= 1
            raise self.error


@pytest.fixture
def taken(tmp_path):
    """A function that takes a build up which an engine has; and the journal's view of its
    attempt.
    """
    workspace = Workspace(
        tmp_path, load_settings(ROOT).model_copy(update={"artifacts": str(tmp_path)}), Watcher()
    )
    plan = plan_of("cpu-avx-py311", "canary")
    with open_journal(workspace.project, workspace.settings) as journal:
        request = request_for(plan, until="build", on="swarm", detached=True)
        run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "two")
        journal.set_handle(attempt.id, "service")
        journal.set_state(attempt.id, "running")

        def go(engine):
            backend = SimpleNamespace(engine=engine, max_output=1 << 30)
            MainJob(
                workspace,
                plan,
                journal,
                run,
                Outcomes(run=run.id),
                lambda _runner: backend,
                runner="two",
            ).steps("build")

        yield go, lambda: journal.jobs(run.id)[0].attempts[0]


class Away(Full):
    """Does not answer, as where its machine was switched off."""

    def __init__(self, error):
        super().__init__(0)
        self.away = error

    def observe(self, handle):
        if self.away:
            raise self.away
        return super().observe(handle)


@pytest.mark.parametrize("error", [InfrastructureError("no answer"), NoRunnerError("no answer")])
def test_a_build_waits_for_an_engine_that_does_not_answer(taken, error):
    go, attempt = taken
    engine = Away(error)
    with pytest.raises(EngineUnreachableError, match="no answer"):
        go(engine)
    assert (attempt().state, engine.released) == ("running", [])
    engine.away = None
    go(engine)
    assert (attempt().state, attempt().result) == ("done", "success")


def test_a_full_disk_costs_no_build(taken):
    """The engine keeps the output, the reason is the true one, and the next try collects it."""
    go, attempt = taken
    engine = Full(1)
    with pytest.raises(StillRunningError, match="No space left on device"):
        go(engine)
    assert (engine.collected, engine.released) == (1, [])
    assert (attempt().state, "No space left on device" in attempt().why) == ("running", True)
    go(engine)
    assert (engine.collected, engine.released) == (2, ["service"])
    assert (attempt().state, attempt().result) == ("done", "success")


def test_output_that_is_refused_is_collected_once(taken):
    go, attempt = taken
    engine = Full(
        9,
        RefusedOutputError(
            "the job's output holds '../evil', which is not a plain file below its folder"
        ),
    )
    with pytest.raises(RefusedOutputError):
        go(engine)
    assert (engine.collected, engine.released) == (1, ["service"])
    assert (attempt().state, attempt().result) == ("done", "failure")


def test_a_build_that_had_failed_is_not_built_again(taken, tmp_path):
    """Its controller was killed between writing that down and ending the run; the container is
    released as well.
    """
    go, attempt = taken
    with open_journal(
        tmp_path, load_settings(ROOT).model_copy(update={"artifacts": str(tmp_path)})
    ) as journal:
        journal.set_state(
            attempt().id, "done", "failure", why="the build failed with exit code 1; ..."
        )
    engine = Lost()
    with pytest.raises(BuildFailedError, match="exit code 1"):
        go(engine)
    assert (engine.submitted, engine.released) == ([], ["service"])


def test_a_wheel_that_was_collected_is_collected_once(taken):
    go, attempt = taken
    engine = Full(0)
    go(engine)
    assert (attempt().state, attempt().result, engine.released) == ("done", "success", ["service"])
    go(engine)  # whoever comes later
    assert engine.collected == 1
