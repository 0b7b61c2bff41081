"""Records of the journal: runs, jobs, attempts, events. Times are UTC, ISO 8601."""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Literal, Self

from farm.platforms.facts import DEFAULT
from farm.run.journal.owner import Process

State = Literal["queued", "starting", "running", "done", "lost", "cancelled"]
Result = Literal["success", "failure", "infra"]
JobKind = Literal["build", "smoke"]
Until = Literal["build", "verify", "publish", "smoke"]
FINAL: tuple[State, ...] = ("done", "lost", "cancelled")


class EventKind(StrEnum):
    """The events that another module than their writer reads."""

    CANCEL = "cancel-requested"
    """Anybody asks for the end of a run."""
    ERROR = "error"
    """`text` and `hint` of what ended a run, or stopped it for now."""
    WAITING = "waiting"
    """`why` the scheduler has not started a run."""
    BEGUN = "begun"
    """The dispatcher carries a run out: what it waited for before is over, though its build has no attempt yet."""
    STATE = "state"
    """An attempt moved on."""
    INPUTS = "inputs"
    """What a build had beside its plan: `wheels` (name -> sha256), `cache` (the compiler cache of its machine)."""
    RESUMED = "resumed"
    """The wheel was taken over from an earlier `run` of the same plan."""
    STEP = "step"
    PROGRESS = "progress"


@dataclass(frozen=True)
class Request:
    """A request: one package for one variant, how far, where and when.

    Attributes:
        until: The last step.
        on: The name of the engine.
        priority: Higher goes first.
        detached: The dispatcher carries the run out, not the process that submitted it.
        retry_of: The id of the run whose plan this one repeats.
        rebuild: It is built even where its wheel is there already.
    """

    package: str = ""
    variant: str = ""
    platform: str = DEFAULT
    until: Until = "smoke"
    on: str = "docker"
    priority: int = 0
    detached: bool = False
    retry_of: str | None = None
    rebuild: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a request; another version of the farm may have written more fields, or fewer."""
        known, held = {field.name for field in fields(cls)}, json.loads(text)
        return cls(**{name: value for name, value in held.items() if name in known})

    @property
    def publishes(self) -> bool:
        """True if its wheel goes into the index."""
        return self.until in ("publish", "smoke")


@dataclass(frozen=True)
class Run:
    """One submission; `result` and `exit_code` are None until it is finished."""

    id: str
    created: str
    plan_digest: str
    request: Request
    plan: dict[str, Any]
    owner: Process
    finished: str | None
    result: Result | None
    exit_code: int | None


@dataclass(frozen=True)
class OpenRun:
    """A run that has not ended, with a few fields of its plan (None where the plan lacks one)."""

    id: str
    created: str
    plan_digest: str
    request: Request
    about: dict[str, Any]


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
