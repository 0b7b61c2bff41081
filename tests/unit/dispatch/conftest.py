"""A dispatcher with builds whose fate is written down beforehand, and a real journal."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError
from farm.plan.settings import load_settings
from farm.run import dispatch
from farm.run.build_step import EngineUnreachableError, StillRunningError
from farm.run.cancellable import CancelledError
from farm.run.queue import QueueRunner
from farm.run.run import request_for
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


class Fleet:
    """The runners, and what happens to each build: a list of outcomes, used up one by one, then
    success.
    """

    def __init__(self):
        self.workers = [QueueRunner("a"), QueueRunner("b"), QueueRunner("c"), QueueRunner("d")]
        self.fate = []
        self.ran_on = []
        self.silent = False


class Build:
    """Stands in the place of MainJob: leaves in the journal what a build of that fate leaves."""

    fleet: Fleet

    def __init__(
        self, _setting, _plan, journal, run, outcomes, _backend, *, runner, on_built=lambda: None
    ):
        self.journal, self.run, self.runner, self.outcomes = journal, run, runner, outcomes
        self.on_built = on_built

    def steps(self, _until):
        fate = self.fleet.fate.pop(0) if self.fleet.fate else None
        self.fleet.ran_on.append(self.runner)
        if isinstance(fate, InfrastructureError) and fate.args[0] == "no push":
            raise fate
        jobs = self.journal.jobs(self.run.id)
        job = jobs[0] if jobs else self.journal.create_job(self.run.id, "build")
        live = [a for j in jobs for a in j.attempts if a.state == "running"]
        attempt = live[0] if live else self.journal.create_attempt(job.id, "swarm", self.runner)
        self.journal.set_handle(attempt.id, f"handle-{attempt.id}")
        self.journal.set_state(attempt.id, "running")
        if isinstance(fate, StillRunningError):
            if isinstance(fate, EngineUnreachableError):
                self.journal.set_state(attempt.id, "running", why=str(fate))
            raise fate
        if isinstance(fate, InfrastructureError):
            self.journal.set_state(attempt.id, "lost", "infra", why=str(fate))
            raise fate
        if isinstance(fate, CancelledError):
            self.journal.set_state(attempt.id, "cancelled", why="seen to have ended")
            raise fate
        self.journal.set_state(attempt.id, "done", "failure" if fate else "success")
        if fate:
            raise fate


@pytest.fixture
def fleet(monkeypatch):
    made = Fleet()
    monkeypatch.setattr(dispatch, "open_backend", lambda *_: Backend(made))
    monkeypatch.setattr(dispatch, "MainJob", type("Build", (Build,), {"fleet": made}))
    monkeypatch.setattr(dispatch, "PAUSE_S", 0.05)
    monkeypatch.setattr(dispatch, "TICK_S", 0.02)
    monkeypatch.setattr(dispatch, "DECIDE_S", 0.02)
    return made


class Backend:
    def __init__(self, fleet):
        self.fleet = fleet

    def close(self):
        pass

    def workers(self):
        if self.fleet.silent:
            raise InfrastructureError("no route to the manager")
        return self.fleet.workers


@pytest.fixture
def workspace(tmp_path):
    settings = load_settings(ROOT).model_copy(update={"artifacts": str(tmp_path), "grace_s": 0})
    return Workspace(tmp_path, settings, Watcher())


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


@pytest.fixture
def submit(journal):
    return partial(begun, journal, plan_of("cpu-avx-py311", "canary"))


def begun(journal, plan, **changes):
    request = replace(request_for(plan, until="publish", on="swarm", detached=True), **changes)
    return journal.create_run(plan.digest, request, json.loads(plan.to_json())).id


def lost(word="node x is down"):
    return InfrastructureError(word)


def attempts(journal, run):
    return [(a.runner, a.result) for job in journal.jobs(run) for a in job.attempts]
