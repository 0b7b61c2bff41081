"""`farm submit --on github` and the dispatcher behind it, against the fake of GitHub in fake.py."""

import json
import shutil
import threading
import time
from functools import partial

import pytest
import yaml

from farm.cli import builds, status
from farm.cli.main import main
from farm.engines.github import GithubEngine
from farm.plan.settings import load_settings
from farm.run import backends, dispatch
from farm.run.workspace import Watcher, Workspace, open_journal
from tests.integration.github.conftest import BUILDER, K40, ROOT
from tests.integration.github.fake import REPOSITORY, TOKEN

SELECT = [
    "--variant",
    "cpu-avx-py311",
    "--package",
    "canary",
    "--no-publish",
    "--on",
    "github",
    "--detach",
]


@pytest.fixture
def project(fake, tmp_path, monkeypatch):
    for name in ("ci", "dockerfiles"):
        shutil.copytree(ROOT / name, tmp_path / name)
    edit(
        tmp_path,
        "runners.yaml",
        lambda data: data["github"].update(repository=REPOSITORY, api_url=fake.url),
    )
    edit(tmp_path, "farm.yaml", lambda data: data.update(grace_s=0))
    for name in ("FARM_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setattr(builds, "start_dispatcher", lambda _setting: None)
    monkeypatch.setattr(backends, "GithubEngine", partial(GithubEngine, poll_s=0.05))
    monkeypatch.setattr(dispatch, "TICK_S", 0.05)
    return tmp_path


def edit(project, name, change):
    path = project / "ci" / name
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data))


@pytest.fixture
def journal(project):
    with open_journal(project, load_settings(project)) as opened:
        yield opened


@pytest.fixture
def farm(project, capsys):
    def go(*words):
        code = main(["--project", str(project), *words])
        out = capsys.readouterr()
        return code, out.out, out.err

    return go


@pytest.fixture
def dispatched(farm, journal, capsys):
    """Submits a run and carries it out to its end; what `farm status` then says."""

    def go():
        assert farm("submit", *SELECT)[0] == 0
        assert farm("dispatch")[0] == 0
        (run,) = journal.runs()
        return json.loads(farm("status", run.id, "--json")[1])

    return go


# -- what is wrong is said where it is asked for --


def test_without_a_token_nothing_is_begun(farm, journal, monkeypatch):
    monkeypatch.delenv("GITHUB_TOKEN")
    code, _, err = farm("submit", *SELECT)
    assert code == 2
    assert "no usable token for GitHub" in err
    assert "GH_TOKEN" in err
    assert journal.runs() == ()


@pytest.mark.parametrize("name", ["FARM_GITHUB_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"])
def test_the_token_is_taken_from_the_usual_variables(farm, journal, monkeypatch, name):
    monkeypatch.delenv("GITHUB_TOKEN")
    monkeypatch.setenv(name, TOKEN)
    assert farm("submit", *SELECT)[0] == 0
    assert len(journal.runs()) == 1


def test_without_a_repository_nothing_is_begun(farm, journal, project):
    edit(project, "runners.yaml", lambda data: data["github"].update(repository=None))
    code, _, err = farm("submit", *SELECT)
    assert code == 2
    assert "github.repository is not set" in err
    assert journal.runs() == ()


@pytest.mark.parametrize(
    ("scopes", "needs"),
    [({"read", "write"}, "administration=read"), ({"read", "admin"}, "actions=write")],
)
def test_a_token_of_too_narrow_scope_ends_the_run_and_says_which_right_it_lacks(
    fake, dispatched, scopes, needs
):
    fake.add_runner("linux-build", BUILDER)
    fake.scopes = scopes
    status = dispatched()
    assert status["exit_code"] == 2
    assert needs in status["why"]


def test_a_refused_token_ends_the_run_and_is_never_printed(fake, dispatched, project, monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "the-wrong-one")
    status = dispatched()
    assert status["exit_code"] == 2
    assert "refuses the token" in status["why"]
    written = b"".join(
        path.read_bytes() for path in (project / "artifacts").rglob("*") if path.is_file()
    )
    assert b"the-wrong-one" not in written


def test_no_runner_with_the_labels_names_the_nearest(fake, dispatched):
    fake.add_runner("k40", K40)
    status = dispatched()
    assert status["exit_code"] == 4
    assert (
        "no runner of github takes it: no runner fits; the nearest, k40: it has no label farm-build"
        in status["why"]
    )
    assert not fake.runs


def test_runners_that_are_offline_are_named(fake, dispatched):
    fake.add_runner("linux-build", BUILDER, online=False)
    status = dispatched()
    assert status["exit_code"] == 4
    assert "no runner that fits is online (linux-build would)" in status["why"]


def test_labels_that_the_project_does_not_know(dispatched, project):
    edit(project, "runners.yaml", lambda data: data["github"]["build"].pop("linux-x86_64"))
    status = dispatched()
    assert status["exit_code"] == 2
    assert "has no labels for linux-x86_64" in status["why"]


# -- a run under way --


@pytest.fixture
def carried(project, journal, farm):
    """Submits a run whose dispatcher works in a thread; gives the run's id, then waits for its
    end.
    """
    threads = []

    def go():
        assert farm("submit", *SELECT)[0] == 0
        (run,) = journal.runs()
        dispatcher = dispatch.Dispatcher(
            Workspace(project, load_settings(project), Watcher()), journal
        )
        threads.append(threading.Thread(target=dispatcher.drain, daemon=True))
        threads[0].start()
        return run.id

    yield go
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def soon(check):
    deadline = time.monotonic() + 300  # of a busy machine
    while time.monotonic() < deadline:
        if found := check():
            return found
        time.sleep(0.02)
    raise AssertionError("not within 300 s")


def line(journal, run):
    return status.summary(journal, journal.run(run))


def test_what_github_keeps_queued_says_why_and_ends_when_it_is_cancelled(
    fake, carried, journal, farm
):
    fake.add_runner("linux-build", BUILDER, busy=True)
    run = carried()
    soon(
        lambda: (line(journal, run)["why"] or "").startswith(
            "busy: linux-build; queued for 0.0 of the 24 hours"
        )
    )
    assert line(journal, run)["state"] == "queued"
    assert farm("cancel", run, "--json")[0] == 0
    assert line(journal, run)["state"] == "cancelled"
    assert len(fake.sent("POST", "/cancel")) == 1


def test_a_runner_that_vanishes_costs_a_try(fake, carried, journal):
    for name in ("one", "two"):
        fake.add_runner(name, BUILDER)
    run = carried()
    first = soon(lambda: list(fake.runs))[0]
    soon(lambda: line(journal, run)["state"] == "queued" and line(journal, run)["attempts"])
    fake.take(first, "one")
    soon(lambda: line(journal, run)["state"] == "running")
    fake.finish(first, "failure", step=None)
    second = soon(lambda: list(fake.runs)[1:])[0]
    fake.take(second, "two")
    fake.finish(second, "failure", b"##[error]Process completed with exit code 5.\n")
    soon(lambda: journal.run(run).finished)
    assert journal.run(run).exit_code == 5
    attempts = [attempt for job in journal.jobs(run) for attempt in job.attempts]
    assert [attempt.result for attempt in attempts] == ["infra", "failure"]
    assert "one was lost" in attempts[0].why


def test_what_a_person_cancels_at_github_is_not_tried_again(fake, carried, journal):
    fake.add_runner("one", BUILDER)
    run = carried()
    (first,) = soon(lambda: list(fake.runs))
    soon(lambda: line(journal, run)["state"] == "queued" and line(journal, run)["attempts"])
    fake.take(first, "one")
    fake.finish(first, "cancelled")
    soon(lambda: journal.run(run).finished)
    assert (journal.run(run).exit_code, list(fake.runs)) == (130, [first])
    assert line(journal, run)["state"] == "cancelled"
    assert [(a.state, a.why) for job in journal.jobs(run) for a in job.attempts] == [
        ("cancelled", "cancelled at GitHub")
    ]


def test_a_hostile_log_reaches_no_terminal(fake, carried, journal, farm):
    fake.add_runner("linux-build", BUILDER)
    run = carried()
    made = soon(lambda: list(fake.runs))[0]
    log = (
        b"\x1b]0;owned\x07hello\x1b[2J\n"
        + b"A" * (3 << 20)
        + b"\n##[error]Process completed with exit code 5.\n"
    )
    fake.take(made, "linux-build\x1b[31m")
    fake.finish(made, "failure", log)
    soon(lambda: journal.run(run).finished)
    _, shown, _ = farm("logs", run)
    _, status, _ = farm("status", run)
    assert "hello" in shown
    assert max(map(len, shown.splitlines())) < 3000
    assert not any(ord(c) < 32 for text in (shown, status) for c in text if c != "\n")
