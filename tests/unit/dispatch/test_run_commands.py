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
from farm.cli import builds, status
from farm.cli.main import main, parser
from farm.plan.matrix import load_matrix
from farm.plan.settings import load_settings
from farm.run.journal_records import EventKind, Request
from farm.run.run import request_for
from farm.run.run_owner import this_process
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.plans import plan_of
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
    return Workspace(project, load_settings(project), Watcher())


@pytest.fixture
def journal(workspace):
    with open_journal(workspace.project, workspace.settings) as opened:
        yield opened


@pytest.fixture
def run(journal):
    plan = plan_of("cpu-avx-py311", "canary")
    request = request_for(plan, until="publish", on="swarm", priority=3, detached=True)
    return journal.create_run(plan.digest, request, json.loads(plan.to_json()))


@pytest.fixture
def started(monkeypatch):
    """What would have started a dispatcher."""
    made = []
    monkeypatch.setattr(builds, "start_dispatcher", made.append)
    return made


def farm(project, *words):
    return main(["--project", str(project), *words])


def test_status_shows_the_state_and_reason_of_each_run(project, journal, run, capsys):
    assert farm(project, "status", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["state"], line["engine"]) == ("queued", "swarm")
    assert line["why"] == "the dispatcher has not looked at it yet"
    journal.event(run.id, "waiting", why="jobs before it have\x1b[31m taken the slots")
    assert farm(project, "status") == 0
    output = capsys.readouterr().out
    assert "jobs before it" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "the build failed with exit code 1:\n    a.cpp:3: error: no x\n  cause: y",
            "exit code 1: a.cpp:3: error: no x\n",
        ),
        (
            "x.whl does not hold what its name promises:\n  - a.so: no sm_35\n",
            "its name promises: a.so: no sm_35\n",
        ),
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


def test_logs_say_that_no_controller_continues_the_run(project, journal, dead, capsys, monkeypatch):
    """They waited for the next line without a word."""
    waits = []

    def sleep(_):
        waits.append(1)
        if len(waits) == 3:
            journal.finish_run(dead.id, "infra", 9)

    monkeypatch.setattr("farm.cli.runs.time.sleep", sleep)
    assert farm(project, "logs", "-f", dead.id) == 9
    assert (
        capsys.readouterr().err.count("no dispatcher is running: `farm dispatch` continues it") == 1
    )


@pytest.mark.parametrize("why", [None, "the source is being fetched"])
def test_cancel_names_the_process_that_does_not_end_its_run(
    project, journal, run, capsys, monkeypatch, why
):
    monkeypatch.setattr("farm.run.run.CANCEL_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as other:  # it hears of nothing
        owner = replace(this_process(), pid=other.pid, start=process_started(other.pid))
        with journal._writing():
            journal._db.execute("UPDATE runs SET owner = ?", (owner.to_json(),))
        attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "one")
        journal.set_state(attempt.id, "running", why=why)
        assert farm(project, "cancel", run.id) == 9
        other.communicate(b"\n")
    stderr = capsys.readouterr().err
    assert f"it is running{f': {why}' if why else ''}\n" in stderr
    assert f"process {other.pid} ends the run after the step that it is at" in stderr


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


def test_submit_detach_prints_the_id_of_a_run_for_the_dispatcher(
    project, swarm, journal, started, capsys
):
    words = [
        "--variant",
        "cpu-avx-py311",
        "--package",
        "canary",
        "--on",
        "swarm",
        "--detach",
        "--priority",
        "7",
    ]
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
def test_impossible_requests_are_refused_before_anything_is_written(
    project, started, detach, words, text, capsys
):
    before = sorted(project.rglob("*"))
    assert (
        farm(
            project, "submit", "--variant", "cpu-avx-py311", "--package", "canary", *words, *detach
        )
        == 2
    )
    assert text in capsys.readouterr().err
    assert (sorted(project.rglob("*")), started) == (before, [])


@pytest.mark.parametrize("command", ["cancel", "retry", "status", "logs"])
def test_a_command_about_a_run_makes_no_journal_where_there_is_none(project, command, capsys):
    before = sorted(project.rglob("*"))
    assert farm(project, command, "20261101-120000-ab12") == 2
    assert "no run '20261101-120000-ab12': there is no run yet" in capsys.readouterr().err
    assert sorted(project.rglob("*")) == before


def test_cancelling_an_ended_run_is_refused(project, journal, run, capsys):
    assert farm(project, "cancel", run.id, "--json") == 0
    assert valid("cancel", capsys.readouterr().out)["exit_code"] == 130
    assert farm(project, "cancel", run.id) == 2
    assert "has ended" in capsys.readouterr().err


def test_a_run_that_succeeds_before_it_is_cancelled_says_so(
    project, journal, run, capsys, monkeypatch
):
    """Its controller did not see the request before the last step was done."""
    monkeypatch.setattr("farm.run.run._stop", lambda *_: journal.finish_run(run.id, "success", 0))
    assert farm(project, "cancel", run.id) == 2
    assert f"too late to cancel: run {run.id}: it has ended: success" in capsys.readouterr().err


def test_an_unknown_engine_ends_the_run_with_a_clear_error(project, journal, run, capsys):
    journal.finish_run(run.id, "infra", 9)
    plan = plan_of("cpu-avx-py311", "canary")
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


def test_the_help_says_what_detach_does():
    assert "dispatcher" in parser()._subparsers._group_actions[0].choices["submit"].format_help()


@pytest.fixture
def submitted(project, started, capsys):
    """Submits in the background; returns the new runs as the JSON names them."""

    def go(*words):
        assert farm(project, "submit", *words, "--no-smoke", "--detach", "--yes", "--json") == 0, (
            capsys.readouterr().err
        )
        return valid("submit", capsys.readouterr().out)

    return go


def test_submit_takes_several_variants_and_patterns(submitted):
    named = submitted(
        "--package", "canary", "--variant", "cpu-avx-py311", "--variant", "cpu-avx2-py311"
    )
    assert [each["variant"] for each in named] == ["cpu-avx-py311", "cpu-avx2-py311"]
    matched = submitted("--variant", "sm3*-avx*-py311", "--channel", "kepler-2.0.1")
    variants = [each["variant"] for each in matched]
    assert len(variants) > 3
    assert all(v.startswith("sm3") and "-avx" in v and v.endswith("-py311") for v in variants)
    assert len(set(variants)) == len(variants)


def test_submit_takes_every_build_of_a_channel_and_starts_those_first_that_others_need(
    submitted, journal
):
    made = submitted("--channel", "main", "--all")
    builds = [build for build in load_matrix(ROOT).builds("main") if build.platform == "linux"]
    assert sorted((m["package"], m["variant"]) for m in made) == sorted(
        (b.package, str(b.variant)) for b in builds
    )
    needing = [bool(run.plan.get("needs")) for run in journal.open_runs()]
    assert needing == sorted(needing)
    only = submitted("--channel", "main", "--all", "--package", "torch")
    assert {each["package"] for each in only} == {"torch"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "name a build"),
        (("--all",), "--all takes every build of a channel"),
        (("--variant", "sm2*"), "matches 'sm2*'"),
        (
            ("--channel", "main", "--all", "--package", "canary"),
            "channel main builds nothing of canary for linux",
        ),
    ],
)
def test_a_batch_of_nothing_is_refused(project, started, words, text, capsys):
    assert farm(project, "submit", *words, "--detach") == 2
    assert text in capsys.readouterr().err


@pytest.fixture
def batch(journal):
    """Five runs: one succeeded, two failed (one of them was tried again and succeeded), two
    wait.
    """
    made = []
    for number, code in enumerate((0, 5, 8, 0, None, None)):
        plan = "p2" if number in (2, 3) else f"p{number}"
        one = journal.create_run(
            plan, Request(package="canary", variant=f"v{number}", detached=True), {}
        )
        if code is not None:
            if code:
                journal.event(one.id, "error", text=f"error {code}", hint=None)
            journal.finish_run(one.id, "failure" if code else "success", code)
        made.append(one.id)
    return made


def test_wait_ends_with_the_highest_exit_code(project, journal, batch, capsys, monkeypatch):
    assert farm(project, "wait", batch[0], batch[3]) == 0
    assert farm(project, "wait", *batch[:4], "--json") == 8
    printed = capsys.readouterr().out
    assert [each["id"] for each in valid("wait", printed[printed.index("[") :])] == batch[:4]
    ends = iter([(batch[4], 0), (batch[5], 5)])
    monkeypatch.setattr("farm.cli.runs.time.sleep", lambda _: _finish(journal, *next(ends)))
    assert farm(project, "wait") == 5  # those that are open
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == batch[4:]


def _finish(journal, run_id, code):
    journal.finish_run(run_id, "failure" if code else "success", code)


def test_cancel_retry_and_logs_take_several_runs(project, workspace, journal, batch, capsys):
    assert farm(project, "cancel", "--queued", "--json") == 0
    ended = valid("cancel", capsys.readouterr().out)
    assert [each["id"] for each in ended] == batch[4:]
    assert {each["exit_code"] for each in ended} == {130}
    folder = workspace.run_folder(batch[1])
    folder.mkdir(parents=True)
    (folder / "build.log").write_text("first error\n")
    assert farm(project, "logs", "--failed") == 0  # the other failed run was tried again
    assert capsys.readouterr().out == "first error\n"
    assert farm(project, "logs", batch[0], batch[1]) == 0
    output = capsys.readouterr()
    assert f"==> {batch[1]}: canary v1\nfirst error\n" in output.out
    assert "did not come to the build" in output.err


def test_retry_of_all_that_failed(project, swarm, journal, run, started, capsys):
    journal.finish_run(run.id, "failure", 5)
    assert farm(project, "retry", "--failed", "--detach", "--json") == 0
    (new,) = valid("retry", capsys.readouterr().out)
    assert journal.run(new["run"]).request.retry_of == run.id
    assert farm(project, "retry", "--failed", "--detach", "--json") == 0  # it has a later run now
    assert json.loads(capsys.readouterr().out) == []


def test_logs_that_are_followed_end_as_the_run_did(project, workspace, journal, batch, capsys):
    folder = workspace.run_folder(batch[1])
    folder.mkdir(parents=True)
    (folder / "build.log").write_text("x\n")
    assert farm(project, "logs", batch[1]) == 0
    assert farm(project, "logs", "-f", batch[1]) == 5
    assert "error 5" in capsys.readouterr().err


def test_the_log_of_a_folder_that_was_removed_is_gone_and_the_build_was_there(
    project, workspace, journal, run, capsys
):
    attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "swarm", "one")
    journal.set_handle(attempt.id, "container")
    journal.set_state(attempt.id, "done", "failure")
    journal.finish_run(run.id, "failure", 5)
    assert farm(project, "logs", run.id) == 2
    assert f"the log of run {run.id} was removed with its folder" in capsys.readouterr().err


def test_what_a_run_took_does_not_count_its_wait(project, journal, run, capsys, monkeypatch):
    times = iter(f"2026-11-26T1{hour}:00:00.000+00:00" for hour in (2, 5, 6, 6))
    with journal._writing():
        journal._db.execute("UPDATE runs SET created = ?", (next(times),))
    assert status.summary(journal, journal.run(run.id))["started"] is None
    monkeypatch.setattr("farm.run.journal._now", lambda: next(times))
    journal.event(run.id, EventKind.BEGUN)
    journal.finish_run(run.id, "success", 0)
    line = status.summary(journal, journal.run(run.id))
    assert (line["started"], line["seconds"]) == ("2026-11-26T15:00:00.000+00:00", 3600.0)


def test_a_command_with_json_that_fails_prints_a_document_and_says_why(project, run, capsys):
    assert farm(project, "cancel", "nothing", "--json") == 2
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert (document["exit_code"], "no run 'nothing'" in document["error"]) == (2, True)
    assert "no run 'nothing'" in output.err
