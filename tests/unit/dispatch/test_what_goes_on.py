"""Ctrl-C ends a command and says which runs go on; a cancel says whether it came in time."""

import json
import queue
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from farm.cli import builds, runs
from farm.cli.main import main
from farm.plan.file import SourcePlan
from farm.run.build_step import BuildStep
from farm.run.cancellable import CancelledError, left_at_cancel
from farm.run.download import TIMEOUT_S
from farm.run.journal_records import EventKind
from farm.run.mainjob import MainJob
from farm.run.run import request_for, submit
from farm.run.workspace import Outcomes, open_journal
from tests.faults.engine import Engine, install
from tests.plans import plan_of
from tests.unit.dispatch.test_run_commands import journal, project, run, swarm, workspace

__all__ = ["journal", "project", "run", "swarm", "workspace"]

SUBMIT = ["submit", "--package", "canary", "--on", "swarm", "--no-smoke"]
TWO = ["--variant", "cpu-avx-py311", "--variant", "cpu-sse41-py311"]


def farm(project, *words):
    return main(["--project", str(project), *words])


@pytest.fixture
def no_dispatcher(monkeypatch):
    monkeypatch.setattr(builds, "start_dispatcher", lambda _workspace: None)


@pytest.fixture
def ctrl_c(monkeypatch):
    """Ctrl-C at the first moment at which a command waits."""

    def sleep(_seconds):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(runs.time, "sleep", sleep)


@pytest.mark.usefixtures("swarm", "no_dispatcher", "ctrl_c")
@pytest.mark.parametrize("variants", [TWO, TWO[:2]], ids=["two runs", "one run"])
def test_ctrl_c_of_a_submit_names_the_runs_that_go_on(project, journal, capsys, variants):
    assert farm(project, *SUBMIT, *variants) == 130
    ids = sorted(run.id for run in journal.runs())
    assert len(ids) == len(variants) // 2
    error = capsys.readouterr().err
    assert "nothing incomplete" not in error
    assert "go on without this command" in error or "goes on without this command" in error
    assert f"`farm cancel {' '.join(ids)}` ends" in error


@pytest.mark.usefixtures("swarm", "no_dispatcher")
def test_ctrl_c_while_runs_are_queued_leaves_none_unnamed(project, journal, capsys, monkeypatch):
    created = runs_created_with_ctrl_c(monkeypatch)
    assert farm(project, *SUBMIT, *TWO) == 130
    ids = sorted(run.id for run in journal.runs())
    assert sorted(created) == ids
    assert len(ids) == 2
    assert f"`farm cancel {' '.join(ids)}` ends" in capsys.readouterr().err


def runs_created_with_ctrl_c(monkeypatch):
    """The ids of runs, after the first of which Ctrl-C comes."""
    created = []
    create = builds.runs.create

    def interrupted(*words):
        made = create(*words)
        created.append(made.id)
        if len(created) == 1:
            signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(builds.runs, "create", interrupted)
    return created


@pytest.mark.usefixtures("swarm", "ctrl_c")
@pytest.mark.parametrize("command", ["wait", "logs"])
def test_ctrl_c_of_a_command_that_follows_ends_no_run(project, journal, run, capsys, command):
    words = ["logs", "-f"] if command == "logs" else ["wait"]
    assert farm(project, *words, run.id) == 130
    assert journal.run(run.id).finished is None
    error = capsys.readouterr().err
    assert f"run {run.id} goes on without this command" in error
    assert f"`farm cancel {run.id}` ends" in error


def test_a_cancel_after_the_end_says_that_it_is_too_late(project, journal, run, capsys):
    journal.finish_run(run.id, "success", 0)
    assert farm(project, "cancel", run.id) == 2
    assert f"run {run.id}: it has ended: success" in capsys.readouterr().err


def test_a_cancel_while_the_wheel_is_published_says_that_it_is_too_late(
    project, journal, run, capsys
):
    assert journal.claim(run.id)  # it has a controller: this process
    owned_by_somebody_alive(journal)
    assert journal.event_unless(run.id, EventKind.PUBLISHING, EventKind.CANCEL)
    assert farm(project, "cancel", run.id) == 2
    assert "its wheel is being published" in capsys.readouterr().err
    assert journal.run(run.id).finished is None
    assert journal.happened(run.id, EventKind.CANCEL) is None


def owned_by_somebody_alive(journal):
    with journal._writing():
        owner = json.loads(journal._db.execute("SELECT owner FROM runs").fetchone()[0])
        owner |= {"space": "pid:[1]"}  # another container, of which nothing can be said
        journal._db.execute("UPDATE runs SET owner = ?", (json.dumps(owner, sort_keys=True),))


def test_a_cancel_that_is_accepted_lets_nothing_be_published(workspace, journal):
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="publish", on="swarm")
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    job = MainJob(workspace, plan, journal, run, Outcomes(), lambda _runner: None)
    journal.event(run.id, EventKind.CANCEL)
    with pytest.raises(CancelledError):
        job.pass_the_last_cancel()
    assert journal.happened(run.id, EventKind.PUBLISHING) is None


@pytest.mark.usefixtures("swarm")
def test_a_cancel_of_an_empty_queue_says_so(project, journal, run, capsys):
    journal.finish_run(run.id, "success", 0)
    assert farm(project, "cancel", "--queued") == 0
    assert capsys.readouterr().out == "no run is queued\n"


@pytest.mark.usefixtures("swarm")
def test_the_last_line_of_a_batch_holds_the_reason(project, journal, run, capsys):
    text = "x.whl does not hold what its name promises:\n  - a.so: no sm_35"
    journal.event(run.id, EventKind.ERROR, text=text, hint=None)
    journal.finish_run(run.id, "failure", 6)
    assert farm(project, "wait", run.id) == 6
    assert capsys.readouterr().out.endswith("its name promises: a.so: no sm_35\n")


def test_a_cancel_ends_an_image_build_at_its_next_line(workspace, journal, monkeypatch):
    """It was obeyed only after the image, ten minutes later."""
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="publish", on="swarm", detached=True)
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    lines = []

    def image_build(workspace, *_):
        for number in range(3):
            lines.append(number)
            workspace.watcher.line(f"Step {number}")
            journal.event(run.id, EventKind.CANCEL)

    monkeypatch.setattr("farm.run.run_context.toolchain", image_build)
    monkeypatch.setattr("farm.run.cancellable.CANCEL_LOOK_S", 0.0)
    job = MainJob(workspace, plan, journal, run, Outcomes(), lambda _runner: None)
    with pytest.raises(CancelledError):
        job.toolchain(job.folder, backend=object())
    assert lines in ([0], [0, 1])


# --- a cancel of work that prints nothing


@pytest.fixture
def silent_server():
    """Takes connections and never answers: its address, and an event that is set when one came."""
    connected = threading.Event()
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            connected.set()
            over.wait(END_S)
            connection.close()

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}/a.tar.gz", connected
        over.set()


END_S = 60.0
"""A generous end of each wait; nothing here takes more than moments."""


# urllib3 leaves its socket to the garbage collector where a handshake is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("detached", [True, False], ids=["dispatcher", "command"])
def test_a_cancel_ends_a_download_that_hangs(workspace, journal, silent_server, detached):
    """It was seen at the next line alone: here the 60 s of a request later, then again."""
    address, connected = silent_server
    source = SourcePlan(kind="archive", url=address, sha256="0" * 64)
    plan = plan_of("cpu-avx-py311", "canary").model_copy(update={"source": source})
    request = request_for(plan, until="publish", on="docker", detached=detached)
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    backend = SimpleNamespace(engine=Engine())
    job = MainJob(workspace, plan, journal, run, Outcomes(), lambda _runner: backend)

    def cancel():
        assert connected.wait(END_S)
        journal.event(run.id, EventKind.CANCEL)

    threading.Thread(target=cancel, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(CancelledError if detached else KeyboardInterrupt):
        BuildStep(job)._fetch()
    assert time.monotonic() - began < TIMEOUT_S / 2  # not after the request has given up
    assert [(step.name, step.outcome) for step in job.outcomes.steps] == [("fetch", "failed")]


def test_what_a_cancelled_step_makes_later_is_discarded():
    finish = threading.Event()
    discarded = queue.Queue()

    def check():
        raise CancelledError("cancelled")

    def work():
        assert finish.wait(END_S)
        return "inputs"

    with pytest.raises(CancelledError):
        left_at_cancel(work, check, discarded.put)
    finish.set()
    assert discarded.get(timeout=END_S) == "inputs"


def test_a_command_that_another_one_cancels_says_that_it_was_cancelled(
    workspace, journal, monkeypatch
):
    plan = plan_of("cpu-avx-py311", "canary")
    waiting = threading.Event()

    def silent_toolchain(*_):
        waiting.set()
        threading.Event().wait(END_S)
        raise AssertionError("the cancel did not come")

    def cancel():
        assert waiting.wait(END_S)
        with open_journal(workspace.project, workspace.settings) as other:
            other.event(other.open_runs()[-1].id, EventKind.CANCEL)

    install(monkeypatch.setattr, plan, Engine())
    monkeypatch.setattr("farm.run.run_context.toolchain", silent_toolchain)
    threading.Thread(target=cancel, daemon=True).start()
    with pytest.raises(CancelledError, match="was cancelled"):
        submit(workspace, plan, until="build")
    (ended,) = journal.runs(1)
    assert ended.exit_code == 130
