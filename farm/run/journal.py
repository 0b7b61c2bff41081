"""The journal: every run, job, attempt and event, in one SQLite file (WAL) that several processes
share.

A run is one submission, a job one node of its graph (build or smoke), an attempt one try of a job.
Status (where it is) and result (how it ended) are kept apart. Events are appended and never
changed. Every change writes its event in the same transaction, so a killed process leaves both or
neither.
"""

import contextlib
import difflib
import json
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

from farm.base.errors import ExitCode, FarmError, InfrastructureError, UsageError
from farm.engines.base import FINAL, State
from farm.run.journal_records import (
    Attempt,
    Event,
    EventKind,
    FailedPreparation,
    Job,
    JobKind,
    OpenRun,
    Request,
    Result,
    Run,
)
from farm.run.journal_schema import SCHEMA, SCHEMA_VERSION, UPGRADES, unpacked
from farm.run.run_owner import NOBODY, Process, is_dead, this_process

RECENT = 200  # attempts that are looked at for what runners could not prepare
# of 4 KiB each, before they go into the file: by SQLite's own 1000 the log is as large as the
# journal
WAL_PAGES = 100
BUSY_S = 30.0  # how long a writer waits for another one; each holds the lock for milliseconds
MAX_WHY = 4000  # characters: a reason may quote a runner, which is not trusted to be brief
CLAIMED_AT_ONCE = 50
_NO_ROOM_TO_SHARE = (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP)
MAX_DATA = 64 * 1024  # characters of JSON in one event


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


class Journal:
    """The open journal; a context manager, usable from several threads and beside other processes.

    `on_finish` is called with the id of each run that this journal ends.

    Everywhere InfrastructureError: the file is damaged, cannot be written, or stays locked;
    UsageError: an unknown id, or a file of a newer schema or of another program. A file of an older
    schema is upgraded, and a copy of it stays beside it as `farm.db.schema-N`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.on_finish: Callable[[str], object] = lambda _run_id: None
        self._lock = threading.RLock()
        with self._errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._connect()
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # Only to be read, as one that stays as it is: SQLite could not make its files for WAL
        # beside it. Where these are there, someone has it open, or was killed, and SQLite reads
        # them too.
        still = self.path.exists() and not os.access(self.path.parent, os.W_OK)
        still = still and not self.path.with_name(f"{self.path.name}-wal").exists()
        self._read_only = still
        if still:
            where = f"{self.path.absolute().as_uri()}?immutable=1"
        else:
            where = str(self.path)
        # isolation_level None: sqlite3 begins no transaction by itself, `_writing` does. Threads
        # share the connection: `_lock` keeps them apart.
        connection = sqlite3.connect(
            where, uri=still, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.create_function("unpacked", 1, unpacked, deterministic=True)
        return connection

    def _open(self) -> None:
        # Look before writing anything: a database of another program must stay as it is.
        version, tables = self._first_look()
        if tables:
            self._check_version(version)
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        # WAL: readers (`farm status`, the site) never wait for a writer, and a kill loses no
        # committed change.
        self._write_ahead()
        # Only where there is something to write: who may only read the file, or comes beside a
        # writer, can open it.
        if tables:
            is_old = version != SCHEMA_VERSION
            if is_old and not self._read_only:  # a reader needs no index, and reads older plans
                self._upgrade()
            return
        with self._writing():
            if self._layout() == (0, 0):  # else another process was faster
                for statement in SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _first_look(self) -> tuple[int, int]:
        """The layout of the file, also on a full disk."""
        try:
            return self._layout()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _NO_ROOM_TO_SHARE:
                raise
        # There is no room for the file by which processes share the WAL; SQLite does without it
        # where it is alone. What is there can then be read, and `farm clean` makes room.
        self._db.close()
        self._db = self._connect()
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        return self._layout()

    def _check_version(self, version: int) -> None:
        """UsageError: a database with tables is no journal, or one that this farm cannot read."""
        if version == 0:
            raise UsageError(
                f"{self.path}: a database, but not a journal of the farm",
                hint="choose another path",
            )
        if version > SCHEMA_VERSION:
            raise UsageError(
                f"{self.path}: written by a newer farm (schema {version}, this one knows "
                f"{SCHEMA_VERSION})",
                hint="use that farm, or upgrade this one; or give this one a folder of its own "
                "(artifacts in ci/farm.yaml)",
            )
        if version < min(UPGRADES):
            raise UsageError(
                f"{self.path}: written by a farm from before the first release (schema {version})",
                hint="move the file away: wheels, logs and the index are not touched",
            )

    def _upgrade(self) -> None:
        """Take a file of an older schema to this one, in one transaction, after a copy was made."""
        with self._writing():
            version, _ = self._layout()
            if version == SCHEMA_VERSION:  # another process was faster
                return
            self._copy_to(self.path.with_name(f"{self.path.name}.schema-{version}"))
            for schema in range(version, SCHEMA_VERSION):
                for statement in UPGRADES[schema]:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _copy_to(self, backup: Path) -> None:
        """Copy the file as it was before this transaction; an older copy of that name stays."""
        if backup.exists():
            return
        part = backup.with_name(f"{backup.name}.part")
        with (
            contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_S)) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
        part.replace(backup)

    def _layout(self) -> tuple[int, int]:
        """(schema version, number of tables), of one moment."""
        row = self._db.execute(
            "SELECT user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version"
        ).fetchone()
        return int(row[0]), int(row[1])

    def _write_ahead(self) -> None:
        # SQLite does not wait for others in this one statement, so two processes that open a new
        # file can collide.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # --- errors and transactions

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise UsageError(
                f"{self.path}: refused: {error}", hint="is the run, job or attempt of this journal?"
            ) from error
        except sqlite3.DatabaseError as error:
            raise self._explain(error) from error
        except OSError as error:
            raise InfrastructureError(
                f"{self.path}: {error.strerror}", hint="check the path and its rights"
            ) from error

    def _explain(self, error: sqlite3.DatabaseError) -> FarmError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number is detail
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return InfrastructureError(
                f"{self.path}: the journal is damaged ({error})",
                hint=f"move {self.path.name} and the files {self.path.name}-wal and -shm beside "
                "it away; "
                "a new journal is made, and wheels, logs and the index are not touched",
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return InfrastructureError(
                f"{self.path}: another process has kept the journal locked for {BUSY_S:.0f} s",
                hint="find the process that holds the file open and end it, then try again",
            )
        return InfrastructureError(
            f"{self.path}: {error}", hint="check the path, its rights and the free disk space"
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        # IMMEDIATE: take the write lock before reading, or what was read may be old when it is
        # written.
        with self._lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, self._errors():
            return self._db.execute(query, values).fetchall()

    def _append(
        self,
        run_id: str,
        kind: str,
        data: Mapping[str, Any],
        job_id: int | None = None,
        attempt_id: int | None = None,
    ) -> int:
        text = _json(data)
        if len(text) > MAX_DATA:
            raise ValueError(f"event {kind}: {len(text)} characters of data, at most {MAX_DATA}")
        cursor = self._db.execute(
            "INSERT INTO events (run_id, job_id, attempt_id, time, kind, data) VALUES (?, ?, ?, "
            "?, ?, ?)",
            (run_id, job_id, attempt_id, _now(), kind, text),
        )
        return int(cursor.lastrowid or 0)

    # --- writing

    def create_run(self, plan_digest: str, request: Request, plan: Mapping[str, Any]) -> Run:
        """A new run, owned by this process, or by no one yet where it is detached; its id sorts
        after earlier ones.
        """
        if request.detached:
            owner = NOBODY
        else:
            owner = this_process()
        with self._writing():
            run_id = self._next_id()
            self._db.execute(
                "INSERT INTO runs (id, created, plan_digest, request, plan, owner) VALUES (?, ?, "
                "?, ?, ?, ?)",
                (
                    run_id,
                    _now(),
                    plan_digest,
                    request.to_json(),
                    zlib.compress(_json(plan).encode()),
                    owner.to_json(),
                ),
            )
            self._append(run_id, "run-created", {"plan_digest": plan_digest})
            return self._exact(run_id)

    def _next_id(self) -> str:
        """`20261121-101500-ab12`: UTC, then four hex digits that start anywhere and count up within
        a second.
        """
        # Half of the numbers are left free above the start, so that thousands of runs in one second
        # still count up.
        head = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        number = secrets.randbelow(0x8000)
        last = self._db.execute("SELECT max(id) FROM runs").fetchone()[0]
        if last is not None and last[:15] >= head:  # the same second, or a clock that was set back
            head = last[:15]
            number = int(last[16:], 16) + 1
        return f"{head}-{number:04x}"

    def create_job(self, run_id: str, kind: JobKind) -> Job:
        """A new node of the run's graph."""
        with self._writing():
            self._exact(run_id)
            cursor = self._db.execute(
                "INSERT INTO jobs (run_id, kind) VALUES (?, ?)", (run_id, kind)
            )
            job = Job(int(cursor.lastrowid or 0), run_id, kind, ())
            self._append(run_id, "job-created", {"kind": kind}, job.id)
            return job

    def create_attempt(self, job_id: int, engine: str, runner: str) -> Attempt:
        """A new try, queued; `set_handle` follows when the engine has taken it."""
        with self._writing():
            return self._new_attempt(job_id, engine, runner)

    def _new_attempt(self, job_id: int, engine: str, runner: str) -> Attempt:
        run_id = self._run_of(job_id)
        cursor = self._db.execute(
            "INSERT INTO attempts (job_id, engine, runner, state, why) VALUES (?, ?, ?, 'queued', "
            "?)",
            (job_id, engine, runner, "not yet submitted"),
        )
        attempt_id = int(cursor.lastrowid or 0)
        data = {"engine": engine, "runner": runner}
        self._append(run_id, "attempt-created", data, job_id, attempt_id)
        return self._attempt(attempt_id)

    def tests_on_cards(self) -> Counter[str]:
        """Count the smoke tests under way on each runner, by its name."""
        return Counter(runner for runner, _ in self._open_tests())

    def _open_tests(self) -> list[tuple[str, str]]:
        """The runner and the run of each smoke test whose controller is not dead."""
        query = """SELECT a.runner, r.id, r.owner, a.state
            FROM runs r JOIN jobs j ON j.run_id = r.id
            JOIN attempts a ON a.job_id = j.id WHERE r.finished IS NULL AND j.kind = 'smoke'"""
        tests = []
        for row in self._rows(query):
            if row["state"] not in FINAL and not is_dead(Process.from_json(row["owner"])):
                tests.append((row["runner"], row["id"]))
        return tests

    def claim_card(self, job_id: int, engine: str, runner: str, cards: int) -> Attempt | None:
        """Create an attempt of a smoke test on a runner, unless as many tests run as it has cards.

        No other process can come between the count and the attempt.
        """
        with self._writing():
            if self.tests_on_cards()[runner] >= cards:
                return None
            return self._new_attempt(job_id, engine, runner)

    def set_handle(self, attempt_id: int, handle: str) -> None:
        """Records what the engine calls the attempt: with it a later controller finds it again."""
        with self._writing():
            attempt = self._attempt(attempt_id)
            self._db.execute("UPDATE attempts SET handle = ? WHERE id = ?", (handle, attempt_id))
            self._append(
                self._run_of(attempt.job_id),
                "handle",
                {"handle": handle},
                attempt.job_id,
                attempt_id,
            )

    def set_state(
        self, attempt_id: int, state: State, result: Result | None = None, why: str | None = None
    ) -> bool:
        """Moves an attempt on; what is the same writes no event. False: it has ended, and the first
        end counts.
        """
        if (state == "done" and result is None) or (state not in FINAL and result is not None):
            raise ValueError(f"state {state} does not go with result {result}")
        if state == "queued" and not why:
            raise ValueError("a queued attempt needs a why")
        if not why:
            why = None
        else:
            why = why[:MAX_WHY]
        with self._writing():
            old = self._attempt(attempt_id)
            # The order of the two questions matters: the same end reported twice is no
            # contradiction, another end is.
            if (old.state, old.result, old.why) == (state, result, why):
                return True
            if old.state in FINAL:
                return False
            self._move(old, state, result, why)
            return True

    def _move(self, attempt: Attempt, state: State, result: Result | None, why: str | None) -> None:
        self._db.execute(
            "UPDATE attempts SET state = ?, result = ?, why = ? WHERE id = ?",
            (state, result, why, attempt.id),
        )
        data = {"state": state, "result": result, "why": why}
        self._append(
            self._run_of(attempt.job_id), EventKind.STATE, data, attempt.job_id, attempt.id
        )

    def _attempts(self, run_id: str) -> list[Attempt]:
        query = (
            "SELECT a.* FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.run_id = ? "
            "ORDER BY a.id"
        )
        return [Attempt(**dict(row)) for row in self._rows(query, run_id)]

    def event(
        self,
        run_id: str,
        kind: str,
        job_id: int | None = None,
        attempt_id: int | None = None,
        **data: Any,
    ) -> int:
        """Appends an event and returns its id; ValueError: its data is more than MAX_DATA."""
        with self._writing():
            self._exact(run_id)
            return self._append(run_id, kind, data, job_id, attempt_id)

    def event_unless(self, run_id: str, kind: EventKind, other: EventKind) -> bool:
        """Append an event to a run in which `other` has not happened.

        Returns:
            False where it has happened; nothing is written then. No other process can come between
            the look and the entry.
        """
        with self._writing():
            self._exact(run_id)
            if self.happened(run_id, other) is not None:
                return False
            self._append(run_id, kind, {})
            return True

    def finish_run(self, run_id: str, result: Result, exit_code: int) -> bool:
        """Ends a run, and its attempts that have no end yet; False where it has ended before: the
        first end counts.
        """
        first = self._finish_run(run_id, result, exit_code)
        if first:
            self.on_finish(run_id)
        return first

    def _finish_run(self, run_id: str, result: Result, exit_code: int) -> bool:
        with self._writing():
            if self._exact(run_id).finished is not None:
                return False
            # A run that has ended has no open attempt: else it would be shown as running for ever.
            why = "the run ended before this attempt's result was recorded"
            for attempt in self._attempts(run_id):
                if attempt.state in FINAL:
                    continue
                if exit_code == ExitCode.INTERRUPTED:
                    self._move(attempt, "cancelled", None, why)
                else:
                    self._move(attempt, "lost", "infra", why)
            self._db.execute(
                "UPDATE runs SET finished = ?, result = ?, exit_code = ? WHERE id = ?",
                (_now(), result, exit_code, run_id),
            )
            self._append(run_id, "run-finished", {"result": result, "exit_code": exit_code})
            return True

    def claim(self, run_id: str) -> bool:
        """Makes this process the run's owner; false while the recorded owner lives, or may live,
        and after its end.
        """
        with self._writing():
            self._exact(run_id)
            return bool(self._claim((run_id,)))

    def claim_all(self, run_ids: Iterable[str]) -> set[str]:
        """Claim several runs; returns those that are this process's now."""
        ids = list(run_ids)
        mine = set[str]()
        # A claim writes a run anew with its plan: of hundreds in one transaction the write-ahead
        # log has megabytes.
        for at in range(0, len(ids), CLAIMED_AT_ONCE):
            with self._writing():
                mine |= self._claim(ids[at : at + CLAIMED_AT_ONCE])
        return mine

    def _claim(self, run_ids: Iterable[str]) -> set[str]:
        me = this_process()
        dead = cache(is_dead)
        mine = set()
        for run_id in run_ids:
            row = self._db.execute(
                "SELECT owner, finished FROM runs WHERE id = ?", (run_id,)
            ).fetchone()
            # Whoever asks saw it open a moment ago; its owner may have ended it, and itself, since.
            if row["finished"] is not None:
                continue
            owner = Process.from_json(row["owner"])
            # One's own run is no claim: a dispatcher asks for all its runs in each round.
            if owner != me:
                if not dead(owner):
                    continue
                self._db.execute("UPDATE runs SET owner = ? WHERE id = ?", (me.to_json(), run_id))
                self._append(run_id, "claimed", {"pid": me.pid, "from_pid": owner.pid})
            mine.add(run_id)
        return mine

    def note_waiting(self, reasons: Mapping[str, str]) -> None:
        """Writes down why runs wait (run id -> why), all in one transaction."""
        with self._writing():
            for run_id, why in reasons.items():
                self._append(run_id, EventKind.WAITING, {"why": why[:MAX_WHY]})

    # --- reading

    def runs(self, limit: int = 20) -> tuple[Run, ...]:
        """The newest runs, newest first."""
        return tuple(map(_run, self._rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", limit)))

    def plan_digests(self) -> frozenset[str]:
        """The digests of the plans of all runs."""
        return frozenset(
            row["plan_digest"] for row in self._rows("SELECT DISTINCT plan_digest FROM runs")
        )

    def results(self) -> Counter[str]:
        """Count the runs that have ended, by their result."""
        query = """SELECT result, count(*) AS number FROM runs WHERE finished IS NOT NULL
            GROUP BY result"""
        return Counter({row["result"]: row["number"] for row in self._rows(query)})

    def ended(self) -> frozenset[str]:
        """The ids of the runs that have ended."""
        return frozenset(
            row["id"] for row in self._rows("SELECT id FROM runs WHERE finished IS NOT NULL")
        )

    def handles(self) -> frozenset[str]:
        """Engines' names for the attempts of the runs that have ended."""
        query = """SELECT a.handle
            FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN runs r ON r.id = j.run_id
            WHERE a.handle IS NOT NULL AND r.finished IS NOT NULL"""
        return frozenset(row[0] for row in self._rows(query))

    def run(self, run_id: str) -> Run:
        """The run of this id, or the only one whose id begins so; UsageError: there is none, or
        more than one.
        """
        # A range, since the index on the id serves it: `substr(id, …) = ?` would read every run.
        rows = self._rows(
            "SELECT * FROM runs WHERE id >= ? AND id < ? LIMIT 4", run_id, run_id + "\U0010ffff"
        )
        if len(rows) == 1:
            return _run(rows[0])
        if rows:
            names = ", ".join(row["id"] for row in rows[:3])
            if len(rows) > 3:
                names += " ..."
            raise UsageError(f"run id {run_id!r} is ambiguous: {names}", hint="give more of the id")
        newest = self._rows("SELECT id FROM runs ORDER BY id DESC LIMIT 1000")
        newest_ids = [row["id"] for row in newest]
        near = difflib.get_close_matches(run_id, newest_ids, n=3) or newest_ids[:3]
        if near:
            hint = f"nearest: {', '.join(near)}"
        else:
            hint = "the journal is empty: submit something first"
        raise UsageError(f"no run {run_id!r} in {self.path}", hint=hint)

    def jobs(self, run_id: str) -> tuple[Job, ...]:
        """The jobs of a run with their attempts, in the order of creation."""
        run_id = self._whole_id(run_id)
        attempts: dict[int, list[Attempt]] = {}
        for attempt in self._attempts(run_id):
            attempts.setdefault(attempt.job_id, []).append(attempt)
        jobs = []
        for row in self._rows("SELECT * FROM jobs WHERE run_id = ? ORDER BY id", run_id):
            jobs.append(Job(**dict(row), attempts=tuple(attempts.get(row["id"], ()))))
        return tuple(jobs)

    def events(self, run_id: str, since: int = 0) -> tuple[Event, ...]:
        """The events of a run with an id above `since`, in order."""
        query = "SELECT * FROM events WHERE run_id = ? AND id > ? ORDER BY id"
        rows = self._rows(query, self._whole_id(run_id), since)
        return tuple(map(_event, rows))

    def newest(self, run_id: str, kind: str, limit: int) -> tuple[Event, ...]:
        """Return the newest events of a kind in a run, in the order in which they happened."""
        query = "SELECT * FROM events WHERE run_id = ? AND kind = ? ORDER BY id DESC LIMIT ?"
        rows = self._rows(query, run_id, kind, limit)
        return tuple(_event(row) for row in reversed(rows))

    def unfinished(
        self, plan_digest: str, accept: Callable[[Run], bool] = lambda _run: True
    ) -> Run | None:
        """The newest accepted run of this plan that has not ended, one that can be claimed before
        one that cannot.
        """
        query = "SELECT * FROM runs WHERE plan_digest = ? AND finished IS NULL ORDER BY id DESC"
        me = this_process()
        newest = None
        for run in map(_run, self._rows(query, plan_digest)):
            if not accept(run):
                continue
            if run.owner == me or is_dead(run.owner):
                return run
            newest = newest or run
        return newest

    def of_plan(self, plan_digest: str, limit: int = 20) -> tuple[Run, ...]:
        """The newest runs of a plan that have ended, newest first."""
        query = (
            "SELECT * FROM runs WHERE plan_digest = ? AND finished IS NOT NULL ORDER BY id "
            "DESC LIMIT ?"
        )
        return tuple(map(_run, self._rows(query, plan_digest, limit)))

    def successes(self, package: str, limit: int) -> tuple[Run, ...]:
        """The newest runs of a package that succeeded, newest first."""
        query = """SELECT * FROM runs WHERE result = 'success'
            AND json_extract(request, '$.package') = ? ORDER BY id DESC LIMIT ?"""
        return tuple(map(_run, self._rows(query, package, limit)))

    def failed(self) -> tuple[Run, ...]:
        """The runs that failed, were not cancelled, and are the newest of their plan, oldest
        first.
        """
        query = """SELECT * FROM runs r
            WHERE finished IS NOT NULL AND result <> 'success' AND exit_code <> ?
            AND NOT EXISTS (
                SELECT 1 FROM runs n WHERE n.plan_digest = r.plan_digest AND n.id > r.id
            )
            ORDER BY id"""
        return tuple(map(_run, self._rows(query, ExitCode.INTERRUPTED)))

    def open_runs(self) -> tuple[Run, ...]:
        """Every run that has not ended, oldest first."""
        return tuple(map(_run, self._rows("SELECT * FROM runs WHERE finished IS NULL ORDER BY id")))

    def open_after(self, run_id: str, fields: Sequence[str]) -> tuple[OpenRun, ...]:
        """The open runs with an id above `run_id`, in order, with those fields of their plans:
        whole ones are large.
        """
        paths = ", ".join(f"'$.{field}'" for field in fields)
        # '$.schema' is there so that json_extract gives a list for one field too; it has no name
        # below.
        query = f"""SELECT id, created, plan_digest, request,
            json_extract(unpacked(plan), {paths}, '$.schema') AS about
            FROM runs"""  # noqa: S608 a text of ours
        runs = []
        for row in self._rows(f"{query} WHERE finished IS NULL AND id > ? ORDER BY id", run_id):
            request = Request.from_json(row["request"])
            about = dict(zip(fields, json.loads(row["about"]), strict=False))
            runs.append(OpenRun(row["id"], row["created"], row["plan_digest"], request, about))
        return tuple(runs)

    def attempted(self) -> set[str]:
        """The ids of the open runs that have had an attempt."""
        query = """SELECT DISTINCT r.id
            FROM runs r JOIN jobs j ON j.run_id = r.id JOIN attempts a ON a.job_id = j.id
            WHERE r.finished IS NULL"""
        return {row[0] for row in self._rows(query)}

    def failed_preparations(self) -> dict[str, list[FailedPreparation]]:
        """Return the builds that each runner could not prepare, newest first.

        Only those since it last started a build, among the newest `RECENT` attempts.
        """
        query = """SELECT a.runner, a.handle, a.why, e.time
            FROM attempts a JOIN jobs j ON j.id = a.job_id
            LEFT JOIN events e ON e.run_id = j.run_id AND e.kind = ? AND e.attempt_id = a.id
            WHERE j.kind = 'build' ORDER BY a.id DESC LIMIT ?"""
        failures: dict[str, list[FailedPreparation]] = {}
        started: set[str] = set()
        for row in self._rows(query, EventKind.UNPREPARED, RECENT):
            runner = row["runner"]
            if row["handle"]:
                started.add(runner)
            elif row["time"] and runner not in started:
                failure = FailedPreparation(row["time"], row["why"] or "")
                failures.setdefault(runner, []).append(failure)
        return failures

    def since(self, event_id: int, kind: str) -> tuple[tuple[int, str], ...]:
        """(event id, run id) of every event of a kind above `event_id`, of all runs, in order."""
        rows = self._rows(
            "SELECT id, run_id FROM events WHERE id > ? AND kind = ? ORDER BY id", event_id, kind
        )
        return tuple((row[0], row[1]) for row in rows)

    def happened(self, run_id: str, kind: str, *, first: bool = False) -> Event | None:
        """The newest event of a kind in a run, or the first one; None where there is none."""
        order = "id DESC"
        if first:
            order = "id"
        query = f"""SELECT * FROM events WHERE run_id = ? AND kind = ?
            ORDER BY {order} LIMIT 1"""  # noqa: S608 a text of ours
        for row in self._rows(query, run_id, kind):
            return _event(row)
        return None

    def _whole_id(self, run_id: str) -> str:
        """A run's id from its beginning; one that is whole costs a look into the index, and no plan
        is read.
        """
        if self._rows("SELECT 1 FROM runs WHERE id = ?", run_id):
            return run_id
        return self.run(run_id).id

    def _exact(self, run_id: str) -> Run:
        row = self._db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no run {run_id!r}")
        return _run(row)

    def _run_of(self, job_id: int) -> str:
        row = self._db.execute("SELECT run_id FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no job {job_id}")
        return str(row[0])

    def _attempt(self, attempt_id: int) -> Attempt:
        row = self._db.execute("SELECT * FROM attempts WHERE id = ?", (attempt_id,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no attempt {attempt_id}")
        return Attempt(**dict(row))


def _event(row: sqlite3.Row) -> Event:
    fields = dict(row)
    fields["data"] = json.loads(row["data"])
    return Event(**fields)


def _run(row: sqlite3.Row) -> Run:
    fields = dict(row)
    fields["owner"] = Process.from_json(row["owner"])
    fields["request"] = Request.from_json(row["request"])
    fields["plan"] = json.loads(unpacked(row["plan"]))
    return Run(**fields)
