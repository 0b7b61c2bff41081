"""The queue: which waiting task starts on which runner; by priority, then age, on a runner that can
do it and is free.

Pure values. Where many machines differ in speed, an existing scheduler places the jobs: Swarm,
Slurm, GitHub.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from farm.platforms.facts import DEFAULT

GRACE_S = 600.0  # how long a task may wait for a runner that fits it to appear
NAMED = 3  # runners named in a reason


class Needs(NamedTuple):
    """Requirements of a task; `memory` in bytes, `excluded` the runners that lost it before."""

    platform: str = DEFAULT
    machine: str = "x86_64"
    labels: frozenset[str] = frozenset()
    memory: int = 0
    excluded: frozenset[str] = frozenset()


ANYWHERE = Needs()


@dataclass(frozen=True)
class Task:
    """One job that waits. `created` in seconds; `after`: tasks that must have succeeded before."""

    id: str
    needs: Needs = ANYWHERE
    priority: int = 0
    created: float = 0.0
    after: frozenset[str] = frozenset()


@dataclass(frozen=True)
class QueueRunner:
    """One runner: what it can do and how much at a time.

    `emulates`: it takes what is for another machine too, where no runner of that is online; `busy`:
    what it does for somebody else, in words: it takes nothing meanwhile.
    """

    name: str
    platform: str = DEFAULT
    machine: str = "x86_64"
    labels: frozenset[str] = frozenset()
    memory: int = 1 << 62
    slots: int = 1
    emulates: bool = False
    online: bool = True
    busy: str = ""


def fits(needs: Needs, worker: QueueRunner) -> tuple[str, ...]:
    """The reasons why a runner cannot take a task, online or not; empty where it can."""
    reasons = []
    if needs.platform != worker.platform:
        reasons.append(f"it runs {worker.platform}, not {needs.platform}")
    if needs.machine != worker.machine and not worker.emulates:
        reasons.append(f"it is {worker.machine}, not {needs.machine}")
    if missing := sorted(needs.labels - worker.labels):
        reasons.append(f"it has no label {', '.join(missing)}")
    if needs.memory > worker.memory:
        reasons.append(
            f"it has {worker.memory / 1e9:.1f} GB of memory, {needs.memory / 1e9:.1f} are needed"
        )
    if worker.name in needs.excluded:
        reasons.append("it lost this job before")
    return tuple(reasons)


class Placement(NamedTuple):
    """A task that is to start now."""

    task: Task
    worker: str


@dataclass(frozen=True)
class Decision:
    """`placed` start now; `waiting` says why of every other task; `refused` wait for nothing any
    more.
    """

    placed: tuple[Placement, ...]
    waiting: Mapping[str, str]
    refused: Mapping[str, str]


@dataclass
class Queue:
    """Remembers since when a task has fitted no runner. One object serves one controller."""

    grace_s: float = GRACE_S
    _unfit: dict[str, float] = field(default_factory=dict)

    def decide(
        self,
        now: float,
        tasks: Collection[Task],
        workers: Collection[QueueRunner],
        running: Iterable[str] = (),
        done: Collection[str] = (),
        failed: Collection[str] = (),
    ) -> Decision:
        """The tasks that start now, and a reason for each that does not, the same while it waits
        for the same.

        `now` is of a clock that only goes forward; `workers`: online or not; `running`: the runner
        of each job under way; `done` and `failed`: tasks that others come after, which succeeded or
        never will.
        """
        ended = set(done)
        never = set(failed)
        used = Counter(running)
        fitting: dict[Needs, list[QueueRunner]] = {}
        placed: list[Placement] = []
        waiting: dict[str, str] = {}
        refused: dict[str, str] = {}
        for task in sorted(tasks, key=lambda task: (-task.priority, task.created, task.id)):
            before = sorted(task.after - ended)
            if before:
                failed_before = sorted(task.after & never)
                if failed_before:
                    refused[task.id] = f"{failed_before[0]}, which it needs, did not succeed"
                else:
                    waiting[task.id] = f"it comes after {', '.join(before[:NAMED])}"
                continue
            needs = task.needs
            if needs not in fitting:
                fitting[needs] = _fitting(needs, workers)
            if not fitting[needs]:
                # No runner that is online can take it: it waits for one for a while.
                text = _why_none(needs, workers)
                if now - self._unfit.setdefault(task.id, now) < self.grace_s:
                    waiting[task.id] = f"{text}; given up after {self.grace_s:.0f} s"
                else:
                    del self._unfit[task.id]
                    refused[task.id] = f"{text}, for {self.grace_s:.0f} s"
                continue
            self._unfit.pop(task.id, None)
            worker = _least_used(fitting[needs], used)
            if worker is None:
                waiting[task.id] = _all_busy(fitting[needs])
                continue
            used[worker.name] += 1
            placed.append(Placement(task, worker.name))
        return Decision(tuple(placed), waiting, refused)


def _fitting(needs: Needs, workers: Collection[QueueRunner]) -> list[QueueRunner]:
    """The runners online that can take a task; emulated only where none is of its machine.

    A build rather waits for another one on a machine of its kind than starts emulated at once.
    """
    fitting = [worker for worker in workers if worker.online and not fits(needs, worker)]
    native = [worker for worker in fitting if worker.machine == needs.machine]
    return native or fitting


def _least_used(fitting: Iterable[QueueRunner], used: Counter[str]) -> QueueRunner | None:
    """The first of the least busy runners, so that two jobs go to two machines; None: none is
    free.
    """
    best = None
    for worker in fitting:
        jobs = used[worker.name]
        if worker.busy or jobs >= worker.slots:
            continue
        if best is None or jobs < used[best.name]:
            best = worker
    return best


def _all_busy(fitting: list[QueueRunner]) -> str:
    names = []
    for worker in fitting[:NAMED]:
        if worker.busy:
            names.append(f"{worker.name} ({worker.busy})")
        else:
            names.append(worker.name)
    return f"every runner that fits is busy: {', '.join(names)}"


def _why_none(needs: Needs, workers: Collection[QueueRunner]) -> str:
    if not workers:
        return "there is no runner at all"
    able = sorted(worker.name for worker in workers if not fits(needs, worker))
    if able:
        return f"no runner that fits is online ({', '.join(able[:NAMED])} would)"
    nearest = min(workers, key=lambda worker: (len(fits(needs, worker)), worker.name))
    return f"no runner fits; the nearest, {nearest.name}: {'; '.join(fits(needs, nearest))}"
