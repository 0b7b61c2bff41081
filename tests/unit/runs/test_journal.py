"""Runs, jobs, attempts and events as one process sees them."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.run.journal import Journal
from farm.run.journal_records import Request
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]


def test_a_run_from_beginning_to_end(journal):
    run = journal.create_run(
        "d1", Request(variant="sm35-avx-py311"), {"torch": "2.0.1", "archs": ["3.5"]}
    )
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", run.id)
    build, smoke = journal.create_job(run.id, "build"), journal.create_job(run.id, "smoke")
    first = journal.create_attempt(build.id, "docker", "local")
    assert (first.state, first.result, first.handle) == ("queued", None, None)
    assert first.why  # a queued attempt always says why
    journal.set_handle(first.id, "container-1")
    assert journal.set_state(first.id, "running")
    assert journal.set_state(first.id, "lost", "infra", why="the engine went away")
    second = journal.create_attempt(build.id, "docker", "other")
    assert journal.set_state(second.id, "done", "success")
    journal.event(run.id, "step", job_id=build.id, attempt_id=second.id, name="repair", seconds=1.5)
    assert journal.finish_run(run.id, "success", 0)

    got = journal.run(run.id)
    assert (got.result, got.exit_code, got.plan_digest) == ("success", 0, "d1")
    assert (got.request, got.plan) == (run.request, {"torch": "2.0.1", "archs": ["3.5"]})
    jobs = journal.jobs(run.id)
    assert [(job.id, job.kind) for job in jobs] == [(build.id, "build"), (smoke.id, "smoke")]
    tried = [(a.runner, a.handle, a.state, a.result, a.why) for a in jobs[0].attempts]
    assert tried == [
        ("local", "container-1", "lost", "infra", "the engine went away"),
        ("other", None, "done", "success", None),
    ]
    assert jobs[1].attempts == ()
    assert [event.kind for event in journal.events(run.id)] == [
        "run-created",
        "job-created",
        "job-created",
        "attempt-created",
        "handle",
        "state",
        "state",
        "attempt-created",
        "state",
        "step",
        "run-finished",
    ]
    step = journal.events(run.id)[-2]
    assert (step.job_id, step.attempt_id, step.data) == (
        build.id,
        second.id,
        {"name": "repair", "seconds": 1.5},
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", step.time)


@pytest.mark.parametrize(("exit_code", "end"), [(9, ("lost", "infra")), (130, ("cancelled", None))])
def test_a_run_that_ends_leaves_no_attempt_without_an_end(journal, exit_code, end):
    run = journal.create_run("d", Request(), {})
    first, second = (
        journal.create_attempt(journal.create_job(run.id, "build").id, "docker", "local")
        for _ in "ab"
    )
    journal.set_state(first.id, "done", "failure", why="exit code 1")
    journal.finish_run(run.id, "infra", exit_code)
    ends = [(a.id, (a.state, a.result)) for job in journal.jobs(run.id) for a in job.attempts]
    assert ends == [(first.id, ("done", "failure")), (second.id, end)]


def test_it_is_all_there_after_reopening(path):
    with Journal(path) as journal:
        run = journal.create_run("d", Request(), {})
        journal.event(run.id, "note", text="é")
    with Journal(path) as journal:
        assert journal.run(run.id) == run
        assert journal.events(run.id)[-1].data == {"text": "é"}


def test_ids_sort_in_the_order_of_creation_and_events_too(journal):
    made = [journal.create_run("d", Request(), {}).id for _ in range(50)]
    assert made == sorted(set(made))
    assert [run.id for run in journal.runs(3)] == made[:-4:-1]
    ids = [journal.event(made[0], "e", n=n) for n in range(20)]
    assert ids == sorted(set(ids))
    assert [event.data["n"] for event in journal.events(made[0], since=ids[9])] == list(
        range(10, 20)
    )
    assert journal.events(made[0], since=ids[-1]) == ()


def test_a_clock_that_was_set_back_does_not_change_the_order(journal, path):
    first = journal.create_run("d", Request(), {}).id
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute("UPDATE runs SET id = '20991231-235959-00ff' WHERE id = ?", (first,))
    raw.close()
    assert journal.create_run("d", Request(), {}).id == "20991231-235959-0100"


def test_only_the_first_end_of_a_run_counts(journal):
    run = journal.create_run("d", Request(), {})
    attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "docker", "local")
    assert journal.set_state(attempt.id, "cancelled", why="asked to")
    before = journal.events(run.id)
    assert journal.set_state(
        attempt.id, "cancelled", why="asked to"
    )  # said again: fine, and no event
    assert not journal.set_state(attempt.id, "done", "success")
    assert journal.finish_run(run.id, "failure", 5)
    assert not journal.finish_run(run.id, "success", 0)
    assert journal.jobs(run.id)[0].attempts[0].state == "cancelled"
    assert journal.run(run.id).exit_code == 5
    assert len(journal.events(run.id)) == len(before) + 1


@pytest.mark.parametrize(
    ("state", "result", "why"),
    [
        ("done", None, None),
        ("running", "success", None),
        ("queued", None, None),
        ("queued", None, ""),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(journal, state, result, why):
    attempt = journal.create_attempt(
        journal.create_job(journal.create_run("d", Request(), {}).id, "build").id, "docker", "local"
    )
    with pytest.raises(ValueError, match=r"state|why"):
        journal.set_state(attempt.id, state, result, why)


def test_text_from_runners_is_bounded(journal):
    run = journal.create_run("d", Request(), {})
    attempt = journal.create_attempt(journal.create_job(run.id, "build").id, "docker", "local")
    journal.set_state(attempt.id, "lost", "infra", why="x" * 10_000_000)
    assert len(journal.jobs(run.id)[0].attempts[0].why) == 4000
    before = journal.events(run.id)
    with pytest.raises(ValueError, match="65536"):
        journal.event(run.id, "log", text="x" * 65536)
    assert journal.events(run.id) == before


def test_a_run_is_found_by_the_beginning_of_its_id(journal):
    one, two = journal.create_run("d", Request(), {}), journal.create_run("d", Request(), {})
    assert journal.run(one.id) == one
    with pytest.raises(UsageError, match="is ambiguous") as caught:
        journal.run("2")
    assert one.id in str(caught.value)
    assert two.id in str(caught.value)
    unlike = next(n for n in range(len(one.id), 0, -1) if not two.id.startswith(one.id[:n]))
    assert journal.run(one.id[:unlike]) == one
    assert [event.kind for event in journal.events(one.id[:unlike])] == ["run-created"]


@pytest.mark.parametrize("name", ["nope", "%", "____________________", "x' OR 1=1 --"])
def test_unknown_ids(journal, name):
    with pytest.raises(UsageError) as caught:
        journal.run(name)
    assert "empty" in caught.value.hint
    run = journal.create_run("d", Request(), {})
    for call in (
        lambda: journal.run(name),
        lambda: journal.events(name),
        lambda: journal.jobs(name),
        lambda: journal.claim(name),
        lambda: journal.event(name, "x"),
        lambda: journal.create_job(name, "build"),
        lambda: journal.finish_run(name, "success", 0),
        lambda: journal.create_attempt(99, "docker", "local"),
        lambda: journal.set_state(99, "running"),
        lambda: journal.set_handle(99, "h"),
        lambda: journal.event(run.id, "x", job_id=99),
    ):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError) as caught:
        journal.run(run.id[:-1] + "g")
    assert run.id in caught.value.hint
    assert [event.kind for event in journal.events(run.id)] == [
        "run-created"
    ]  # the refused left nothing


def test_threads_share_a_journal(journal):
    run = journal.create_run("d", Request(), {})
    threads = [
        threading.Thread(
            target=lambda k=k: [journal.event(run.id, "t", k=k, n=n) for n in range(25)]
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = [event.data for event in journal.events(run.id)[1:]]
    assert [d["n"] for d in seen if d["k"] == 2] == list(range(25))
    assert len(seen) == 100


def test_a_newer_schema_is_refused_and_left_alone(journal, path):
    with contextlib.closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA user_version = 7")
    raw.close()
    with pytest.raises(
        UsageError, match=r"written by a newer farm \(schema 7, this one knows 3\)"
    ) as caught:
        Journal(path)
    assert "upgrade this one" in caught.value.hint
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA user_version").fetchone() == (7,)
    raw.close()


def test_another_programs_database_is_refused(tmp_path):
    raw = sqlite3.connect(tmp_path / "other.sqlite")
    raw.execute("CREATE TABLE mine (x)")
    raw.close()
    with pytest.raises(UsageError, match="not a journal"):
        Journal(tmp_path / "other.sqlite")


def test_a_file_that_is_no_database(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(InfrastructureError, match="damaged") as caught:
        Journal(path)
    assert str(path) in str(caught.value)
    assert "move journal.sqlite" in caught.value.hint
    assert path.read_bytes().startswith(b"not a database")  # evidence is not destroyed


def test_a_damaged_page(path):
    with Journal(path) as journal:
        run = journal.create_run("d", Request(), {"big": "x" * 50_000})
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(InfrastructureError, match="damaged"), Journal(path) as journal:
        journal.events(run.id)


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InfrastructureError, match="file"):
        Journal(tmp_path / "file" / "journal.sqlite")
    with pytest.raises(InfrastructureError, match="unable to open"):
        Journal(tmp_path)


def test_a_read_only_user_can_read_the_journal(path, monkeypatch):
    """As another user's `farm status` does: SQLite could not make its files beside it."""
    with Journal(path) as journal:
        run = journal.create_run("d", Request(), {})
    monkeypatch.setattr("os.access", lambda *_: False)
    with Journal(path) as journal:
        assert journal.runs() == (run,)
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        with pytest.raises(InfrastructureError, match="readonly"):
            journal.event(run.id, "late")


def test_a_read_only_user_sees_changes_of_a_writer(path, journal, monkeypatch):
    """The newest changes lie beside the file: it alone is not the whole journal."""
    run = journal.create_run("d", Request(), {})
    monkeypatch.setattr("os.access", lambda *_: False)
    with Journal(path) as reader:
        assert reader.runs() == (run,)


def test_it_can_be_opened_while_another_process_writes(path, journal, monkeypatch):
    run = journal.create_run("d", Request(), {})
    monkeypatch.setattr("farm.run.journal.BUSY_S", 0.0)
    with journal._writing(), Journal(path) as reader:
        assert reader.runs() == (run,)


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
def test_on_a_full_disk_it_can_be_read(path):
    """Where SQLite has no room for a single page of its own, as when `farm clean` is to make
    some.
    """
    with Journal(path) as journal:
        run = journal.create_run("d", Request(), {})
    code = f"""
import resource
from pathlib import Path
from farm.run.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # of each file that is written
with Journal(Path({str(path)!r})) as journal:
    print(journal.runs()[0].id)
"""
    root = {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **root},
    )
    assert done.stdout.strip() == run.id


def test_plans_that_are_not_json_are_refused(journal):
    with pytest.raises(ValueError, match="JSON"):
        journal.create_run("d", Request(), {"x": float("nan")})
    assert journal.runs() == ()
    assert (
        json.dumps(journal.create_run("d", Request(), {}).plan) == "{}"
    )  # and the journal still works


def test_five_hundred_runs_take_no_more_than_three_times_their_compressed_plans(journal, path):
    """With the write-ahead log, and looked at whenever it may have grown."""
    plan = json.loads(plan_of("sm35-avx-py311").to_json())
    sizes = []

    def look():
        sizes.append(
            sum(
                file.stat().st_size
                for file in path.parent.iterdir()
                if not file.name.endswith("-shm")
            )
        )

    ids = []
    for number in range(500):
        ids.append(journal.create_run("d", Request(detached=True), plan | {"number": number}).id)
        look()
    journal.claim_all(ids)
    look()
    for reason in (
        "every runner that fits is busy: local",
        "no runner that fits is online (local would)",
    ):
        journal.note_waiting(dict.fromkeys(ids, reason))
        look()
    for run_id in ids[:172]:
        attempt = journal.create_attempt(journal.create_job(run_id, "build").id, "docker", "local")
        journal.set_handle(attempt.id, "f" * 64)
        journal.set_state(attempt.id, "done", "success")
        for step in ("render", "image", "build", "repair", "verify", "publish", "install", "smoke"):
            journal.event(
                run_id,
                "step",
                name=step,
                seconds=1.5,
                outcome="done",
                result="farm/toolchain:1, reused",
            )
        journal.finish_run(run_id, "success", 0)
        look()
    plans = len(ids) * len(zlib.compress(json.dumps(plan).encode()))
    assert max(sizes) < 3 * plans
