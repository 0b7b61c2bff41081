"""The dispatcher's own decisions, with builds whose fate is written down beforehand and a real journal."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from farm.cli.status import summary
from farm.engines.admission import Worker
from farm.errors import BuildFailedError, InfrastructureError, NoRunnerError
from farm.pipeline import dispatch
from farm.pipeline.context import CancelledError, StillRunningError
from farm.pipeline.dispatch import Dispatcher
from farm.pipeline.dispatch_lock import AlreadyDispatchingError, sole
from farm.pipeline.report import Silent
from farm.pipeline.run import cancel, request_for
from farm.pipeline.workspace import Workspace, open_journal
from farm.plan import Selectors, resolve
from farm.runs import EventKind, Request
from farm.settings import load_settings
from farm.variant import Variant

ROOT = Path(__file__).parents[3]


class Fleet:
    """The runners, and what happens to each build: a list of outcomes, used up one by one, then success."""

    def __init__(self):
        self.workers = [Worker("a"), Worker("b"), Worker("c"), Worker("d")]
        self.fate = []
        self.ran_on = []
        self.silent = False


class Build:
    """Stands in the place of MainJob: leaves in the journal what a build of that fate leaves."""

    fleet: Fleet

    def __init__(self, _setting, _plan, journal, run, outcomes, _backend, *, runner, excluded):
        self.journal, self.run, self.runner, self.excluded, self.outcomes = journal, run, runner, excluded, outcomes

    def steps(self, _until):
        fate = self.fleet.fate.pop(0) if self.fleet.fate else None
        assert self.runner not in self.excluded
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
    monkeypatch.setattr(dispatch, "open_backend", lambda *_: _Backend(made))
    monkeypatch.setattr(dispatch, "MainJob", type("Build", (Build,), {"fleet": made}))
    monkeypatch.setattr(dispatch, "PAUSE_S", 0.05)
    monkeypatch.setattr(dispatch, "TICK_S", 0.02)
    monkeypatch.setattr(dispatch, "DECIDE_S", 0.02)
    return made


class _Backend:
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
    return Workspace(tmp_path, settings, Silent())


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


@pytest.fixture
def submit(journal):
    plan = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), package="canary"))

    def go(**asked):
        request = replace(request_for(plan, until="publish", on="swarm", detached=True), **asked)
        return journal.create_run(plan.digest, request, json.loads(plan.to_json())).id

    return go


def lost(word="node x is down"):
    return InfrastructureError(word)


def attempts(journal, run):
    return [(a.runner, a.result) for job in journal.jobs(run) for a in job.attempts]


def test_a_lost_build_is_tried_on_other_runners_twice(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [lost(), lost()]
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    assert [result for _, result in attempts(journal, run)] == ["infra", "infra", "success"]
    assert len({runner for runner, _ in attempts(journal, run)}) == 3


@pytest.fixture
def pair(journal):
    """Detached runs of torch and of the torchvision that is built against it; the younger first."""

    def go(package, **asked):
        plan = resolve(ROOT, Selectors(Variant.parse("sm61-avx-py313"), package, "linux", "main"))
        request = replace(request_for(plan, until="publish", on="swarm", detached=True), **asked)
        return journal.create_run(plan.digest, request, json.loads(plan.to_json())).id

    return go


def test_what_is_built_against_torch_comes_after_it(fleet, workspace, journal, pair):
    torch, vision = pair("torch"), pair("torchvision", priority=9)
    fleet.fate = [lost()]  # torch is tried twice; torchvision waits all the time
    Dispatcher(workspace, journal).drain()
    assert [journal.run(run).result for run in (torch, vision)] == ["success", "success"]
    first, second = ([a.id for job in journal.jobs(run) for a in job.attempts] for run in (torch, vision))
    assert (len(first), len(second), max(first) < second[0]) == (2, 1, True)
    assert [e.data["why"] for e in journal.events(vision) if e.kind == "waiting"] == [f"it comes after {torch}"]


def test_what_is_built_against_a_torch_that_failed_is_not_begun(fleet, workspace, journal, pair):
    torch, vision = pair("torch"), pair("torchvision")
    fleet.fate = [BuildFailedError("no")]
    Dispatcher(workspace, journal).drain()
    assert [journal.run(run).exit_code for run in (torch, vision)] == [5, 5]
    assert journal.jobs(vision) == ()
    [error] = [e.data for e in journal.events(vision) if e.kind == "error"]
    assert error["text"] == f"{torch}, which it needs, did not succeed"


def test_a_torch_that_is_not_published_is_not_waited_for(fleet, workspace, journal, pair):
    pair("torch", until="verify")
    vision = pair("torchvision")
    Dispatcher(workspace, journal).drain()
    assert not [e for e in journal.events(vision) if e.kind == "waiting"]


def test_a_third_loss_ends_it(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [lost(), lost(), lost(), lost()]
    Dispatcher(workspace, journal).drain()
    assert (journal.run(run).result, journal.run(run).exit_code) == ("infra", 9)
    assert len(attempts(journal, run)) == 3
    assert "node x is down" in summary(journal, journal.run(run))["why"]


def test_the_only_runner_is_tried_again_after_its_quarantine(fleet, workspace, journal, submit, monkeypatch):
    monkeypatch.setattr("farm.engines.admission.decide.QUARANTINE_S", 0.1)
    fleet.workers = [Worker("a")]
    run = submit()
    fleet.fate = [lost(), lost()]
    Dispatcher(workspace, journal).drain()
    assert attempts(journal, run) == [("a", "infra"), ("a", "infra"), ("a", "success")]
    assert [e.data["seconds"] for e in journal.events(run) if e.kind == "quarantine"] == [0, 0]


def test_a_step_that_fails_after_a_loss_is_no_second_loss(fleet, workspace, journal, submit, monkeypatch):
    monkeypatch.setattr("farm.engines.admission.decide.QUARANTINE_S", 0.1)
    fleet.workers = [Worker("a")]
    run = submit()
    fleet.fate = [lost(), lost("no push"), lost("no push")]
    Dispatcher(workspace, journal).drain()
    assert [result for _, result in attempts(journal, run)] == ["infra", "success"]
    assert len([e for e in journal.events(run) if e.kind == "quarantine"]) == 1


def test_a_clock_that_is_set_back_holds_up_nothing(fleet, workspace, journal, submit, monkeypatch):
    run = submit()
    real, back = time.time, [0.0]
    monkeypatch.setattr(dispatch.time, "time", lambda: real() - back[0])
    fleet.fate = [lost("no push")]
    dispatcher = Dispatcher(workspace, journal)
    deadline = time.monotonic() + 20
    while journal.happened(run, "waiting") is None and time.monotonic() < deadline:
        dispatcher.tick()
    back[0] = 7200.0
    while dispatcher.tick() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert journal.run(run).result == "success"


def test_a_failure_of_its_own_is_never_tried_again(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [BuildFailedError("exit code 1")]
    Dispatcher(workspace, journal).drain()
    assert (journal.run(run).result, journal.run(run).exit_code) == ("failure", 5)
    assert len(fleet.ran_on) == 1


def test_a_step_that_needs_no_runner_is_tried_again_and_blames_none(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [lost("no push"), lost("no push")]
    dispatcher = Dispatcher(workspace, journal)
    dispatcher.drain()
    assert journal.run(run).result == "success"
    assert attempts(journal, run) == [(fleet.ran_on[-1], "success")]
    assert journal.happened(run, "quarantine") is None
    assert "no push" in journal.happened(run, "waiting").data["why"]


def test_an_engine_that_fails_under_a_build_is_asked_again_about_the_same_attempt(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [StillRunningError("the manager is away")]
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    assert len(attempts(journal, run)) == 1


def test_a_runner_that_lost_a_build_is_in_quarantine_for_others(fleet, workspace, journal, submit):
    fleet.workers = [Worker("a"), Worker("b")]
    first = submit(priority=1)
    fleet.fate = [lost()]
    Dispatcher(workspace, journal).drain()
    bad = attempts(journal, first)[0][0]
    assert journal.happened(first, "quarantine").data == {"runner": bad, "seconds": 60}


def test_nobody_who_can_take_it_is_a_clear_error(fleet, workspace, journal, submit):
    fleet.workers = [Worker("arm", machine="aarch64")]
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).exit_code == NoRunnerError.exit_code
    assert "it is aarch64, not x86_64" in summary(journal, journal.run(run))["why"]


def test_what_waits_says_why(fleet, workspace, journal, submit):
    run = submit()
    line = summary(journal, journal.run(run))
    assert (line["state"], line["why"]) == ("queued", "the dispatcher has not looked at it yet")
    workspace = Workspace(workspace.project, workspace.settings.model_copy(update={"grace_s": 600}), Silent())
    fleet.workers = [Worker("a", online=False)]
    dispatcher = Dispatcher(workspace, journal)
    assert dispatcher.tick()
    assert "no runner that fits is online (a would)" in summary(journal, journal.run(run))["why"]
    fleet.silent = True
    other = submit()
    assert dispatcher.tick()
    assert "no route to the manager" in summary(journal, journal.run(other))["why"]


def test_a_cancel_before_the_start_ends_it(fleet, workspace, journal, submit):
    run = submit()
    journal.event(run, EventKind.CANCEL)
    Dispatcher(workspace, journal).drain()
    assert (journal.run(run).result, journal.run(run).exit_code) == ("infra", 130)
    assert summary(journal, journal.run(run))["state"] == "cancelled"
    assert fleet.ran_on == []


def test_a_cancelled_build_is_not_tried_again(fleet, workspace, journal, submit):
    run = submit()
    fleet.fate = [CancelledError("cancelled")]
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).exit_code == 130
    assert len(fleet.ran_on) == 1


def test_cancel_of_a_run_without_a_controller_needs_none(workspace, journal, submit):
    run = submit()
    assert cancel(workspace, run).exit_code == 130  # this very process owns it


def test_a_plan_of_another_version_ends_that_run_alone(fleet, workspace, journal, submit):
    bad = journal.create_run("0" * 64, Request(detached=True), {"schema": 99}).id
    good = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(bad).exit_code == 2
    assert journal.run(good).result == "success"


def test_higher_priority_goes_first(fleet, workspace, journal, submit):
    fleet.workers = [Worker("a")]
    low, high = submit(), submit(priority=5)
    Dispatcher(workspace, journal).drain()
    order = [e.run_id for r in (low, high) for e in journal.events(r) if e.kind == "attempt-created"]
    times = {e.run_id: e.id for r in (low, high) for e in journal.events(r) if e.kind == "attempt-created"}
    assert len(order) == 2
    assert times[high] < times[low]


def test_there_is_one_dispatcher(tmp_path):
    with sole(tmp_path, 0), pytest.raises(AlreadyDispatchingError), sole(tmp_path, 0):
        pass
    start = time.monotonic()
    with sole(tmp_path, 5):
        assert time.monotonic() - start < 1


# --- what the dispatcher's own troubles cost


def failing(times, error, work):
    """Fails so often, then works."""
    left = [times]

    def call(*args, **kwargs):
        if left[0]:
            left[0] -= 1
            raise error
        return work(*args, **kwargs)

    return call


FULL = InfrastructureError("farm.db: database or disk is full")


@pytest.mark.parametrize(
    ("method", "times"),
    [("finish_run", 3), ("note_waiting", 2), ("open_after", 2), ("claim_all", 2), ("since", 2), ("run", 2)],
)
def test_a_journal_that_fails_for_a_while_loses_nothing(fleet, workspace, journal, submit, monkeypatch, method, times):
    fleet.workers = [Worker("a")]  # so that one of the two waits
    made = [submit(), submit()]
    said = []
    monkeypatch.setattr(journal, method, failing(times, FULL, getattr(journal, method)))
    Dispatcher(workspace, journal, warn=said.append).drain()
    assert [journal.run(run).result for run in made] == ["success", "success"]
    assert [len(attempts(journal, run)) for run in made] == [1, 1]
    assert method in ("run",) or "disk is full" in said[0]


def test_a_journal_that_stays_away_ends_the_dispatcher_and_the_next_one_goes_on(
    fleet, workspace, journal, submit, monkeypatch
):
    run = submit()
    monkeypatch.setattr(dispatch, "GIVE_UP_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "open_after", failing(10**6, FULL, None))
        with pytest.raises(InfrastructureError, match="disk is full"):
            Dispatcher(workspace, journal).drain()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"


@pytest.mark.parametrize("error", [FULL, OSError(28, "No space left on device"), MemoryError(), SystemExit(3)])
def test_a_runs_thread_cannot_end_unnoticed(fleet, workspace, journal, submit, monkeypatch, error):
    """Whatever is raised wherever: the run ends, or is taken up again."""
    monkeypatch.setattr(dispatch, "note_steps", failing(10**6, error, None))
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    monkeypatch.setattr(Build, "steps", failing(1, error, Build.steps))
    other = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(other).finished


def statements(journal):
    """Counts the statements that a journal's connection carries out."""
    counted = [0]
    journal._db.set_trace_callback(lambda _sql: counted.__setitem__(0, counted[0] + 1))
    return counted


def test_a_round_costs_what_has_changed_and_not_what_waits(fleet, workspace, journal, submit):
    fleet.workers = [Worker("a", online=False)]
    workspace = Workspace(workspace.project, workspace.settings.model_copy(update={"grace_s": 600}), Silent())
    first, later, new = {}, {}, {}
    for count in (50, 200):
        while len(journal.open_runs()) < count:
            submit()
        dispatcher, counted = Dispatcher(workspace, journal), statements(journal)
        dispatcher.tick()
        first[count], counted[0] = counted[0], 0
        dispatcher.tick()
        later[count], counted[0] = counted[0], 0
        submit()
        counted[0] = 0
        dispatcher.tick()
        new[count] = counted[0]
        journal._db.set_trace_callback(None)
    assert first[200] <= 4.2 * first[50]  # quadratic: 16 times
    assert later[200] == later[50] <= 5
    assert new[200] == new[50] <= 20


@pytest.mark.parametrize("what", ["run", "jobs", "events", "happened", "open_after", "since"])
def test_what_is_asked_often_is_answered_by_an_index(journal, submit, what):
    run = submit()
    asked = []
    journal._db.set_trace_callback(asked.append)
    calls = {"open_after": ("", ("package",)), "since": (0, "x"), "happened": (run, "x")}
    getattr(journal, what)(*calls.get(what, (run,)))
    journal._db.set_trace_callback(None)
    assert asked
    for sql in asked:
        plan = [row[3] for row in journal._db.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert not [line for line in plan if line.startswith("SCAN") and "INDEX" not in line], (sql, plan)
