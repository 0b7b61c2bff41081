"""What there is of a build, after a controller that was killed at any moment; and what a submit
leaves open.
"""

import json

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError
from farm.engines.base import Observation
from farm.run import resume, run
from farm.run.build_step import StillRunningError
from farm.run.journal_records import EventKind
from farm.run.resume import Stage, adopt_orphaned_run
from farm.run.workspace import open_journal
from tests.faults.engine import Engine, install, install_smoke, the_plan, workspace_in


@pytest.fixture(scope="module")
def plan():
    return the_plan()


@pytest.fixture
def workspace(tmp_path):
    return workspace_in(tmp_path)


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


def begun(journal, plan):
    request = run.request_for(plan, until="build", on="docker")
    return journal.create_run(plan.digest, request, json.loads(plan.to_json()))


def attempt_of(journal, made):
    return journal.create_attempt(journal.create_job(made.id, "build").id, "docker", "local")


def state(workspace, journal, made):
    return resume.build_state(workspace, journal, made.id)


def test_a_build_without_an_attempt_is_fresh(workspace, journal, plan):
    assert state(workspace, journal, begun(journal, plan)).stage is Stage.FRESH


def test_an_attempt_without_a_handle_may_have_been_submitted(workspace, journal, plan):
    made = begun(journal, plan)
    attempt = attempt_of(journal, made)
    seen = state(workspace, journal, made)
    assert (seen.stage, seen.resumable) == (Stage.SUBMITTED, True)
    assert seen.open_attempt.id == attempt.id
    assert seen.at_engines == []


def test_an_attempt_with_a_handle_runs_at_its_engine(workspace, journal, plan):
    made = begun(journal, plan)
    attempt = attempt_of(journal, made)
    journal.set_handle(attempt.id, "container")
    seen = state(workspace, journal, made)
    assert (seen.stage, seen.resumable) == (Stage.RUNNING, True)
    assert [a.handle for a in seen.at_engines] == ["container"]


@pytest.mark.parametrize(
    ("ended", "stage"),
    [
        (("lost", "infra"), Stage.FRESH),
        (("cancelled", None), Stage.FRESH),
        (("done", "failure"), Stage.FAILED),
    ],
)
def test_an_attempt_that_ended_leaves_nothing_to_go_on_with(workspace, journal, plan, ended, stage):
    made = begun(journal, plan)
    attempt = attempt_of(journal, made)
    journal.set_handle(attempt.id, "container")
    journal.set_state(attempt.id, *ended, why="it ended")
    seen = state(workspace, journal, made)
    assert (seen.stage, seen.resumable) == (stage, False)


def test_output_in_the_folder_counts_more_than_what_the_journal_says(workspace, journal, plan):
    made = begun(journal, plan)
    attempt = attempt_of(journal, made)
    journal.set_handle(attempt.id, "container")
    (workspace.run_folder(made.id) / "built").mkdir(parents=True)
    assert state(workspace, journal, made).stage is Stage.COLLECTED


def test_a_wheel_of_an_earlier_run_says_whose_it_is(workspace, journal, plan):
    made = begun(journal, plan)
    journal.event(made.id, EventKind.RESUMED, run="earlier")
    (workspace.run_folder(made.id) / "built").mkdir(parents=True)
    assert state(workspace, journal, made).adopted_from == "earlier"


# --- what `farm submit` leaves open


@pytest.fixture
def engine(plan, monkeypatch):
    made = Engine()
    install(monkeypatch.setattr, plan, made)
    install_smoke(monkeypatch.setattr)
    return made


class Unreachable(Engine):
    """Answers until the job is submitted, and no more then."""

    reachable = True

    def observe(self, handle):
        if not self.reachable:
            raise InfrastructureError("no answer")
        return super().observe(handle)

    def submit(self, job):
        handle = super().submit(job)
        self.reachable = False
        return handle


def test_a_build_whose_engine_is_away_stays_open_for_the_same_command(
    workspace, journal, plan, monkeypatch
):
    engine = Unreachable()
    install(monkeypatch.setattr, plan, engine)
    with pytest.raises(StillRunningError):
        run.submit(workspace, plan, until="build")
    (made,) = journal.runs(1)
    assert made.finished is None
    engine.reachable = True
    outcomes = run.submit(workspace, plan, until="build")
    assert outcomes.run == made.id
    assert engine.numbers == 1  # it was not built twice
    assert journal.run(made.id).result == "success"


@pytest.mark.parametrize(
    ("ended", "exit_code"),
    [
        (Observation("done", exit_code=1), BuildFailedError.exit_code),
        (Observation("lost", why="its node failed"), InfrastructureError.exit_code),
    ],
)
def test_a_build_that_has_ended_ends_the_run(
    engine, workspace, journal, plan, monkeypatch, ended, exit_code
):
    monkeypatch.setattr(engine, "observe", lambda _handle: ended)
    with pytest.raises((BuildFailedError, InfrastructureError)):
        run.submit(workspace, plan, until="build")
    (made,) = journal.runs(1)
    assert made.exit_code == exit_code


def test_an_error_of_this_machine_leaves_the_running_build_open(
    engine, workspace, journal, plan, monkeypatch
):
    def full(*_words, **_more):
        raise OSError(28, "No space left on device", "build.log")

    monkeypatch.setattr("farm.run.build_step.follow", full)
    with pytest.raises(InfrastructureError):
        run.submit(workspace, plan, until="build")
    (made,) = journal.runs(1)
    assert made.finished is None


def test_a_run_of_a_live_controller_is_not_adopted(workspace, journal, plan):
    made = begun(journal, plan)
    with journal._writing():
        owner = json.loads(journal._db.execute("SELECT owner FROM runs").fetchone()[0])
        owner |= {"space": "pid:[1]"}  # another container, of which nothing can be said
        journal._db.execute("UPDATE runs SET owner = ?", (json.dumps(owner, sort_keys=True),))
    assert adopt_orphaned_run(journal, plan) is None
    assert journal.run(made.id).finished is None
