"""The journal: every run, job, attempt and event, in one SQLite file (WAL) that several processes share.

A run is one submission, a job one node of its graph (build or smoke), an attempt one try of a job. Status (where it
is) and result (how it ended) are kept apart. Events are appended and never changed.
Every change writes its event in the same transaction, so a killed process leaves both or neither.
"""

import difflib
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from farm.base.errors import ExitCode, UsageError
from farm.run.journal.database import Database, packed, unpacked
from farm.run.journal.model import (
    FINAL,
    NOBODY,
    Attempt,
    Event,
    EventKind,
    Job,
    JobKind,
    OpenRun,
    Process,
    Request,
    Result,
    Run,
    State,
    is_dead,
    this_process,
)

MAX_WHY = 4000  # characters: a reason may quote a runner, which is not trusted to be brief
CLAIMED_AT_ONCE = 50
MAX_DATA = 64 * 1024  # characters of JSON in one event


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


class Journal(Database):
    """The open journal. It raises as `Database` does; an unknown id is a UsageError."""

    def _append(
        self, run_id: str, kind: str, data: Mapping[str, Any], job_id: int | None = None, attempt_id: int | None = None
    ) -> int:
        text = _json(data)
        if len(text) > MAX_DATA:
            raise ValueError(f"event {kind}: {len(text)} characters of data, at most {MAX_DATA}")
        cursor = self._db.execute(
            "INSERT INTO events (run_id, job_id, attempt_id, time, kind, data) VALUES (?, ?, ?, ?, ?, ?)",
            (run_id, job_id, attempt_id, _now(), kind, text),
        )
        return int(cursor.lastrowid or 0)

    # --- writing

    def create_run(self, plan_digest: str, request: Request, plan: Mapping[str, Any]) -> Run:
        """A new run, owned by this process, or by no one yet where a dispatcher is to carry it out.

        Its id sorts after every earlier one of this journal.
        """
        owner = NOBODY if request.detached else this_process()
        with self._writing():
            run_id = self._next_id()
            self._db.execute(
                "INSERT INTO runs (id, created, plan_digest, request, plan, owner) VALUES (?, ?, ?, ?, ?, ?)",
                (run_id, _now(), plan_digest, request.to_json(), packed(_json(plan)), owner.to_json()),
            )
            self._append(run_id, "run-created", {"plan_digest": plan_digest})
            return self._exact(run_id)

    def _next_id(self) -> str:
        """`20261121-101500-ab12`: UTC, then four hex digits that start anywhere and count up within a second."""
        # Half of the numbers are left free above the start, so that thousands of runs in one second still count up.
        head, number = datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), secrets.randbelow(0x8000)
        last = self._db.execute("SELECT max(id) FROM runs").fetchone()[0]
        if last is not None and last[:15] >= head:  # the same second, or a clock that was set back
            head, number = last[:15], int(last[16:], 16) + 1
        return f"{head}-{number:04x}"

    def create_job(self, run_id: str, kind: JobKind) -> Job:
        """A new node of the run's graph."""
        with self._writing():
            self._exact(run_id)
            cursor = self._db.execute("INSERT INTO jobs (run_id, kind) VALUES (?, ?)", (run_id, kind))
            job = Job(int(cursor.lastrowid or 0), run_id, kind, ())
            self._append(run_id, "job-created", {"kind": kind}, job.id)
            return job

    def create_attempt(self, job_id: int, engine: str, runner: str) -> Attempt:
        """A new try, queued; `set_handle` follows when the engine has taken it."""
        with self._writing():
            run_id = self._run_of("SELECT run_id FROM jobs WHERE id = ?", "job", job_id)
            cursor = self._db.execute(
                "INSERT INTO attempts (job_id, engine, runner, state, why) VALUES (?, ?, ?, 'queued', ?)",
                (job_id, engine, runner, "not yet submitted"),
            )
            attempt_id = int(cursor.lastrowid or 0)
            self._append(run_id, "attempt-created", {"engine": engine, "runner": runner}, job_id, attempt_id)
            return self._attempt(attempt_id)

    def set_handle(self, attempt_id: int, handle: str) -> None:
        """Records what the engine calls the attempt: with it a later controller finds it again."""
        with self._writing():
            attempt = self._attempt(attempt_id)
            self._db.execute("UPDATE attempts SET handle = ? WHERE id = ?", (handle, attempt_id))
            self._append(self._run_of_attempt(attempt), "handle", {"handle": handle}, attempt.job_id, attempt_id)

    def set_state(self, attempt_id: int, state: State, result: Result | None = None, why: str | None = None) -> bool:
        """Moves an attempt on; what is the same already writes no event.

        Returns:
            False where the attempt has ended before: the first end counts, whoever saw it.

        Raises:
            ValueError: a result without an end, `done` without a result, or `queued` without a reason.
        """
        if (state == "done" and result is None) or (state not in FINAL and result is not None):
            raise ValueError(f"state {state} does not go with result {result}")
        if state == "queued" and not why:
            raise ValueError("a queued attempt needs a why")
        why = why[:MAX_WHY] if why else None
        with self._writing():
            old = self._attempt(attempt_id)
            # The order of the two questions matters: the same end reported twice is no contradiction, another end is.
            if (old.state, old.result, old.why) == (state, result, why):
                return True
            if old.state in FINAL:
                return False
            self._move(old, state, result, why)
            return True

    def _move(self, attempt: Attempt, state: State, result: Result | None, why: str | None) -> None:
        self._db.execute(
            "UPDATE attempts SET state = ?, result = ?, why = ? WHERE id = ?", (state, result, why, attempt.id)
        )
        data = {"state": state, "result": result, "why": why}
        self._append(self._run_of_attempt(attempt), EventKind.STATE, data, attempt.job_id, attempt.id)

    def _open_attempts(self, run_id: str) -> list[Attempt]:
        query = "SELECT a.* FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.run_id = ? ORDER BY a.id"
        attempts = [Attempt(**dict(row)) for row in self._rows(query, run_id)]
        return [attempt for attempt in attempts if attempt.state not in FINAL]

    def event(
        self, run_id: str, kind: str, job_id: int | None = None, attempt_id: int | None = None, **data: Any
    ) -> int:
        """Appends an event and returns its id.

        Raises:
            ValueError: the data is more than 64 KiB of JSON, or is none.
        """
        with self._writing():
            self._exact(run_id)
            return self._append(run_id, kind, data, job_id, attempt_id)

    def finish_run(self, run_id: str, result: Result, exit_code: int) -> bool:
        """Ends a run, and its attempts that have no end yet; False where it has ended before: the first end counts."""
        with self._writing():
            if self._exact(run_id).finished is not None:
                return False
            # A run that has ended has no open attempt: else it would be shown as running for ever.
            for attempt in self._open_attempts(run_id):
                cancelled = exit_code == ExitCode.INTERRUPTED
                why = "the run ended before this attempt's result was recorded"
                self._move(attempt, "cancelled" if cancelled else "lost", None if cancelled else "infra", why)
            self._db.execute(
                "UPDATE runs SET finished = ?, result = ?, exit_code = ? WHERE id = ?",
                (_now(), result, exit_code, run_id),
            )
            self._append(run_id, "run-finished", {"result": result, "exit_code": exit_code})
            return True

    def claim(self, run_id: str) -> bool:
        """Makes this process the run's owner; false while the recorded owner lives, or may live, and after its end."""
        with self._writing():
            self._exact(run_id)
            return bool(self._claim((run_id,)))

    def claim_all(self, run_ids: Iterable[str]) -> set[str]:
        """Claim several runs; returns those that are this process's now."""
        ids, mine = list(run_ids), set[str]()
        # A claim writes a run anew with its plan: of hundreds in one transaction the write-ahead log has megabytes.
        for at in range(0, len(ids), CLAIMED_AT_ONCE):
            with self._writing():
                mine |= self._claim(ids[at : at + CLAIMED_AT_ONCE])
        return mine

    def _claim(self, run_ids: Iterable[str]) -> set[str]:
        me, dead, mine = this_process(), cache(is_dead), set()
        for run_id in run_ids:
            row = self._db.execute("SELECT owner, finished FROM runs WHERE id = ?", (run_id,)).fetchone()
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
        return frozenset(row["plan_digest"] for row in self._rows("SELECT DISTINCT plan_digest FROM runs"))

    def ended(self) -> frozenset[str]:
        """The ids of the runs that have ended."""
        return frozenset(row["id"] for row in self._rows("SELECT id FROM runs WHERE finished IS NOT NULL"))

    def handles(self) -> frozenset[str]:
        """Engines' names for the attempts of the runs that have ended."""
        query = """SELECT a.handle FROM attempts a JOIN jobs j ON j.id = a.job_id JOIN runs r ON r.id = j.run_id
            WHERE a.handle IS NOT NULL AND r.finished IS NOT NULL"""
        return frozenset(row[0] for row in self._rows(query))

    def run(self, run_id: str) -> Run:
        """The run of this id, or the only one whose id begins so.

        Raises:
            UsageError: no such run (with the nearest ids), or more than one.
        """
        # A range, since the index on the id serves it: `substr(id, …) = ?` would read every run.
        found = self._rows("SELECT * FROM runs WHERE id >= ? AND id < ? LIMIT 4", run_id, run_id + "\U0010ffff")
        if len(found) == 1:
            return _run(found[0])
        if found:
            names = ", ".join(row["id"] for row in found[:3]) + (" ..." if len(found) > 3 else "")
            raise UsageError(f"run id {run_id!r} is ambiguous: {names}", hint="give more of the id")
        known = [row["id"] for row in self._rows("SELECT id FROM runs ORDER BY id DESC LIMIT 1000")]
        near = difflib.get_close_matches(run_id, known, n=3) or known[:3]
        raise UsageError(
            f"no run {run_id!r} in {self.path}",
            hint=f"nearest: {', '.join(near)}" if near else "the journal is empty: submit something first",
        )

    def jobs(self, run_id: str) -> tuple[Job, ...]:
        """The jobs of a run with their attempts, in the order of creation."""
        run_id = self._whole_id(run_id)
        attempts: dict[int, list[Attempt]] = {}
        query = "SELECT a.* FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE j.run_id = ? ORDER BY a.id"
        for row in self._rows(query, run_id):
            attempts.setdefault(row["job_id"], []).append(Attempt(**dict(row)))
        rows = self._rows("SELECT * FROM jobs WHERE run_id = ? ORDER BY id", run_id)
        return tuple(Job(**dict(row), attempts=tuple(attempts.get(row["id"], ()))) for row in rows)

    def events(self, run_id: str, since: int = 0) -> tuple[Event, ...]:
        """The events of a run with an id above `since`, in order."""
        query = "SELECT * FROM events WHERE run_id = ? AND id > ? ORDER BY id"
        rows = self._rows(query, self._whole_id(run_id), since)
        return tuple(Event(**{**dict(row), "data": json.loads(row["data"])}) for row in rows)

    def unfinished(self, plan_digest: str, accept: Callable[[Run], bool] = lambda _run: True) -> Run | None:
        """The newest accepted run of this plan that has not ended, one that can be claimed before one that cannot."""
        query = "SELECT * FROM runs WHERE plan_digest = ? AND finished IS NULL ORDER BY id DESC"
        found = [run for row in self._rows(query, plan_digest) if accept(run := _run(row))]
        me = this_process()
        return next((run for run in found if run.owner == me or is_dead(run.owner)), found[0] if found else None)

    def of_plan(self, plan_digest: str, limit: int = 20) -> tuple[Run, ...]:
        """The newest runs of a plan that have ended, newest first."""
        query = "SELECT * FROM runs WHERE plan_digest = ? AND finished IS NOT NULL ORDER BY id DESC LIMIT ?"
        return tuple(map(_run, self._rows(query, plan_digest, limit)))

    def failed(self) -> tuple[Run, ...]:
        """The runs that failed, were not cancelled, and are the newest of their plan, oldest first."""
        query = """SELECT * FROM runs r WHERE finished IS NOT NULL AND result <> 'success' AND exit_code <> ?
            AND NOT EXISTS (SELECT 1 FROM runs n WHERE n.plan_digest = r.plan_digest AND n.id > r.id) ORDER BY id"""
        return tuple(map(_run, self._rows(query, ExitCode.INTERRUPTED)))

    def open_runs(self) -> tuple[Run, ...]:
        """Every run that has not ended, oldest first."""
        return tuple(map(_run, self._rows("SELECT * FROM runs WHERE finished IS NULL ORDER BY id")))

    def open_after(self, run_id: str, fields: Sequence[str]) -> tuple[OpenRun, ...]:
        """The runs with an id above `run_id` that have not ended, in order, with those fields of their plans alone.

        A plan has tens of kilobytes: thousands of them whole take a minute and a gigabyte.
        """
        paths = ", ".join(f"'$.{field}'" for field in fields)
        # '$.schema' is there so that json_extract gives a list for one field too; it has no name below.
        query = f"""SELECT id, created, plan_digest, request, json_extract(unpacked(plan), {paths}, '$.schema') AS about
            FROM runs"""  # noqa: S608 a text of ours
        rows = self._rows(f"{query} WHERE finished IS NULL AND id > ? ORDER BY id", run_id)
        return tuple(
            OpenRun(
                row["id"],
                row["created"],
                row["plan_digest"],
                Request.from_json(row["request"]),
                dict(zip(fields, json.loads(row["about"]), strict=False)),
            )
            for row in rows
        )

    def attempted(self) -> set[str]:
        """The ids of the open runs that have had an attempt."""
        query = """SELECT DISTINCT r.id FROM runs r JOIN jobs j ON j.run_id = r.id JOIN attempts a ON a.job_id = j.id
            WHERE r.finished IS NULL"""
        return {row[0] for row in self._rows(query)}

    def since(self, event_id: int, kind: str) -> tuple[tuple[int, str], ...]:
        """(event id, run id) of every event of a kind above `event_id`, of all runs, in order."""
        rows = self._rows("SELECT id, run_id FROM events WHERE id > ? AND kind = ? ORDER BY id", event_id, kind)
        return tuple((row[0], row[1]) for row in rows)

    def happened(self, run_id: str, kind: str, *, first: bool = False) -> Event | None:
        """The newest event of a kind in a run, or the first one; None where there is none."""
        query = "SELECT * FROM events WHERE run_id = ? AND kind = ? ORDER BY id"
        rows = self._rows(f"{query} LIMIT 1" if first else f"{query} DESC LIMIT 1", run_id, kind)
        return Event(**{**dict(rows[0]), "data": json.loads(rows[0]["data"])}) if rows else None

    def _whole_id(self, run_id: str) -> str:
        """A run's id from its beginning; one that is whole costs a look into the index, and no plan is read."""
        return run_id if self._rows("SELECT 1 FROM runs WHERE id = ?", run_id) else self.run(run_id).id

    def _exact(self, run_id: str) -> Run:
        row = self._db.execute("SELECT * FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no run {run_id!r}")
        return _run(row)

    def _run_of(self, query: str, what: str, key: int) -> str:
        row = self._db.execute(query, (key,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no {what} {key}")
        return str(row[0])

    def _run_of_attempt(self, attempt: Attempt) -> str:
        return self._run_of("SELECT run_id FROM jobs WHERE id = ?", "job", attempt.job_id)

    def _attempt(self, attempt_id: int) -> Attempt:
        row = self._db.execute("SELECT * FROM attempts WHERE id = ?", (attempt_id,)).fetchone()
        if row is None:
            raise UsageError(f"{self.path}: no attempt {attempt_id}")
        return Attempt(**dict(row))


def _run(row: sqlite3.Row) -> Run:
    fields = dict(row)
    fields["owner"] = Process.from_json(fields["owner"])
    return Run(**{**fields, "request": Request.from_json(row["request"]), "plan": json.loads(unpacked(row["plan"]))})
