"""What the admission knows of jobs and runners, and whether one fits the other. Pure values."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from farm.platforms.facts import DEFAULT

Kind = Literal["build", "smoke"]


class Needs(NamedTuple):
    """What decides which runners may take a task; tasks that need the same are looked at together."""

    kind: Kind
    platform: str
    machine: str
    labels: frozenset[str]
    memory: int
    gpus: int
    excluded: frozenset[str]


@dataclass(frozen=True)
class Task:
    """One job that waits.

    Attributes:
        id: Unique among the tasks.
        minutes: How long it is expected to take on a runner of speed 1.
        priority: Higher goes first.
        created: When it was submitted, in seconds of the clock that `Admission.decide` is given.
        cache_key: What a runner keeps from a task like it: the toolchain image, the compiler cache.
        after: Tasks that must have succeeded before.
        excluded: Runners that failed it before.
        needs: Follows from the others.
    """

    id: str
    kind: Kind = "build"
    platform: str = DEFAULT
    machine: str = "x86_64"
    labels: frozenset[str] = frozenset()
    memory: int = 0
    gpus: int = 0
    minutes: float = 60.0
    priority: int = 0
    created: float = 0.0
    cache_key: str = ""
    after: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    needs: Needs = field(init=False, repr=False)

    def __post_init__(self) -> None:
        needs = Needs(self.kind, self.platform, self.machine, self.labels, self.memory, self.gpus, self.excluded)
        # Made once: every decision looks tasks up by it. A frozen dataclass lets its own fields be set in no other way.
        object.__setattr__(self, "needs", needs)


@dataclass(frozen=True)
class Worker:
    """One runner: what it can do and how much at a time.

    Attributes:
        kinds: What it may be given. A host with a GPU takes smoke jobs alone unless it says otherwise: there are few.
        speed: Work done in a minute, against a runner of speed 1.
        caches: Cache keys of what it keeps.
        online: Whether the engine sees it now.
    """

    name: str
    platform: str = DEFAULT
    machine: str = "x86_64"
    labels: frozenset[str] = frozenset()
    memory: int = 1 << 62
    gpus: int = 0
    slots: int = 1
    speed: float = 1.0
    kinds: frozenset[Kind] | None = None
    caches: frozenset[str] = field(default=frozenset(), compare=False)
    online: bool = True

    @property
    def takes(self) -> frozenset[Kind]:
        if self.kinds is not None:
            return self.kinds
        return frozenset({"smoke"}) if self.gpus else frozenset({"build", "smoke"})


@dataclass(frozen=True)
class Running:
    """A task that is under way on a runner, and when it is expected to end (seconds)."""

    task: str
    worker: str
    ends: float


def fits(needs: Needs, worker: Worker) -> tuple[str, ...]:
    """Why a runner cannot take a task; empty where it can. Whether it is online or free is another matter."""
    found = []
    if needs.kind not in worker.takes:
        kept = "its GPU is kept for smoke jobs" if worker.gpus else f"it takes {', '.join(sorted(worker.takes))} jobs"
        found.append(kept)
    if needs.platform != worker.platform:
        found.append(f"it runs {worker.platform}, not {needs.platform}")
    if needs.machine != worker.machine:
        found.append(f"it is {worker.machine}, not {needs.machine}")
    if missing := sorted(needs.labels - worker.labels):
        found.append(f"it has no label {', '.join(missing)}")
    if needs.memory > worker.memory:
        found.append(f"it has {worker.memory / 1e9:.1f} GB of memory, {needs.memory / 1e9:.1f} are needed")
    if needs.gpus > worker.gpus:
        found.append(f"it has {worker.gpus} GPUs, {needs.gpus} are needed")
    if worker.name in needs.excluded:
        found.append("it failed this job before")
    return tuple(found)
