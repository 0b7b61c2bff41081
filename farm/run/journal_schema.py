"""The tables of the journal's file, and the statements that bring an older file to them."""

import zlib
from typing import get_args

from farm.engines.base import State
from farm.run.journal_records import JobKind, Result

SCHEMA_VERSION = 3

SCHEMA = (
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
    # AUTOINCREMENT: SQLite never gives an id out again, also not after `forget`. Readers ask for
    # what is above an id.
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL REFERENCES runs (id),
        job_id INTEGER REFERENCES jobs (id), attempt_id INTEGER REFERENCES attempts (id),
        time TEXT NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL)""",
    """CREATE INDEX events_of_run ON events (run_id)""",
    """CREATE INDEX events_of_kind ON events (run_id, kind, id)""",
)


UPGRADES: dict[int, tuple[str, ...]] = {2: ("CREATE INDEX runs_of_plan ON runs (plan_digest)",)}
"""The statements that take a file from a schema to the next one, for every schema that a release or
its users had.
"""


def unpacked(stored: bytes | str) -> str:
    """The text of a plan, which is stored compressed: five hundred of tens of kilobytes each are
    megabytes. Schema 2 stored the text.
    """
    if isinstance(stored, str):
        return stored
    return zlib.decompress(stored).decode()
