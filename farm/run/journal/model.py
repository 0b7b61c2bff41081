"""Records of the journal: runs, jobs, attempts, events. Times are UTC, ISO 8601."""

import json
import os
import sys
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Self

from farm.base.processes import started
from farm.platforms.facts import DEFAULT


@dataclass(frozen=True)
class Process:
    """One process for good: `start` tells two holders of a pid apart, `boot` two boots of the machine.

    `space` is the pid namespace: within another one (a container) the same pid is someone else. A field that this
    system does not tell is empty.
    """

    pid: int
    start: str
    boot: str
    space: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if sys.platform != "win32" and path.exists() else ""


def _space() -> str:
    if sys.platform == "win32":
        return ""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def this_process() -> Process:
    """The process that calls."""
    pid = os.getpid()
    try:
        start = started(pid)
    except OSError:
        start = ""
    return Process(pid, start, _boot(), _space())


NOBODY = Process(0, "", "", "")
"""The owner of a run that was handed over and that no dispatcher has taken yet; it counts as dead."""


def is_dead(process: Process) -> bool:
    """True only if it is certain: after a reboot, or when its pid is free or someone else's.

    The machine is taken to be the same one: SQLite's WAL does not work between machines.
    """
    if process == NOBODY or process.boot != _boot():
        return True
    # In another container that pid is another process, so nothing can be said; a run that may live is never taken.
    if process.space != _space() or not process.start:
        return False
    try:
        # `started` gives an empty text where no such process lives: that is no process's start.
        return started(process.pid) != process.start
    except OSError:
        return False


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
    """Inputs of a build beside its plan: `wheels` (name -> sha256), `cache` (the compiler cache of its machine)."""
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
