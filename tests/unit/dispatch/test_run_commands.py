"""status, logs, cancel and retry go by the journal alone."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from farm.base.processes import started as process_started
from farm.cli import followed, status
from farm.cli.main import main, parser
from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.settings import load_settings
from farm.plan.variant import Variant
from farm.run.journal import Request
from farm.run.journal.owner import this_process
from farm.run.report import Silent
from farm.run.run import request_for
from farm.run.workspace import Workspace, open_journal
from tests.schemas import valid

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path):
    (tmp_path / "ci").mkdir()
    for name in ("farm.yaml", "matrix.yaml", "runners.yaml"):
        (tmp_path / "ci" / name).write_text((ROOT / "ci" / name).read_text())
    return tmp_path


@pytest.fixture
def swarm(project):
    """The project knows a swarm; nobody asks it here."""
    path = project / "ci/farm.yaml"
    text = path.read_text().replace("swarm: null", "swarm: {exchange: s3://farm-exchange}")
    path.write_text(text)
    assert load_settings(project).swarm is not None


@pytest.fixture
def workspace(project):
    return Workspace(project, load_settings(project), Silent())


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


@pytest.fixture
def run(journal):
    plan = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), package="canary"))
    asked = request_for(plan, until="publish", on="swarm", priority=3, detached=True)
    return journal.create_run(plan.digest, asked, json.loads(plan.to_json()))


@pytest.fixture
def started(monkeypatch):
    """What would have started a dispatcher."""
    made = []
    monkeypatch.setattr(followed, "start_dispatcher", made.append)
    return made


def farm(project, *words):
    return main(["--project", str(project), *words])


def test_status_tells_the_state_and_the_why_of_each(project, journal, run, capsys):
    assert farm(project, "status", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["state"], line["engine"]) == ("queued", "swarm")
    assert line["why"] == "the dispatcher has not looked at it yet"
    journal.event(run.id, "waiting", why="jobs before it have\x1b[31m taken the slots")
    assert farm(project, "status") == 0
    said = capsys.readouterr().out
    assert "jobs before it" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "the build failed with exit code 1:\n    a.cpp:3: error: no x\n  cause: y",
            "exit code 1: a.cpp:3: error: no x\n",
        ),
        ("x.whl does not hold what its name promises:\n  - a.so: no sm_35\n", "its name promises: a.so: no sm_35\n"),
        ("one sentence\nand more", "one sentence\n"),
        ("the build failed:", "the build failed:\n"),
        ("", "swarm"),
    ],
)
def test_status_names_the_first_error_of_a_failed_run(project, journal, run, capsys, text, shown):
    journal.event(run.id, "error", text=text, hint=None)
    journal.finish_run(run.id, "failure", 5)
    assert farm(project, "status") == 0
    assert shown in capsys.readouterr().out


def test_status_of_one_with_watch_ends_when_it_has_ended(project, journal, run, capsys):
    journal.finish_run(run.id, "success", 0)
    assert farm(project, "status", run.id, "--watch", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["state"], line["why"]) == ("success", None)


def test_status_with_watch_prints_each_change_where_nothing_can_be_drawn(project, journal, run, capsys, monkeypatch):
    looks = iter([lambda: None, lambda: journal.finish_run(run.id, "success", 0)])
    monkeypatch.setattr(status.time, "sleep", lambda _: next(looks)())
    assert farm(project, "status", "--watch") == 0
    shown = capsys.readouterr()
    assert [line.split()[3] for line in shown.out.splitlines() if line.startswith(run.id)] == ["queued", "success"]
    assert (shown.out.endswith("\n"), shown.err) == (True, "")


def test_logs_follow_what_is_written_and_end_with_the_run(project, workspace, journal, run, capsys):
    log = workspace.run_folder(run.id) / "build.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"one\ntw")

    def more():
        time.sleep(0.5)
        with log.open("ab") as stream:
            stream.write(b"o\n\x1b[2Jthree")
        journal.finish_run(run.id, "success", 0)

    writer = threading.Thread(target=more)
    writer.start()
    assert farm(project, "logs", "-f", run.id) == 0
    writer.join()
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


@pytest.fixture
def dead(journal, run):
    """The run, of a dispatcher that was killed."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    owner = replace(this_process(), pid=child.pid, start="1")
    child.wait()
    with journal._writing():
        journal._db.execute("UPDATE runs SET owner = ?", (owner.to_json(),))
    return run


def test_logs_say_that_nobody_goes_on_with_the_run(project, journal, dead, capsys, monkeypatch):
    """They waited for the next line without a word."""
    waits = []

    def sleep(_):
        waits.append(1)
        if len(waits) == 3:
            journal.finish_run(dead.id, "infra", 9)

    monkeypatch.setattr("farm.cli.logs.time.sleep", sleep)
    assert farm(project, "logs", "-f", dead.id) == 0
    assert capsys.readouterr().err.count("no dispatcher is running: `farm dispatch` continues it") == 1


@pytest.mark.parametrize("why", [None, "the source is being fetched"])
def test_cancel_names_the_process_that_does_not_end_its_run(project, journal, run, capsys, monkeypatch, why):
    monkeypatch.setattr("farm.run.run.CANCEL_S", 0.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:  # it hears of nothing
        owner = replace(this_process(), pid=other.pid, start=process_started(other.pid))
        with journal._writing():
            journal._db.execute("UPDATE runs SET owner = ?", (owner.to_json(),))
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "one")
        journal.set_state(attempt.id, "running", why=why)
        assert farm(project, "cancel", run.id) == 9
        other.communicate(b"\n")
    said = capsys.readouterr().err
    assert f"it is running{f': {why}' if why else ''}\n" in said
    assert f"process {other.pid} ends the run after the step that it is at" in said


def test_retry_of_a_run_that_can_go_on_does_not_lead_to_cancel(project, dead, capsys):
    assert farm(project, "retry", dead.id) == 2
    assert "next: no dispatcher is running: `farm dispatch` continues it" in capsys.readouterr().err


def test_retry_is_a_new_run_of_the_same_plan(project, swarm, journal, run, started, capsys):
    assert farm(project, "retry", run.id) == 2
    assert "has not ended" in capsys.readouterr().err
    journal.finish_run(run.id, "failure", 5)
    assert farm(project, "retry", run.id, "--detach", "--json") == 0
    new = journal.run(valid("retry", capsys.readouterr().out)["run"])
    assert new.plan_digest == run.plan_digest
    assert new.request == replace(run.request, retry_of=run.id)
    assert len(started) == 1


def test_submit_detach_prints_the_id_of_a_run_for_the_dispatcher(project, swarm, journal, started, capsys):
    words = ["--variant", "cpu-avx-py311", "--package", "canary", "--on", "swarm", "--detach", "--priority", "7"]
    assert farm(project, "submit", *words, "--no-smoke") == 0
    (new,) = journal.open_runs()
    assert capsys.readouterr().out.strip() == new.id
    assert (new.request.on, new.request.until) == ("swarm", "publish")
    assert new.request.priority == 7


@pytest.mark.parametrize("detach", [[], ["--detach"]])
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--on", "mars"], "unknown engine 'mars'"),
        (["--on", "swarm"], "does not say how the swarm is reached"),
        (["--on", "github"], "github.repository is not set"),
        (["--package", "cannary"], "unknown package 'cannary'"),
        (["--channel", "mian"], "unknown channel 'mian'"),
    ],
)
def test_what_is_unknown_or_no_engine_can_do_is_refused_before_anything_is_written(
    project, started, detach, words, text, capsys
):
    before = sorted(project.rglob("*"))
    assert farm(project, "submit", "--variant", "cpu-avx-py311", "--package", "canary", *words, *detach) == 2
    assert text in capsys.readouterr().err
    assert (sorted(project.rglob("*")), started) == (before, [])


@pytest.mark.parametrize("command", ["cancel", "retry", "status", "logs"])
def test_a_command_about_a_run_makes_no_journal_where_there_is_none(project, command, capsys):
    before = sorted(project.rglob("*"))
    assert farm(project, command, "20261101-120000-ab12") == 2
    assert "no run '20261101-120000-ab12': there is no run yet" in capsys.readouterr().err
    assert sorted(project.rglob("*")) == before


def test_cancel_of_what_has_ended_is_refused(project, journal, run, capsys):
    assert farm(project, "cancel", run.id, "--json") == 0
    assert valid("cancel", capsys.readouterr().out)["exit_code"] == 130
    assert farm(project, "cancel", run.id) == 2
    assert "has ended" in capsys.readouterr().err


def test_a_run_that_succeeds_before_it_is_cancelled_says_so(project, journal, run, capsys, monkeypatch):
    """As in its smoke test, when the wheel is published."""

    def late(_workspace, name):
        journal.finish_run(name, "success", 0)
        return journal.run(name)

    monkeypatch.setattr("farm.run.run.cancel", late)
    assert farm(project, "cancel", run.id) == 0
    assert capsys.readouterr().out == f"run {run.id} has ended before it was cancelled: success\n"


def test_watching_a_journal_without_runs_says_so(project, capsys):
    open_journal(project, load_settings(project)).close()
    assert farm(project, "status", "--watch") == 0
    assert capsys.readouterr().out == "no runs yet\n"


def test_an_unknown_engine_ends_the_run_with_a_clear_error(project, journal, run, capsys):
    journal.finish_run(run.id, "infra", 9)
    plan = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), package="canary"))
    journal.create_run(plan.digest, Request(detached=True, on="abacus"), json.loads(plan.to_json()))
    journal.create_run(plan.digest, Request(detached=True, on="swarm"), json.loads(plan.to_json()))
    assert farm(project, "dispatch") == 0
    assert farm(project, "status", "--json") == 0
    swarm, abacus, _ = json.loads(capsys.readouterr().out)
    assert "unknown engine 'abacus'" in abacus["why"]
    assert "does not say how the swarm is reached" in swarm["why"]


@pytest.mark.parametrize("command", ["status", "logs", "cancel", "retry"])
def test_an_unknown_run_is_a_usage_error(project, command, capsys):
    assert farm(project, command, "nothing") == 2
    assert "no run 'nothing'" in capsys.readouterr().err


def test_the_help_tells_what_detach_does():
    assert "dispatcher" in parser()._subparsers._group_actions[0].choices["submit"].format_help()
