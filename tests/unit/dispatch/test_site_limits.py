"""Builds that a site ends or never starts: continued by themselves, or given up with what to
change.
"""

from dataclasses import replace

import pytest

from farm.base.errors import BuildFailedError, NoRunnerError
from farm.engines.base import Cause, Observation
from farm.run import run
from farm.run.journal_records import EventKind
from farm.run.workspace import Workspace, open_journal
from tests.faults.engine import Engine, install, the_plan, workspace_in

LIMIT = "120 of 1445 minutes: the limit of partition gpu"
AT_THE_LIMIT = Observation("done", why=LIMIT, exit_code=124, cause=Cause.SITE_LIMIT)
DONE = Observation("done", exit_code=0)


class Site(Engine):
    """An engine whose jobs end as is written down: one observation for each of them."""

    def __init__(self, ends, log=b"[1/2] a\n"):
        super().__init__()
        self.ends = ends
        self.log = log
        self.cancelled = []

    def observe(self, _handle):
        return self.ends[self.numbers - 1]

    def logs(self, _handle, _since=0):
        yield self.log

    def cancel(self, handle):
        self.cancelled.append(handle)


@pytest.fixture
def plan():
    return the_plan()


@pytest.fixture
def workspace(tmp_path):
    made = workspace_in(tmp_path)
    return Workspace(made.project, made.settings.model_copy(update={"grace_s": 0}), made.watcher)


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


def attempts(journal):
    (made,) = journal.runs(1)
    return [(a.state, a.result) for job in journal.jobs(made.id) for a in job.attempts]


def test_a_build_ended_by_the_sites_limit_is_resumed_in_another_job(
    workspace, plan, journal, monkeypatch
):
    engine = Site([AT_THE_LIMIT, AT_THE_LIMIT, DONE])
    install(monkeypatch.setattr, plan, engine)
    run.submit(workspace, plan, until="build")
    assert attempts(journal) == [("cancelled", None), ("cancelled", None), ("done", "success")]
    assert engine.containers == {}


def test_a_build_without_progress_is_not_begun_again(workspace, plan, journal, monkeypatch):
    engine = Site([AT_THE_LIMIT], log=b"configure\n")
    install(monkeypatch.setattr, plan, engine)
    with pytest.raises(BuildFailedError, match="120 of 1445 minutes") as caught:
        run.submit(workspace, plan, until="build")
    assert "slurm.minutes" in caught.value.hint
    assert "timeout_minutes" not in caught.value.hint
    assert attempts(journal) == [("done", "failure")]


def test_a_job_that_can_never_start_ends_the_run(workspace, plan, journal, monkeypatch):
    waits = Observation(
        "queued",
        why="in Slurm's queue, job 7: PartitionTimeLimit; set slurm.minutes",
        cause=Cause.NEVER_STARTS,
    )
    engine = Site([waits])
    install(monkeypatch.setattr, plan, engine)
    with pytest.raises(NoRunnerError, match=r"PartitionTimeLimit; set slurm\.minutes"):
        run.submit(workspace, plan, until="build")
    (made,) = journal.runs(1)
    assert made.exit_code == NoRunnerError.exit_code
    assert len(engine.cancelled) == 1
    assert engine.containers == {}


def test_a_waiting_job_has_the_grace_period_of_the_settings(workspace, plan, journal, monkeypatch):
    """As where an administrator raises the limit, or lets a held job go."""
    settings = workspace.settings.model_copy(update={"grace_s": 3600})
    workspace = replace(workspace, settings=settings)
    waits = Observation("queued", why="held", cause=Cause.NEVER_STARTS)
    engine = Site([waits])
    looks = iter([waits] * 3)
    monkeypatch.setattr(engine, "observe", lambda _handle: next(looks, DONE))
    install(monkeypatch.setattr, plan, engine)
    run.submit(workspace, plan, until="build")
    assert attempts(journal) == [("done", "success")]


def test_the_reason_of_a_wait_is_shown_once(workspace, plan, journal, monkeypatch):
    """`farm submit --on slurm` said nothing while it waited; `farm status` had the reason."""
    notes = []
    monkeypatch.setattr(workspace.watcher, "note", notes.append)
    queued = Observation("queued", why="in Slurm's queue, job 7: Resources")
    looks = iter([queued] * 3)
    engine = Site([DONE])
    monkeypatch.setattr(engine, "observe", lambda _handle: next(looks, DONE))
    install(monkeypatch.setattr, plan, engine)
    run.submit(workspace, plan, until="build")
    assert notes.count(queued.why) == 1
    (made,) = journal.runs(1)
    states = [e for e in journal.events(made.id) if e.kind == EventKind.STATE]
    assert [e.data["why"] for e in states].count(queued.why) == 1
