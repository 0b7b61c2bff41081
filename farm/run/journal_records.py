"""What the journal holds: runs, jobs, attempts and events, and a request as it was made."""

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, Literal, Self

from farm.engines.base import State
from farm.platforms.facts import DEFAULT
from farm.run.run_owner import Process

Result = Literal["success", "failure", "infra"]
JobKind = Literal["build", "smoke"]
Until = Literal["build", "verify", "publish", "smoke"]


class EventKind(StrEnum):
    """The events that another module than their writer reads."""

    CANCEL = "cancel-requested"
    """Anybody asks for the end of a run."""
    PUBLISHING = "publishing"
    """The wheel is being put into the index, which no cancel takes back: CANCEL and PUBLISHING
    exclude each other.
    """
    ERROR = "error"
    """`text` and `hint` of what ended a run, or stopped it for now."""
    WAITING = "waiting"
    """`why` the scheduler has not started a run."""
    BEGUN = "begun"
    """The dispatcher carries a run out: what it waited for before is over, though its build has no
    attempt yet.
    """
    STATE = "state"
    """An attempt moved on."""
    INPUTS = "inputs"
    """Inputs of a build beside its plan: `wheels` (name -> sha256), `cache` (the compiler cache of
    its machine).
    """
    RESUMED = "resumed"
    """The wheel was taken over from an earlier `run` of the same plan."""
    NOTIFY = "notify"
    """The command of `notify:` was started for the end of the run, or could not be: `error`."""
    UNPREPARED = "preparation-failed"
    """The machine of an attempt could not prepare its build."""
    CPU_TIME = "cpu-time"
    """`seconds` of CPU that an attempt of a build took."""
    STEP = "step"
    PROGRESS = "progress"


@dataclass(frozen=True)
class Request:
    """A request: one package for one variant; `until`: the last step; `on`: the engine; higher
    `priority` goes first.

    `detached`: the dispatcher carries it out; `retry_of`: the run whose plan it repeats; `rebuild`:
    also where its wheel is there already.
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
        field_names = {field.name for field in fields(cls)}
        values = json.loads(text)
        return cls(**{name: value for name, value in values.items() if name in field_names})

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
    """One try; `handle` is the engine's, None before it was submitted; `why` explains a wait, loss
    or failure.
    """

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


@dataclass(frozen=True)
class FailedPreparation:
    """A build that a runner could not start: when, and why."""

    time: str
    why: str
