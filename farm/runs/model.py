"""What the journal records: runs, jobs, attempts, events. Times are UTC, ISO 8601."""

from dataclasses import dataclass
from typing import Any, Literal

from farm.runs.owner import Process

State = Literal["queued", "starting", "running", "done", "lost", "cancelled"]
Result = Literal["success", "failure", "infra"]
JobKind = Literal["build", "smoke"]
FINAL: tuple[State, ...] = ("done", "lost", "cancelled")


@dataclass(frozen=True)
class Run:
    """One submission; `result` and `exit_code` are None until it is finished."""

    id: str
    created: str
    plan_digest: str
    selectors: dict[str, Any]
    plan: dict[str, Any]
    owner: Process
    finished: str | None
    result: Result | None
    exit_code: int | None


@dataclass(frozen=True)
class Attempt:
    """One try; `handle` is the engine's, None before it was submitted; `why` explains a wait, loss or failure."""

    id: int
    job_id: int
    engine: str
    runner: str
    handle: str | None
    state: State
    result: Result | None
    why: str | None


@dataclass(frozen=True)
class Job:
    """One node of a run's graph, with its attempts, oldest first."""

    id: int
    run_id: str
    kind: JobKind
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class Event:
    """Something that happened; ids grow with time over the whole journal."""

    id: int
    run_id: str
    job_id: int | None
    attempt_id: int | None
    time: str
    kind: str
    data: dict[str, Any]
