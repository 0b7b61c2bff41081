"""Journals of older farms are opened, for ever: fixtures are what those farms wrote, as SQL text.

`journal-schema-3.sql` is of commit 51394104, the first release; schema 2 came before it. Each has a
run that ended well, one that failed, one with a build that runs and one that is queued.
"""

import contextlib
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from farm.base.errors import UsageError
from farm.run.journal import Journal
from farm.run.journal_records import Request
from farm.run.journal_schema import SCHEMA_VERSION

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures").glob("journal-schema-*.sql"))


@pytest.fixture(params=FIXTURES, ids=lambda path: path.stem)
def old(request, tmp_path):
    """A journal of an older farm, and its schema."""
    path = tmp_path / "artifacts" / "farm.db"
    path.parent.mkdir()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(request.param.read_text(encoding="utf-8"))
    return path, int(request.param.stem.rpartition("-")[2])


def schema(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("PRAGMA user_version").fetchone()[0]


def indices(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        query = "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        return {row[0] for row in database.execute(query)}


def test_every_schema_up_to_this_one_has_a_fixture():
    schemas = {int(path.stem.rpartition("-")[2]) for path in FIXTURES}
    assert schemas == set(range(2, SCHEMA_VERSION + 1))


def test_an_older_journal_keeps_its_runs_and_takes_new_ones(old, tmp_path):
    path, _ = old
    with Journal(path) as journal:
        runs = sorted(journal.runs(), key=lambda run: run.id)
        assert [(run.result, run.exit_code) for run in runs] == [
            ("success", 0),
            ("failure", 5),
            (None, None),
            (None, None),
        ]
        assert {run.plan["package"] for run in runs} == {"canary"}
        assert [run.request.detached for run in runs] == [False, False, True, True]
        assert [attempt.handle for job in journal.jobs(runs[2].id) for attempt in job.attempts] == [
            "job-2"
        ]
        assert len(list(journal.open_runs())) == 2
        assert any(event.kind == "error" for run in runs for event in journal.events(run.id))
        new = journal.create_run(runs[0].plan_digest, Request(package="canary"), runs[0].plan)
        assert journal.run(new.id).plan == runs[0].plan
        assert journal.finish_run(runs[3].id, "infra", 9)
    assert schema(path) == SCHEMA_VERSION
    with Journal(tmp_path / "new.db"):
        pass
    assert indices(path) == indices(tmp_path / "new.db")


def test_a_backup_of_the_older_file_is_kept_next_to_it(old):
    path, version = old
    with Journal(path):
        pass
    copies = [file.name for file in path.parent.glob("farm.db.schema-*")]
    if version == SCHEMA_VERSION:
        assert copies == []
        return
    assert copies == [f"farm.db.schema-{version}"]
    copy = path.with_name(copies[0])
    assert schema(copy) == version
    with contextlib.closing(sqlite3.connect(copy)) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (4,)


def test_an_upgrade_that_fails_changes_nothing(old, monkeypatch):
    path, version = old
    if version == SCHEMA_VERSION:
        pytest.skip("there is nothing to upgrade")
    before = indices(path)
    statements = ("CREATE INDEX one ON runs (owner)", "CREATE INDEX two ON nothing (at_all)")
    monkeypatch.setattr("farm.run.journal.UPGRADES", {version: statements})
    with pytest.raises(Exception, match="nothing"):
        Journal(path)
    assert (schema(path), indices(path)) == (version, before)


def test_processes_that_open_it_at_once_upgrade_it_once(old):
    path, _ = old
    ready = threading.Barrier(4)
    failures = []

    def open_it():
        ready.wait()
        try:
            with Journal(path) as journal:
                assert len(list(journal.runs())) == 4
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert schema(path) == SCHEMA_VERSION


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes anywhere")
def test_a_journal_that_may_only_be_read_stays_as_it_is(old):
    path, version = old
    path.parent.chmod(0o500)
    with Journal(path) as journal:
        assert len(list(journal.runs())) == 4
    path.parent.chmod(0o700)
    assert schema(path) == version


def test_a_journal_from_before_the_first_release_is_refused(tmp_path):
    path = tmp_path / "farm.db"
    with Journal(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(UsageError, match="before the first release"):
        Journal(path)
