"""What the dispatcher's own troubles cost: a journal that fails, threads that die, rounds that
grow.
"""

import pytest

from farm.base.errors import InfrastructureError
from farm.run import dispatch
from farm.run.dispatch import Dispatcher
from farm.run.queue import QueueRunner
from tests.unit.dispatch.conftest import Build, attempts


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
    [
        ("finish_run", 3),
        ("note_waiting", 2),
        ("open_after", 2),
        ("claim_all", 2),
        ("since", 2),
        ("run", 2),
    ],
)
def test_a_journal_that_fails_for_a_while_loses_nothing(
    fleet, workspace, journal, submit, monkeypatch, method, times
):
    fleet.workers = [QueueRunner("a")]  # so that one of the two waits
    made = [submit(), submit()]
    warnings = []
    monkeypatch.setattr(journal, method, failing(times, FULL, getattr(journal, method)))
    Dispatcher(workspace, journal, warn=warnings.append).drain()
    assert [journal.run(run).result for run in made] == ["success", "success"]
    assert [len(attempts(journal, run)) for run in made] == [1, 1]
    assert method in ("run",) or "disk is full" in warnings[0]


def test_an_unreachable_journal_ends_the_dispatcher_and_the_next_one_resumes(
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


@pytest.mark.parametrize(
    "error", [FULL, OSError(28, "No space left on device"), MemoryError(), SystemExit(3)]
)
def test_a_runs_thread_cannot_end_unnoticed(fleet, workspace, journal, submit, monkeypatch, error):
    """Whatever is raised wherever: the run ends, or is taken up again."""
    monkeypatch.setattr(dispatch, "note_steps", failing(10**6, error, None))
    run = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(run).result == "success"
    monkeypatch.setattr(dispatch.MainJob, "steps", failing(1, error, Build.steps))
    other = submit()
    Dispatcher(workspace, journal).drain()
    assert journal.run(other).finished
