"""The dispatcher's own decisions, with builds whose fate is written down beforehand and a real journal."""

import json
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.base.errors import BuildFailedError, NoRunnerError
from farm.cli.status import summary
from farm.engines.admission import Worker
from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant
from farm.run import dispatch
from farm.run.context import CancelledError, StillRunningError
from farm.run.dispatch import Dispatcher
from farm.run.dispatch_lock import AlreadyDispatchingError, exclusive
from farm.run.journal import EventKind, Request
from farm.run.lengths import Lengths
from farm.run.report import Silent
from farm.run.run import cancel, request_for
from farm.run.workspace import Workspace
from tests.unit.dispatch.conftest import ROOT, Backend, attempts, lost


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
    deadline = time.monotonic() + 120
    while journal.happened(run, "waiting") is None and time.monotonic() < deadline:
        dispatcher.tick()
    back[0] = 7200.0
    while dispatcher.tick() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert journal.run(run).result == "success"


def test_what_is_prepared_says_so(fleet, workspace, journal, submit, monkeypatch):
    """A run whose image is made has no attempt: it was shown as one that the dispatcher had not looked at."""
    run, seen = submit(), []

    class Preparing(dispatch.MainJob):
        def steps(self, until):
            seen.append(summary(journal, journal.run(run))["why"])
            super().steps(until)

    monkeypatch.setattr(dispatch, "MainJob", Preparing)
    Dispatcher(workspace, journal).drain()
    assert seen == ["being prepared"]


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


def test_an_engine_that_never_answers_holds_up_no_other_one(fleet, workspace, journal, submit, monkeypatch):
    workspace = Workspace(workspace.project, workspace.settings.model_copy(update={"grace_s": 600}), Silent())
    monkeypatch.setattr(dispatch, "ANSWER_S", 0.05)
    answers, asked = threading.Event(), []

    class Silence(Backend):
        def workers(self):
            asked.append(1)
            assert answers.wait(600)
            return super().workers()

    monkeypatch.setattr(dispatch, "open_backend", lambda _, on: (Silence if on == "swarm" else Backend)(fleet))
    held, other = submit(), submit(on="docker")
    dispatcher = Dispatcher(workspace, journal)
    while journal.run(other).finished is None:
        assert dispatcher.tick()
    assert journal.run(other).result == "success"
    assert "the engine swarm does not answer: no answer for" in summary(journal, journal.run(held))["why"]
    assert len(asked) == 1  # not one thread more with each round
    answers.set()
    dispatcher.drain()
    assert journal.run(held).result == "success"


def test_what_waited_in_vain_for_an_engines_answer_says_so(fleet, workspace, journal, submit):
    fleet.silent = True
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).exit_code == NoRunnerError.exit_code
    assert "the engine swarm does not answer: no route to the manager" in summary(journal, journal.run(run))["why"]


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


@pytest.fixture
def built(journal, monkeypatch):
    """A function that notes a build of a variant, so many minutes long, of a run that has ended."""

    def go(variant, minutes, result="success"):
        start = datetime(2026, 11, 1, tzinfo=UTC)
        with monkeypatch.context() as patch:
            patch.setattr("farm.run.journal.journal._now", lambda: start.isoformat(timespec="milliseconds"))
            made = journal.create_run("0" * 64, Request("canary", variant, until="publish", detached=True), {})
            attempt = journal.create_attempt(journal.create_job(made.id, "build").id, "swarm", "a")
            journal.set_state(attempt.id, "starting")
            start += timedelta(minutes=minutes)
            journal.set_state(attempt.id, "done", result)
            journal.finish_run(made.id, result, 0)

    return go


def test_the_journal_knows_how_long_builds_took(journal, built):
    built("cpu-avx-py311", 30)
    built("cpu-avx2-py311", 90)
    built("cpu-avx-py311", 50)
    built("cpu-sse41-py311", 700, "failure")
    built("cpu-sse41-py311", -60)  # the clock was set back
    lengths = Lengths(journal.build_lengths())
    limit = {"package": "canary", "platform": "linux", "timeout_minutes": 300}
    of = lambda variant, **other: round(lengths.minutes({**limit, "variant": variant, **other}), 3)  # noqa: E731
    assert [of(f"cpu-{cpu}-py311") for cpu in ("avx", "avx2", "sse41")] == [50, 90, 50]
    assert of("cpu-avx-py311", package="torch") == of("cpu-avx-py311", platform="windows") == 100
    newest = journal.runs(5)[2].id
    lengths.note(journal.build_lengths(newest))
    assert [length.minutes for length in journal.build_lengths(newest)] == [pytest.approx(50)]


def test_what_took_longest_before_goes_first(fleet, workspace, journal, built):
    fleet.workers = [Worker("a")]
    built("cpu-avx-py311", 30)
    built("cpu-avx2-py311", 90)
    made = []
    for variant in ("cpu-avx-py311", "cpu-avx2-py311"):
        plan = resolve(ROOT, Selectors(Variant.parse(variant), package="canary"))
        request = request_for(plan, until="publish", on="swarm", detached=True)
        made.append(journal.create_run(plan.digest, request, json.loads(plan.to_json())).id)
    Dispatcher(workspace, journal).drain()
    short, long = ([a.id for job in journal.jobs(run) for a in job.attempts] for run in made)
    assert long < short


def test_there_is_one_dispatcher(tmp_path, monkeypatch):
    with exclusive(tmp_path, 0), pytest.raises(AlreadyDispatchingError), exclusive(tmp_path, 0):
        pass
    waits = []
    monkeypatch.setattr("farm.run.dispatch_lock.time.sleep", waits.append)
    with exclusive(tmp_path, 5):
        assert waits == []
