"""A machine that answers but cannot prepare builds does not swallow the queue."""

import json
import threading
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from farm.base.errors import InfrastructureError, NoRunnerError
from farm.cli.main import main
from farm.run import dispatch, run, run_context
from farm.run.dispatch import Dispatcher
from farm.run.journal_records import EventKind
from farm.run.queue import QueueRunner
from farm.run.set_aside import FIRST_S, set_aside
from farm.run.workspace import open_journal
from tests.faults.engine import Engine, install, install_smoke, the_plan, workspace_in

RUNNERS = {
    "local": {"engine": "docker", "jobs": ["build"]},
    "m2": {"engine": "docker", "url": "tcp://127.0.0.1:9", "jobs": ["build"], "slots": 4},
}
NO_IMAGE = "no base image: pull failed"


class Machine:
    """An open engine of the fleet; `broken`: what it says when an image is to be made."""

    def __init__(self, name, slots, broken=None):
        self.name = name
        self.engine = Engine()
        self.slots = slots
        self.broken = broken
        self.prepared = 0
        self.builder = None
        self.lock = threading.Lock()
        self.max_output = 1 << 30

    def workers(self):
        return [QueueRunner(self.name, slots=self.slots)]

    def close(self):
        pass


@pytest.fixture
def workspace(tmp_path):
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci/runners.yaml").write_text(json.dumps({"runners": RUNNERS}))
    return workspace_in(tmp_path)


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


@pytest.fixture(params=[InfrastructureError, NoRunnerError], ids=["infra", "no runner"])
def machines(request, monkeypatch):
    """`local`, which can build one at a time, and `m2`, which cannot prepare anything."""
    install(monkeypatch.setattr, the_plan(), Engine())
    install_smoke(monkeypatch.setattr)
    fleet = {
        "local": Machine("local", 1),
        "m2": Machine("m2", 4, request.param(NO_IMAGE)),
    }

    def toolchain(_workspace, backend, *_):
        backend.prepared += 1
        if backend.broken:
            raise backend.broken
        return "toolchain:1"

    monkeypatch.setattr(run_context, "toolchain", toolchain)
    monkeypatch.setattr(dispatch, "open_backend", lambda _workspace, _on, runner: fleet[runner])
    return fleet


def submit(journal, count):
    plan = the_plan()
    request = run.request_for(plan, until="build", on="docker", detached=True, rebuild=True)
    text = json.loads(plan.to_json())
    return [journal.create_run(plan.digest, request, text).id for _ in range(count)]


def test_every_queued_run_is_built_by_the_machine_that_can(workspace, journal, machines):
    made = submit(journal, 6)
    Dispatcher(workspace, journal).drain()
    assert [journal.run(run_id).result for run_id in made] == ["success"] * 6
    assert machines["local"].engine.numbers == 6


def test_after_two_failures_a_machine_is_asked_for_no_more_builds(
    workspace, journal, machines, monkeypatch
):
    monkeypatch.setattr("farm.run.set_aside.FIRST_S", 3600.0)
    machines["m2"].slots = 1
    submit(journal, 8)
    Dispatcher(workspace, journal).drain()
    assert machines["m2"].prepared == 2


def test_a_failed_preparation_is_a_lost_attempt_of_that_machine(workspace, journal, machines):
    (made,) = submit(journal, 1)
    machines["local"].slots = 0
    dispatcher = Dispatcher(workspace, journal)
    dispatcher.tick()
    while not journal.happened(made, EventKind.UNPREPARED):
        dispatcher.tick()
    (attempt,) = [a for job in journal.jobs(made) for a in job.attempts]
    assert (attempt.runner, attempt.handle) == ("m2", None)
    machines["local"].slots = 1
    dispatcher.drain()
    runners = [a.runner for job in journal.jobs(made) for a in job.attempts]
    assert runners == ["m2", "local"]


def failed(journal, count, name="m2", why=NO_IMAGE):
    """So many builds that a machine could not prepare; returns the time of the newest."""
    for run_id in submit(journal, count):
        job = journal.create_job(run_id, "build")
        attempt = journal.create_attempt(job.id, "docker", name)
        journal.event(run_id, EventKind.UNPREPARED, job.id, attempt.id)
        journal.set_state(attempt.id, "lost", "infra", why=why)
    return datetime.fromisoformat(journal.happened(run_id, EventKind.UNPREPARED).time)


def test_one_failure_sets_no_machine_aside(workspace, journal):
    newest = failed(journal, 1)
    assert set_aside(journal, newest) == {}


@pytest.mark.parametrize(("failures", "minutes"), [(2, 1), (3, 2), (5, 8), (20, 30)])
def test_a_machine_is_set_aside_longer_with_each_failure(workspace, journal, failures, minutes):
    newest = failed(journal, failures)
    last_moment = newest + timedelta(seconds=FIRST_S * minutes - 1)
    assert set_aside(journal, last_moment)["m2"].failures == failures
    assert set_aside(journal, newest + timedelta(seconds=FIRST_S * minutes)) == {}


def test_a_started_build_ends_the_setting_aside(workspace, journal):
    newest = failed(journal, 5)
    (run_id,) = submit(journal, 1)
    attempt = journal.create_attempt(journal.create_job(run_id, "build").id, "docker", "m2")
    journal.set_handle(attempt.id, "container")
    assert set_aside(journal, newest) == {}


@pytest.mark.usefixtures("machines")
def test_status_names_the_machine_and_the_reason(workspace, journal, capsys, monkeypatch):
    failed(journal, 2)
    settings = workspace.settings
    monkeypatch.setattr("farm.cli.selection.load_settings", lambda _project: settings)
    assert main(["--project", str(workspace.project), "status"]) == 0
    error = capsys.readouterr().err
    assert "runner m2 is set aside until" in error
    assert NO_IMAGE in error


def test_runners_check_names_machines_that_are_set_aside(workspace, journal, capsys, monkeypatch):
    failed(journal, 2)
    settings = workspace.settings
    monkeypatch.setattr("farm.cli.selection.load_settings", lambda _project: settings)
    online = SimpleNamespace(online=True, busy=False, why=None)
    monkeypatch.setattr("farm.run.backends.ask", lambda *_: dict.fromkeys(RUNNERS, online))
    monkeypatch.setattr("farm.run.backends.differences", lambda *_: [])
    assert main(["--project", str(workspace.project), "runners", "check"]) == 4
    output = capsys.readouterr().out
    assert NO_IMAGE in output
    assert "as written" in output  # of the other one
