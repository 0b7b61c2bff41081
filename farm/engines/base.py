"""The contract between the farm and what runs its jobs. Engines move files and run commands; they
know no wheels.
"""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

from farm.platforms.facts import DEFAULT

State = Literal["queued", "starting", "running", "done", "lost", "cancelled"]
FINAL: tuple[State, ...] = ("done", "lost", "cancelled")
SOCKET_HINT = "as root: usermod -aG docker USER; then log in again"
"""For a user who may not use the socket of a Docker engine."""


class Cause(Enum):
    """The cause of a job's end other than its own command; the value is printed."""

    TIME_LIMIT = "killed at its time limit"
    OUT_OF_MEMORY = "out of memory: killed at its memory limit"
    KILLED = "killed from outside, as by a restart of its machine"
    """SIGKILL before the time limit, and not for its memory: no fault of the build's."""
    SITE_LIMIT = "killed at a time limit of its site"
    """Of the cluster's, which is shorter than the recipe's."""
    CANCELLED = "cancelled"
    NEVER_STARTS = "cannot start as it is"
    """It waits for what does not come by waiting."""
    NOT_STARTED = "its command cannot be started"


@dataclass(frozen=True)
class Traits:
    """Properties of an engine: others ask for these, never for its name."""

    # Its runners have a farm of their own, which fetches sources and needed wheels and makes the
    # toolchain image there.
    gathers: bool = False
    # a job runs in an image; else on the machine as it is, with the scripts that an image would
    # hold.
    in_container: bool = True
    # It keeps volumes between jobs; one that does not refuses a job with volumes (UsageError).
    keeps_volumes: bool = False
    # Its machines make the images of their jobs themselves: one may be unable to, and look free.
    makes_images: bool = False
    # a job runs in the file system of an image that was unpacked where its runners find it
    unpacks: bool = False
    queues: bool = (
        False  # its builds go through the farm's queue, since its machines are others' as well
    )
    platforms: frozenset[str] = frozenset({DEFAULT})  # of the plans that it can build
    # Its machine is always this one: what is found here counts, such as compilers and disk.
    on_this_machine: bool = False


@dataclass(frozen=True)
class Capacity:
    """Limits of one job: CPUs (cores) and memory (bytes)."""

    cpus: float
    memory: int


@dataclass(frozen=True)
class Job:
    """One attempt: a command in an image, without network, between an input and an output folder.

    `inputs`: folder in the container -> folder here, copied in before the start; `output` is the
    one that `collect` copies out; `volumes`: folder in the container -> name of one that is kept
    between jobs; `labels` find the attempt again after a restart; `platform` and `machine` are
    those of its programs; `gpus`: how many it needs; `own_init`: the command can be process 1 of a
    container: it ends itself at `timeout_s`, passes signals on and reaps orphans.
    """

    name: str
    image: str
    command: tuple[str, ...]
    inputs: dict[str, Path]
    output: str
    environment: dict[str, str]
    limits: Capacity
    timeout_s: int
    labels: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    platform: str = DEFAULT
    machine: str = "x86_64"
    gpus: int = 0
    own_init: bool = False


def attempt_name(job: Job) -> str:
    """A name that follows from the job's labels, so that `submit` may be repeated; a new one where
    it has none.
    """
    identity = json.dumps([job.name, sorted(job.labels.items())]).encode()
    if not job.labels:
        identity += time.time_ns().to_bytes(8, "big")
    return f"farm-{hashlib.sha256(identity).hexdigest()[:24]}"


@dataclass(frozen=True)
class Observation:
    """The state of an attempt; `why`: the engine's own text; `exit_code` where it is done; `cause`:
    what ended it.
    """

    state: State
    why: str | None = None
    exit_code: int | None = None
    cause: Cause | None = None

    @property
    def text(self) -> str | None:
        """Cause and reason for people."""
        parts = [self.cause.value if self.cause else None, self.why]
        return ": ".join(part for part in parts if part) or None


class Engine(Protocol):
    """The interface of engines. All methods raise InfrastructureError when the engine itself fails.

    The order: `submit`, `observe` until the job runs, `logs` to its end, `collect`, `release`;
    `cancel` at any time. A controller may be killed between any two. So each may be repeated, and a
    job is submitted again only with the same labels: an engine then replaces what is left of it or
    takes it up, and never runs it twice.
    """

    name: str
    poll_s: float
    """Seconds between two looks at a job that has not started."""
    traits: Traits

    def capacity(self) -> Capacity:
        """The limits of one job here."""

    def submit(self, job: Job) -> str:
        """Start a job; returns a handle that stays valid across restarts of the controller."""

    def observe(self, handle: str) -> Observation:
        """The state now; a handle that the engine does not know is `lost`."""

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        """The output of the job from byte `since` on, in pieces, until the job ends."""

    def cancel(self, handle: str) -> None:
        """Stop the job; returns when it is observed to have ended."""

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        """Copy the output folder of an ended job into `dest`, at most `max_bytes`; returns the
        files.
        """

    def release(self, handle: str) -> None:
        """Remove what the engine keeps of an ended job; a handle that it does not know is fine."""

    def discard(self, volume: str) -> None:
        """Remove a volume, unless a job uses it; a name that the engine does not know is fine."""
