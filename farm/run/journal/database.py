"""The file of the journal: its schema, its transactions, and what its errors mean."""

import contextlib
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, get_args

from farm.base.errors import FarmError, InfrastructureError, UsageError
from farm.run.journal.model import JobKind, Result, State

SCHEMA_VERSION = 3
WAL_PAGES = 100  # of 4 KiB each, before they go into the file: by SQLite's own 1000 the log is as large as the journal
BUSY_S = 30.0  # how long a writer waits for another one; each holds the lock for milliseconds

_SCHEMA = (
    f"""CREATE TABLE runs (
        id TEXT PRIMARY KEY, created TEXT NOT NULL, plan_digest TEXT NOT NULL, request TEXT NOT NULL,
        plan TEXT NOT NULL, owner TEXT NOT NULL, finished TEXT, exit_code INTEGER,
        result TEXT CHECK (result IN {get_args(Result)}),
        CHECK ((finished IS NULL) = (result IS NULL) AND (finished IS NULL) = (exit_code IS NULL)))""",
    # Partial indices: few runs are open, however many have ended.
    """CREATE INDEX unfinished ON runs (plan_digest) WHERE finished IS NULL""",
    """CREATE INDEX open_runs ON runs (id) WHERE finished IS NULL""",
    """CREATE INDEX runs_of_plan ON runs (plan_digest)""",
    f"""CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs (id),
        kind TEXT NOT NULL CHECK (kind IN {get_args(JobKind)}))""",
    """CREATE INDEX jobs_of_run ON jobs (run_id)""",
    f"""CREATE TABLE attempts (
        id INTEGER PRIMARY KEY, job_id INTEGER NOT NULL REFERENCES jobs (id), engine TEXT NOT NULL,
        runner TEXT NOT NULL, handle TEXT, state TEXT NOT NULL CHECK (state IN {get_args(State)}),
        result TEXT CHECK (result IN {get_args(Result)}), why TEXT,
        CHECK (state <> 'done' OR result IS NOT NULL), CHECK (state <> 'queued' OR why IS NOT NULL))""",
    """CREATE INDEX attempts_of_job ON attempts (job_id)""",
    # AUTOINCREMENT: SQLite never gives an id out again, also not after `forget`. Readers ask for what is above an id.
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL REFERENCES runs (id),
        job_id INTEGER REFERENCES jobs (id), attempt_id INTEGER REFERENCES attempts (id),
        time TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL)""",
    """CREATE INDEX events_of_run ON events (run_id)""",
    """CREATE INDEX events_of_kind ON events (run_id, kind, id)""",
)


def packed(text: str) -> bytes:
    """A plan as the file holds it: five hundred of tens of kilobytes each are megabytes."""
    return zlib.compress(text.encode())


def unpacked(held: bytes) -> str:
    """The text of a plan."""
    return zlib.decompress(held).decode()


def _still(path: Path) -> bool:
    """The file is only to be read, as one that stays as it is: SQLite could not make its files for WAL beside it.

    Where these are there, someone has it open, or was killed, and SQLite reads them too.
    """
    return path.exists() and not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()


NETWORK = ("afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "gpfs", "lustre", "nfs", "nfs4", "smb3")


def network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> str | None:
    """The network file system that a path is on, such as `nfs4`: SQLite's write-ahead log does not work there.

    None for a local one, and where the system does not say (it is not Linux).
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    path, best, kind = path.resolve(), -1, ""
    for _, place, named, *_ in (line.split() for line in lines):
        # As the kernel writes a space in a path.
        folder = Path(place.replace("\\040", " "))
        if path.is_relative_to(folder) and len(folder.parts) >= best:
            best, kind = len(folder.parts), named
    return kind if kind in NETWORK else None


class Database:
    """The open file; a context manager, usable from several threads and beside other processes.

    Raises (everywhere):
        InfrastructureError: the file is damaged, cannot be written, or stays locked; the message names it.
        UsageError: an unknown id, or a file of a newer schema or of another program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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
        still = _still(self.path)
        where = f"{self.path.absolute().as_uri()}?immutable=1" if still else self.path
        # isolation_level None: sqlite3 begins no transaction by itself, `_writing` does. Threads share the connection:
        # `_lock` keeps them apart.
        found = sqlite3.connect(where, uri=still, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        found.row_factory = sqlite3.Row
        found.create_function("unpacked", 1, unpacked, deterministic=True)
        return found

    def _open(self) -> None:
        # Look before writing anything: a database of another program must stay as it is.
        try:
            version, tables = self._layout()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in (sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP):
                raise
            # On a full disk there is no room for the file by which processes share the WAL; SQLite does without it
            # where it is alone. What is there can then be read, and `farm clean` makes room.
            self._db.close()
            self._db = self._connect()
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            version, tables = self._layout()
        if version == 0 and tables:
            raise UsageError(f"{self.path}: a database, but not a journal of the farm", hint="choose another path")
        if tables and version != SCHEMA_VERSION:
            raise UsageError(
                f"{self.path}: of another version of the farm (schema {version}, this one knows {SCHEMA_VERSION})",
                hint="upgrade this farm, or move the file away: wheels, logs and the index are not touched",
            )
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        # WAL: readers (`farm status`, the site) never wait for a writer, and a kill loses no committed change.
        self._write_ahead()
        # Only where there is something to write: who may only read the file, or comes beside a writer, can open it.
        if tables:
            return
        with self._writing():
            if self._layout() == (0, 0):  # else another process was faster
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _layout(self) -> tuple[int, int]:
        """(schema version, number of tables), of one moment."""
        row = self._db.execute(
            "SELECT user_version, (SELECT count(*) FROM sqlite_schema) FROM pragma_user_version"
        ).fetchone()
        return int(row[0]), int(row[1])

    def _write_ahead(self) -> None:
        # SQLite does not wait for others in this one statement, so two processes that open a new file can collide.
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            raise InfrastructureError(f"{self.path}: {error.strerror}", hint="check the path and its rights") from error

    def _explain(self, error: sqlite3.DatabaseError) -> FarmError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number is detail
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return InfrastructureError(
                f"{self.path}: the journal is damaged ({error})",
                hint=f"move {self.path.name} and the files {self.path.name}-wal and -shm beside it away; "
                "a new journal is made, and wheels, logs and the index are not touched",
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return InfrastructureError(
                f"{self.path}: another process has kept the journal locked for {BUSY_S:.0f} s",
                hint="find the process that holds the file open and end it, then try again",
            )
        return InfrastructureError(f"{self.path}: {error}", hint="check the path, its rights and the free disk space")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        # IMMEDIATE: take the write lock before reading, or what was read may be old when it is written.
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
