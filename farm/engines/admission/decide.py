"""The decision: an ordered list of waiting tasks against what is free, and a reason for each that stays.

Order: priority with ageing, then the fewest runners that fit, then the longest path of work, then age. In this order
each task gets the runner on which it is expected to end first, busy ones included: a task that would end earlier by
waiting for a fast runner is not given to a slow one (list scheduling with the longest first; Graham, "Bounds on
multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969, bounds it on equal machines).

Runners that can do the same are one group, and tasks that need the same one class, so a decision costs the number of
tasks times the number of groups, not of runners.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from farm.engines.admission.model import Needs, Running, Task, Worker, fits

RETRIES = 2
"""How often a task may be tried again after a failure that was not its own."""
GRACE_S = 600.0
"""How long a task may wait for a runner that fits it to appear."""
QUARANTINE_S = 60.0
QUARANTINE_MAX_S = 3600.0
AGEING_S = 4 * 3600.0
"""Waiting so long is worth one step of priority: nothing starves."""
CACHE_MINUTES = 5.0
"""What a task saves on a runner that keeps its image and caches."""


class Placement(NamedTuple):
    """A task that is to start now."""

    task: Task
    worker: str


@dataclass(frozen=True)
class Decision:
    """`placed` start now; `waiting` says why of every other task; `refused` wait for nothing any more."""

    placed: tuple[Placement, ...]
    waiting: Mapping[str, str]
    refused: Mapping[str, str]


_Ranked = tuple[float, int, float, float, int, Task]
"""What the order goes by; the number before the task is its place in the list."""


class _Group(NamedTuple):
    """Free slots of runners that are alike: `idle` now, and a heap of (when, runner) of the others."""

    sample: Worker
    idle: list[str]
    later: list[tuple[float, str]]


@dataclass
class _Bad:
    failures: int = 0
    until: float = 0.0


@dataclass
class Admission:
    """Remembers what a decision needs from earlier ones: quarantines, and since when a task fits nothing.

    One object serves one controller. Times are seconds of any clock that only goes forward.
    """

    grace_s: float = GRACE_S
    _bad: dict[str, _Bad] = field(default_factory=lambda: defaultdict(_Bad))
    _unfit: dict[str, float] = field(default_factory=dict)

    # --- what happened

    def succeeded(self, worker: str) -> None:
        """A task ended by its own doing, well or not: the runner works."""
        self._bad.pop(worker, None)

    def failed(self, worker: str, now: float) -> float:
        """The runner lost a task: it gets nothing for a while, twice as long each time. Returns until when."""
        bad = self._bad[worker]
        bad.until = now + min(QUARANTINE_S * 2**bad.failures, QUARANTINE_MAX_S)
        bad.failures += 1
        return bad.until

    def may_retry(self, infra_failures: int) -> bool:
        """Whether a task that was lost so often without its own fault is tried again."""
        return infra_failures <= RETRIES

    # --- the decision

    def decide(
        self,
        now: float,
        tasks: Collection[Task],
        workers: Collection[Worker],
        running: Iterable[Running] = (),
        done: Collection[str] = (),
        failed: Collection[str] = (),
    ) -> Decision:
        """What starts now.

        Args:
            now: The time.
            tasks: What waits.
            workers: Every runner that is known, online or not.
            running: What is under way.
            done: Tasks that succeeded, as far as others come after them.
            failed: Tasks that never will.
        """
        running = list(running)
        alone = {name for task in tasks for name in task.excluded}
        # A runner that some task must avoid is a group of its own: the others of its like may still take that task.
        groups = self._groups(now, workers, running, alone)
        fitting: dict[Needs, list[_Group]] = {}
        tail = _tails(tasks)
        scarce: dict[Needs, int] = {}
        refused: dict[str, str] = {}
        waiting: dict[str, str] = {}
        ready: list[_Ranked] = []
        ended, never = set(done), set(failed)
        for task in tasks:
            if task.after and not task.after <= ended:
                if lost := sorted(task.after & never):
                    refused[task.id] = f"{lost[0]}, which it needs, did not succeed"
                else:
                    waiting[task.id] = f"it comes after {', '.join(sorted(task.after - ended)[:3])}"
                continue
            needs = task.needs
            if needs not in fitting:
                fitting[needs] = [group for group in groups if not fits(needs, group.sample)]
                scarce[needs] = sum(len(group.idle) + len(group.later) for group in fitting[needs])
            if not scarce[needs]:
                # Nothing that is online fits: its patience starts now, or ends.
                self._hopeless(now, task, workers, waiting, refused)
                continue
            if self._unfit:
                # A runner that fits is there: should it go again, the patience starts anew.
                self._unfit.pop(task.id, None)
            # Every task ages at the same rate, so the time now cancels out: priority and time of creation give the
            # order. Whole steps, so that within one the scarcity of runners and the length of the work decide.
            step = -(task.priority - task.created / AGEING_S) // 1
            long = tail.get(task.id, task.minutes) if tail else task.minutes
            ready.append((step, scarce[needs], -long, task.created, len(ready), task))
        ready.sort()
        caches = {worker.name: worker.caches for worker in workers}
        placed = self._place(now, ready, fitting, caches, waiting)
        return Decision(tuple(placed), waiting, refused)

    def _groups(
        self, now: float, workers: Collection[Worker], running: Iterable[Running], alone: Collection[str]
    ) -> list[_Group]:
        busy: dict[str, list[float]] = defaultdict(list)
        for one in running:
            busy[one.worker].append(max(one.ends, now + 1.0))  # what is late will end any moment
        alike: dict[tuple[object, ...], _Group] = {}
        levels: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for worker in workers:
            if not worker.online:
                continue
            key = (
                *(worker.platform, worker.machine, worker.labels, worker.memory, worker.gpus, worker.speed),
                worker.takes,
                worker.name if worker.name in alone else "",  # some task may run on its like, but not on it
            )
            group = alike.setdefault(key, _Group(worker, [], []))
            free = max(0, worker.slots - len(busy[worker.name]))
            held = self._bad[worker.name].until if worker.name in self._bad else 0.0
            if held > now:
                group.later.extend([(held, worker.name)] * free)
            else:
                levels[id(group)].extend((worker.slots - free + number, worker.name) for number in range(free))
            group.later.extend((when, worker.name) for when in busy[worker.name][: worker.slots])
        for group in alike.values():
            heapq.heapify(group.later)
            # The last is taken first: one slot of each runner before a second of any.
            group.idle.extend(name for _, name in sorted(levels[id(group)], reverse=True))
        return list(alike.values())

    def _place(
        self,
        now: float,
        ready: list[_Ranked],
        fitting: Mapping[Needs, list[_Group]],
        caches: Mapping[str, frozenset[str]],
        waiting: dict[str, str],
    ) -> list[Placement]:
        placed: list[Placement] = []
        # Tasks of one class wait for the same reason: it is written once for each class, before anything is placed.
        why = {needs: _busy(groups, now) for needs, groups in fitting.items()}
        hope = {needs for needs, groups in fitting.items() if any(group.idle for group in groups)}
        for *_, task in ready:
            needs = task.needs
            if needs not in hope:
                waiting[task.id] = why[needs]
                continue
            best: tuple[float, _Group, int | None] | None = None
            for group in fitting[needs]:
                length = task.minutes * 60 / group.sample.speed
                if group.idle:
                    backwards = range(len(group.idle) - 1, -1, -1)
                    warm = next((at for at in backwards if task.cache_key in caches[group.idle[at]]), None)
                    saved = CACHE_MINUTES * 60 if warm is not None and task.cache_key else 0.0
                    end, place = now + max(0.0, length - saved), len(group.idle) - 1 if warm is None else warm
                elif group.later:
                    end, place = group.later[0][0] + length, None
                else:
                    continue
                if best is None or end < best[0]:
                    best = (end, group, place)
            assert best is not None, "a class with hope has an idle group"
            end, group, place = best
            if place is None:  # it ends sooner on a faster runner that is busy now
                # The slot is spoken for: the tasks that follow see it free again when this one will have ended.
                free, later = heapq.heappop(group.later)
                heapq.heappush(group.later, (end, later))
                minutes = max(0.0, free - now) / 60
                waiting[task.id] = (
                    f"{later} is expected to be free in {minutes:.0f} min: it ends sooner there than on what is free"
                )
                continue
            name = group.idle.pop(place)
            heapq.heappush(group.later, (end, name))
            placed.append(Placement(task, name))
            if not group.idle:
                hope = {needs for needs in hope if any(group.idle for group in fitting[needs])}
        return placed

    def _hopeless(
        self,
        now: float,
        task: Task,
        workers: Collection[Worker],
        waiting: dict[str, str],
        refused: dict[str, str],
    ) -> None:
        """No runner that is online can take it: it waits for one for a while, then it is refused."""
        since = self._unfit.setdefault(task.id, now)
        why = _why_none(task.needs, workers)
        left = since + self.grace_s - now
        if left > 0:
            waiting[task.id] = f"{why}; given up in {left:.0f} s"
        else:
            del self._unfit[task.id]
            refused[task.id] = f"{why}, for {self.grace_s:.0f} s"


def _tails(tasks: Collection[Task]) -> dict[str, float]:
    """Minutes of the longest chain of tasks from each on that others come after."""
    following: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        for before in task.after:
            following[before].append(task)
    tail: dict[str, float] = {}

    def of(task: Task, seen: frozenset[str]) -> float:
        if task.id not in tail:
            later = [t for t in following.get(task.id, ()) if t.id not in seen]  # a cycle waits, it does not hang us
            tail[task.id] = task.minutes + max((of(t, seen | {task.id}) for t in later), default=0.0)
        return tail[task.id]

    for task in tasks:
        if task.id in following:
            of(task, frozenset())
    return tail


def _busy(groups: list[_Group], now: float) -> str:
    ahead = [group.later[0] for group in groups if group.later]
    count = sum(len(group.idle) + len(group.later) for group in groups)
    when = ""
    if ahead:
        time, name = min(ahead)
        when = f"; {name} is expected to be free in {max(0.0, time - now) / 60:.0f} min"
    slots = "one slot that fits" if count == 1 else f"{count} slots that fit"
    return f"jobs before it have taken the {slots}{when}"


def _why_none(needs: Needs, workers: Collection[Worker]) -> str:
    if not workers:
        return "there is no runner at all"
    able = [worker for worker in workers if not fits(needs, worker)]
    if able:
        return f"no runner that fits is online ({', '.join(sorted(worker.name for worker in able)[:3])} would)"
    nearest = min(workers, key=lambda worker: (len(fits(needs, worker)), worker.name))
    return f"no runner fits; the nearest, {nearest.name}: {'; '.join(fits(needs, nearest))}"
