"""The dispatcher's own decisions, with builds whose fate is written down beforehand and a real
journal.
"""

import json
import threading
import time

import pytest

from farm.base.errors import BuildFailedError, NoRunnerError
from farm.cli.status import summary
from farm.run import dispatch
from farm.run.build_step import EngineUnreachableError, StillRunningError
from farm.run.cancellable import CancelledError
from farm.run.dispatch import AlreadyDispatchingError, Dispatcher, exclusive
from farm.run.journal_records import EventKind, Request
from farm.run.queue import QueueRunner
from farm.run.run import cancel
from farm.run.workspace import Watcher, Workspace
from tests.plans import plan_of
from tests.unit.dispatch.conftest import Backend, attempts, begun, lost


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
    return lambda package, **changes: begun(
        journal, plan_of("sm61-avx-py313", package, "main"), **changes
    )


def test_what_is_built_against_torch_comes_after_it(fleet, workspace, journal, pair):
    torch, vision = pair("torch"), pair("torchvision", priority=9)
    fleet.fate = [lost()]  # torch is tried twice; torchvision waits all the time
    Dispatcher(workspace, journal).drain()
    assert [journal.run(run).result for run in (torch, vision)] == ["success", "success"]
    first, second = (
        [a.id for job in journal.jobs(run) for a in job.attempts] for run in (torch, vision)
    )
    assert (len(first), len(second), max(first) < second[0]) == (2, 1, True)
    assert [e.data["why"] for e in journal.events(vision) if e.kind == "waiting"] == [
        f"it comes after {torch}"
    ]


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


def test_the_only_runner_is_tried_again_after_a_while(
    fleet, workspace, journal, submit, monkeypatch
):
    monkeypatch.setattr("farm.run.dispatch.LOST_S", 0.1)
    fleet.workers = [QueueRunner("a")]
    run = submit()
    fleet.fate = [lost(), lost()]
    Dispatcher(workspace, journal).drain()
    assert attempts(journal, run) == [("a", "infra"), ("a", "infra"), ("a", "success")]


def test_a_step_that_fails_after_a_loss_is_no_second_loss(
    fleet, workspace, journal, submit, monkeypatch
):
    monkeypatch.setattr("farm.run.dispatch.LOST_S", 0.1)
    fleet.workers = [QueueRunner("a")]
    run = submit()
    fleet.fate = [lost(), lost("no push"), lost("no push")]
    Dispatcher(workspace, journal).drain()
    assert [result for _, result in attempts(journal, run)] == ["infra", "success"]


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


def test_a_run_being_prepared_is_shown_as_such(fleet, workspace, journal, submit, monkeypatch):
    """A run whose image is made has no attempt: it was shown as one that the dispatcher had not
    looked at.
    """
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


def test_a_step_that_needs_no_runner_is_tried_again_and_blames_none(
    fleet, workspace, journal, submit
):
    run = submit()
    fleet.fate = [lost("no push"), lost("no push")]
    dispatcher = Dispatcher(workspace, journal)
    dispatcher.drain()
    assert journal.run(run).result == "success"
    assert attempts(journal, run) == [(fleet.ran_on[-1], "success")]
    assert "no push" in journal.happened(run, "waiting").data["why"]


def test_an_engine_that_fails_under_a_build_is_asked_again_about_the_same_attempt(
    fleet, workspace, journal, submit
):
    run = submit()
    fleet.fate = [StillRunningError("the manager is away")]
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    assert len(attempts(journal, run)) == 1


def two_machines(workspace):
    (workspace.project / "ci").mkdir()
    runners = {
        "m1": {"engine": "docker", "url": "ssh://m1"},
        "m2": {"engine": "docker", "url": "ssh://m2"},
    }
    (workspace.project / "ci/runners.yaml").write_text(json.dumps({"runners": runners}))
    return {name: QueueRunner(name) for name in runners}


def test_a_machine_that_died_in_a_build_gives_it_up_to_another(
    fleet, workspace, journal, submit, monkeypatch
):
    """Not at once: it may be restarted. The grace is nothing here."""
    workers = two_machines(workspace)

    class Machine(Backend):
        def __init__(self, name):
            self.name = name

        def workers(self):
            return [workers[self.name]]

    monkeypatch.setattr(dispatch, "open_backend", lambda _, _on, runner: Machine(runner))
    run = submit(on="docker")
    fleet.fate = [EngineUnreachableError("no route to m1")]
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    assert attempts(journal, run) == [("m1", "infra"), ("m2", "success")]


def test_the_only_machine_is_asked_again_however_long_it_is_away(fleet, workspace, journal, submit):
    fleet.workers = [QueueRunner("local")]
    run = submit(on="docker")
    fleet.fate = [EngineUnreachableError("no route"), EngineUnreachableError("no route")]
    Dispatcher(workspace, journal).drain()
    assert attempts(journal, run) == [("local", "success")]
    kinds = [event.kind for event in journal.events(run)]
    assert "no route" in [event.data.get("why") for event in journal.events(run)]
    assert (kinds.count(EventKind.BEGUN), kinds.count(EventKind.ERROR)) == (
        1,
        0,
    )  # it may be away for days


def test_a_cancel_ends_the_run_of_a_machine_that_is_away(fleet, workspace, journal, submit):
    """It can be asked for nothing: the run was shown as running for ever."""
    fleet.workers = [QueueRunner("local")]
    run = submit(on="docker")

    fleet.fate = [EngineUnreachableError("no route to local")] * 2
    dispatcher = Dispatcher(workspace, journal)
    dispatcher.tick()
    journal.event(run, EventKind.CANCEL)
    dispatcher.drain()
    assert (journal.run(run).exit_code, attempts(journal, run)) == (130, [("local", None)])
    assert "no route to local" in journal.happened(run, EventKind.ERROR).data["text"]


def test_a_slot_is_free_as_soon_as_the_wheel_is_there(
    fleet, workspace, journal, submit, monkeypatch
):
    """Not only when it is published and tested: the next build starts beside those steps."""
    fleet.workers = [QueueRunner("a")]
    first, second = submit(), submit()
    over = threading.Event()

    class Slow(dispatch.MainJob):
        def steps(self, until):
            super().steps(until)
            self.on_built()
            if self.run.id == first:
                assert over.wait(600)

    monkeypatch.setattr(dispatch, "MainJob", Slow)
    dispatcher = Dispatcher(workspace, journal)
    while journal.run(second).finished is None:
        assert dispatcher.tick()
        time.sleep(0.01)
    assert journal.run(first).finished is None
    over.set()
    dispatcher.drain()
    assert journal.run(first).result == "success"


def test_a_run_that_no_runner_fits_ends_with_a_clear_error(fleet, workspace, journal, submit):
    fleet.workers = [QueueRunner("arm", machine="aarch64")]
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).exit_code == NoRunnerError.exit_code
    assert "it is aarch64, not x86_64" in summary(journal, journal.run(run))["why"]


def test_waiting_runs_give_a_reason(fleet, workspace, journal, submit):
    run = submit()
    line = summary(journal, journal.run(run))
    assert (line["state"], line["why"]) == ("queued", "the dispatcher has not looked at it yet")
    workspace = Workspace(
        workspace.project, workspace.settings.model_copy(update={"grace_s": 600}), Watcher()
    )
    fleet.workers = [QueueRunner("a", online=False)]
    dispatcher = Dispatcher(workspace, journal)
    assert dispatcher.tick()
    assert "no runner that fits is online (a would)" in summary(journal, journal.run(run))["why"]
    fleet.silent = True
    other = submit()
    assert dispatcher.tick()
    assert "no route to the manager" in summary(journal, journal.run(other))["why"]


def test_an_engine_that_never_answers_holds_up_no_other_one(
    fleet, workspace, journal, submit, monkeypatch
):
    workspace = Workspace(
        workspace.project, workspace.settings.model_copy(update={"grace_s": 600}), Watcher()
    )
    monkeypatch.setattr(dispatch, "ANSWER_S", 0.05)
    answers, calls = threading.Event(), []

    class Silence(Backend):
        def workers(self):
            calls.append(1)
            assert answers.wait(600)
            return super().workers()

    monkeypatch.setattr(
        dispatch,
        "open_backend",
        lambda _, on, _runner: (Silence if on == "swarm" else Backend)(fleet),
    )
    held, other = submit(), submit(on="docker")
    dispatcher = Dispatcher(workspace, journal)
    while journal.run(other).finished is None:
        assert dispatcher.tick()
    assert journal.run(other).result == "success"
    assert (
        "the engine swarm does not answer: no answer" in summary(journal, journal.run(held))["why"]
    )
    assert len(calls) == 1  # not one thread more with each round
    answers.set()
    dispatcher.drain()
    assert journal.run(held).result == "success"


def test_a_run_that_waited_in_vain_for_its_engine_gives_the_reason(
    fleet, workspace, journal, submit
):
    fleet.silent = True
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).exit_code == NoRunnerError.exit_code
    assert (
        "the engine swarm does not answer: no route to the manager"
        in summary(journal, journal.run(run))["why"]
    )


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
    assert cancel(workspace, [run]).ended[0].exit_code == 130  # this very process owns it


def test_a_plan_of_another_version_ends_that_run_alone(fleet, workspace, journal, submit):
    bad = journal.create_run("0" * 64, Request(detached=True), {"schema": 99}).id
    good = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(bad).exit_code == 2
    assert journal.run(good).result == "success"


def test_higher_priority_goes_first(fleet, workspace, journal, submit):
    fleet.workers = [QueueRunner("a")]
    low, high = submit(), submit(priority=5)
    Dispatcher(workspace, journal).drain()
    order = [
        e.run_id for r in (low, high) for e in journal.events(r) if e.kind == "attempt-created"
    ]
    times = {
        e.run_id: e.id
        for r in (low, high)
        for e in journal.events(r)
        if e.kind == "attempt-created"
    }
    assert len(order) == 2
    assert times[high] < times[low]


def test_each_machine_with_an_engine_of_its_own_builds_as_many_as_it_has_slots(
    fleet, workspace, journal, submit, monkeypatch
):
    """Only the one called local ever built, and one at a time."""
    (workspace.project / "ci").mkdir()
    runners = {
        "m2": {"engine": "docker", "url": "ssh://m2", "slots": 2},
        "local": {"engine": "docker", "slots": 2},
    }
    (workspace.project / "ci/runners.yaml").write_text(json.dumps({"runners": runners}))
    opened, at_once, over = [], threading.Barrier(4), []

    class Machine(Backend):
        def __init__(self, name):
            opened.append(name)
            self.name = name

        def workers(self):
            return [QueueRunner(self.name, slots=2)]

    class Together(dispatch.MainJob):
        def steps(self, until):
            at_once.wait(600)  # all four are under way
            over.append(self.runner)
            super().steps(until)

    monkeypatch.setattr(dispatch, "open_backend", lambda _, _on, runner: Machine(runner))
    monkeypatch.setattr(dispatch, "MainJob", Together)
    for _ in range(4):
        submit(on="docker")
    Dispatcher(workspace, journal).drain()
    assert sorted(over) == ["local", "local", "m2", "m2"]
    assert sorted(opened) == ["local", "m2"]


def test_a_machine_that_does_not_answer_is_named_and_the_others_build(
    fleet, workspace, journal, submit, monkeypatch
):
    (workspace.project / "ci").mkdir()
    runners = {"m2": {"engine": "docker", "url": "ssh://m2"}, "local": {"engine": "docker"}}
    (workspace.project / "ci/runners.yaml").write_text(json.dumps({"runners": runners}))

    def opened(_workspace, _on, runner):
        if runner == "m2":
            raise NoRunnerError("no Docker engine answers at ssh://m2")
        fleet.workers = [QueueRunner("local")]
        return Backend(fleet)

    monkeypatch.setattr(dispatch, "open_backend", opened)
    made = [submit(on="docker"), submit(on="docker")]
    Dispatcher(workspace, journal).drain()
    assert [journal.run(run).result for run in made] == ["success", "success"]
    why = journal.happened(made[1], EventKind.WAITING, first=True).data["why"]
    assert (
        why == "every runner that fits is busy: local (runner m2 does not answer: no Docker engine "
        "answers at ssh://m2)"
    )


def test_the_journal_grows_with_the_queue_and_not_with_its_square(
    fleet, workspace, journal, submit
):
    """A reason is written when it changes; 500 queued runs left 118,128 events and 30 MB."""
    fleet.workers = [QueueRunner("a")]
    made = [submit() for _ in range(60)]
    Dispatcher(workspace, journal).drain()
    waits = [len([e for e in journal.events(run) if e.kind == EventKind.WAITING]) for run in made]
    assert max(waits) == 1
    assert all(journal.run(run).result == "success" for run in made)


def test_only_one_dispatcher_works_at_a_time(tmp_path, monkeypatch):
    with exclusive(tmp_path, 0), pytest.raises(AlreadyDispatchingError), exclusive(tmp_path, 0):
        pass
    waits = []
    monkeypatch.setattr("farm.run.dispatch.time.sleep", waits.append)
    with exclusive(tmp_path, 5):
        assert waits == []
