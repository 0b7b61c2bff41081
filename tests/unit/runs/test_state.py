"""One derivation of a run's state: what the command line and the site print of one journal is the
same.
"""

import pytest

from farm.cli.status import summary
from farm.run.journal_records import EventKind, Request, Run
from farm.run.run_owner import Process
from farm.run.run_state import Phase, Reason, state_of

PLAN = {"package": "torch", "variant": "sm35-avx-py311", "version": "2.0.1", "platform": "linux"}


@pytest.fixture
def run(journal):
    return journal.create_run("d", Request(detached=True, on="swarm"), PLAN)


@pytest.fixture
def attempt(journal, run):
    return journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "one")


def seen(journal, run):
    """(phase, text), which `farm status` gives too."""
    state = state_of(journal, journal.run(run.id))
    line = summary(journal, journal.run(run.id))
    assert (line["state"], line["why"]) == (str(state.phase), state.text)
    return state.phase, state.reason, state.text


def test_every_command_prints_the_reason_of_a_wait(journal, run):
    assert seen(journal, run)[:2] == (Phase.QUEUED, Reason.NOT_SCHEDULED)
    journal.event(run.id, EventKind.WAITING, why="no runner that fits is online")
    assert seen(journal, run) == (Phase.QUEUED, Reason.SCHEDULER, "no runner that fits is online")


def test_a_run_whose_image_is_being_built_counts_as_observed(journal, run, attempt):
    journal.set_state(attempt.id, "lost", "infra", why="the node is down")
    journal.event(run.id, EventKind.WAITING, why="jobs before it have taken the slots")
    journal.event(run.id, EventKind.BEGUN)
    assert seen(journal, run)[:2] == (Phase.QUEUED, Reason.PREPARING)
    journal.event(run.id, EventKind.WAITING, why="no push; again in 5 s")
    assert seen(journal, run)[::2] == (Phase.QUEUED, "no push; again in 5 s")


def test_the_reason_of_a_past_wait_is_not_shown(journal, run, attempt):
    journal.event(run.id, EventKind.WAITING, why="jobs before it have taken the slots")
    journal.set_state(attempt.id, "running")
    assert seen(journal, run)[0] is Phase.RUNNING
    journal.set_state(attempt.id, "done", "success")
    assert seen(journal, run)[:2] == (Phase.FINISHING, Reason.AFTER_BUILD)
    journal.event(run.id, EventKind.WAITING, why="the store is away; again in 5 s")
    assert seen(journal, run)[::2] == (Phase.FINISHING, "the store is away; again in 5 s")


def test_cancelled_and_failed_runs_are_distinguished(journal, run):
    journal.event(run.id, EventKind.CANCEL)
    journal.event(run.id, EventKind.ERROR, text="cancelled before it started", hint=None)
    journal.finish_run(run.id, "infra", 130)
    assert seen(journal, run)[::2] == (Phase.CANCELLED, "cancelled before it started")


def test_a_run_ended_by_ctrl_c_is_shown_as_such(journal, run, attempt):
    journal.set_state(attempt.id, "cancelled", why="interrupted")
    journal.finish_run(run.id, "infra", 130)
    phase, reason, text = seen(journal, run)
    assert (phase, reason) == (Phase.CANCELLED, Reason.INTERRUPTED)
    assert "Ctrl-C" in text


def test_a_success_names_the_engine_that_built_it(journal, run, attempt):
    journal.set_state(attempt.id, "done", "success")
    smoke = journal.create_attempt(journal.create_job(run.id, "smoke").id, "host", "local")
    journal.set_state(smoke.id, "done", "success")
    journal.finish_run(run.id, "success", 0)
    line = summary(journal, journal.run(run.id))
    assert (line["engine"], line["runner"], line["attempts"]) == ("swarm", "one", 2)
    assert line["seconds"] >= 0


@pytest.mark.parametrize(
    ("result", "code", "phase"), [("failure", 5, Phase.FAILED), ("infra", 9, Phase.INFRASTRUCTURE)]
)
def test_ends_of_runs_are_described(journal, run, attempt, result, code, phase):
    journal.set_state(attempt.id, "done", "failure")
    journal.event(run.id, EventKind.ERROR, text="nvcc exit 2", hint=None)
    journal.finish_run(run.id, result, code)
    assert seen(journal, run)[::2] == (phase, "nvcc exit 2")
    journal.event(run.id, EventKind.WAITING, why="later words change no end")
    assert seen(journal, run)[0] is phase


@pytest.mark.parametrize(
    ("detached", "reason"), [(True, Reason.NO_DISPATCHER), (False, Reason.CONTROLLER_DEAD)]
)
def test_a_run_with_a_dead_owner_is_shown_as_abandoned(journal, detached, reason):
    made = journal.create_run("d", Request(detached=detached), PLAN)
    dead = Run(**{**vars(made), "owner": Process(1, "then", "another boot", "")})
    state = state_of(journal, dead)
    assert (state.phase, state.reason, state.text) == (Phase.QUEUED, reason, str(reason))
