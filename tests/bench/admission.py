"""Admission on simulated fleets: the same code that admits real jobs, with a clock and runners that are simulated.

The largest branch's builds (131 variants) with a smoke test after each, on five mixed fleets; makespan against a
lower bound, beside plain first-come-first-served on the same fleet. Then the time of one decision over 10,000 jobs.

    .venv/bin/python tests/bench/admission.py
"""

import heapq
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farm.engines.admission import Admission, Running, Task, Worker, fits
from farm.plan.matrix import Build, load_matrix

ROOT = Path(__file__).parents[2]
LIMIT = 1.15
LIMIT_MS = 50.0
TRIES = 3
"""Each decision is timed so often and the best counts: other processes of the machine only ever add."""
SLACK = 0.2
"""A task's real length is its expected one times a factor in [1 - SLACK, 1 + SLACK]."""

Choose = Callable[[float, list[Task], list[Worker], list[Running], set[str]], list[tuple[Task, str]]]


def branch() -> str:
    """The channel with the most builds."""
    matrix = load_matrix(ROOT)
    return max(matrix.channels, key=lambda name: len(list(matrix.builds(name))))


def build_minutes(build: Build) -> float:
    """A model, not a measurement: host code, device code of one architecture, and one more for newer cards."""
    if build.package != "torch":
        return 15.0
    if not build.variant.sms:
        return 45.0
    return 70.0 + 5.0 * len(build.variant.sms) + (25.0 if max(build.variant.sms) >= 80 else 0.0)


def tasks_of(fleet: list[Worker]) -> list[Task]:
    """A build and a smoke test of every variant; the test needs its GPU where the fleet has one, else its CPU."""
    have = frozenset().union(*(worker.labels for worker in fleet))
    found = []
    for number, build in enumerate(load_matrix(ROOT).builds(branch())):
        gpu = build.variant.gpu
        machine = "arm64" if build.platform == "macos" else build.variant.machine
        name = f"{number:03d} {build.alias}"
        key = f"{build.platform} {machine} {build.cuda}"
        common = {"platform": build.platform, "machine": machine}
        found.append(Task(f"build {name}", minutes=build_minutes(build), cache_key=key, **common))
        card = gpu in have and machine == "x86_64"
        labels, gpus = (frozenset({gpu}), 1) if card else (frozenset(), 0)
        found.append(
            Task(
                f"smoke {name}",
                kind="smoke",
                labels=labels,
                gpus=gpus,
                minutes=6.0,
                after=frozenset({f"build {name}"}),
                **common,
            )
        )
    return found


def several(count: int, name: str, **changes: object) -> list[Worker]:
    return [Worker(f"{name}-{number}", **changes) for number in range(count)]  # type: ignore[arg-type]


def fleets() -> dict[str, list[Worker]]:
    arm = {"machine": "aarch64"}
    mac = [Worker("mac", platform="macos", machine="arm64")]
    card = [Worker("gpu", labels=frozenset({"sm70"}), gpus=1)]
    cards = [Worker(f"gpu-{sm}", labels=frozenset({sm}), gpus=1) for sm in ("sm70", "sm75", "sm86", "sm90")]
    return {
        "7: 4 x86, 2 arm, 1 mac": [*several(4, "x86"), *several(2, "arm", **arm), *mac],
        "9: fast and slow": [
            *several(2, "fast", speed=2.0),
            *several(3, "slow", speed=0.7),
            *several(3, "arm", **arm),
            *mac,
        ],
        "13: one GPU host": [*several(8, "x86"), *several(3, "arm", speed=1.2, **arm), *mac, *card],
        "34: slots, four GPU hosts": [
            *several(6, "big", slots=4),
            *several(15, "x86", speed=0.8),
            *several(8, "arm", **arm),
            *mac,
            *cards,
        ],
        "200: mixed": [
            *several(90, "x86"),
            *several(40, "fast", speed=1.6),
            *several(20, "old", speed=0.5),
            *several(45, "arm", **arm),
            *mac,
            *cards,
        ],
    }


@dataclass
class Simulated:
    """The engine and the clock: what was placed ends when its real length is over."""

    fleet: list[Worker]
    tasks: list[Task]
    lengths: dict[str, float]
    choose: Choose

    def makespan(self) -> float:
        """Minutes until everything has ended."""
        speed = {worker.name: worker.speed for worker in self.fleet}
        slots = {worker.name: worker.slots for worker in self.fleet}
        waiting = {task.id: task for task in self.tasks}
        running: dict[str, Running] = {}
        done: set[str] = set()
        ends: list[tuple[float, str]] = []
        now = 0.0
        while waiting or ends:
            placed = self.choose(now, list(waiting.values()), self.fleet, list(running.values()), done)
            for task, worker in placed:
                assert task.after <= done, f"{task.id} before what it needs"
                assert sum(one.worker == worker for one in running.values()) < slots[worker], f"{worker} overloaded"
                del waiting[task.id]
                running[task.id] = Running(task.id, worker, now + task.minutes * 60 / speed[worker])
                heapq.heappush(ends, (now + self.lengths[task.id] * 60 / speed[worker], task.id))
            if not ends:
                raise SystemExit(f"{len(waiting)} tasks are never placed, such as {next(iter(waiting))}")
            now, ended = heapq.heappop(ends)
            together = [ended]
            while ends and ends[0][0] == now:
                together.append(heapq.heappop(ends)[1])
            for name in together:
                done.add(name)
                del running[name]
        return now / 60


def admitted() -> Choose:
    admission = Admission()

    def choose(
        now: float, tasks: list[Task], fleet: list[Worker], running: list[Running], done: set[str]
    ) -> list[tuple[Task, str]]:
        return [(p.task, p.worker) for p in admission.decide(now, tasks, fleet, running, done).placed]

    return choose


def first_come(
    _now: float, tasks: list[Task], fleet: list[Worker], running: list[Running], done: set[str]
) -> list[tuple[Task, str]]:
    """The first task that can start, on the first runner that is free and fits."""
    free = {worker.name: worker.slots for worker in fleet}
    for one in running:
        free[one.worker] -= 1
    placed = []
    for task in tasks:
        if task.after <= done:
            worker = next((w for w in fleet if free[w.name] and not fits(task.needs, w)), None)
            if worker:
                free[worker.name] -= 1
                placed.append((task, worker.name))
    return placed


def lower_bound(fleet: list[Worker], tasks: list[Task], lengths: dict[str, float]) -> float:
    """Minutes that no schedule can beat: for each set of classes of tasks, work over all speed that may take it; the
    j longest over the j fastest slots; the longest chain on its fastest runners; and, for tasks that come after others,
    the soonest end of one of those first."""
    classes: dict[object, list[Task]] = {}
    for task in tasks:
        classes.setdefault(task.needs, []).append(task)
    able = {needs: [w for w in fleet if not fits(needs, w)] for needs in classes}
    fastest = {task.id: max(w.speed for w in able[task.needs]) for task in tasks}
    quickest = {task.id: lengths[task.id] / fastest[task.id] for task in tasks}
    bounds = [quickest[t.id] + max((quickest[b] for b in t.after), default=0.0) for t in tasks]
    for size in range(1, len(classes) + 1):
        for chosen in itertools.combinations(classes, size):
            both = [task for needs in chosen for task in classes[needs]]
            workers = {w.name: w for needs in chosen for w in able[needs]}.values()
            speeds = sorted((w.speed for w in workers for _ in range(w.slots)), reverse=True)
            work = sorted((lengths[task.id] for task in both), reverse=True)
            start = min(max((quickest[b] for b in task.after), default=0.0) for task in both)
            bounds.append(start + sum(work) / sum(speeds))
            done_work = itertools.accumulate(work)
            bounds += [start + w / s for w, s in zip(done_work, itertools.accumulate(speeds), strict=False)]
    return max(bounds)


def decision_ms(jobs: int, runners: int) -> list[float]:
    """Milliseconds of CPU time for each decision until all jobs are admitted; every runner is free again after each."""
    random.seed(7)
    machines = ["x86_64", "x86_64", "aarch64"]
    fleet = [
        Worker(f"w{n}", machine=machines[n % 3], speed=random.choice([0.5, 1.0, 2.0]), labels=frozenset({f"l{n % 4}"}))
        for n in range(runners)
    ]
    tasks = {
        f"t{n}": Task(
            f"t{n}",
            machine=machines[n % 3],
            labels=frozenset({f"l{random.randrange(4)}"}) if n % 2 else frozenset(),
            minutes=random.uniform(10, 300),
            priority=random.randrange(3),
            created=float(n),
            cache_key=f"k{n % 9}",
        )
        for n in range(jobs)
    }
    admission, taken = Admission(), []
    now = float(jobs)
    while tasks:
        waiting = list(tasks.values())
        best = float("inf")
        for _ in range(TRIES):
            start = time.thread_time()
            placed = admission.decide(now, waiting, fleet).placed
            best = min(best, (time.thread_time() - start) * 1000)
        taken.append(best)
        assert placed
        for one in placed:
            del tasks[one.task.id]
        now += 60
    return taken


def main() -> int:
    worst, missed = 0.0, False
    print(f"branch {branch()}, lengths as expected, then off by up to {SLACK:.0%} (5 draws, the worst)\n")
    print(
        f"{'fleet':28} {'tasks':>5} {'bound h':>8} {'farm h':>7} {'ratio':>6} {'noisy':>6} {'FIFO h':>7} {'ratio':>6}"
    )
    for name, fleet in fleets().items():
        tasks = tasks_of(fleet)
        exact = {task.id: task.minutes for task in tasks}
        bound = lower_bound(fleet, tasks, exact)
        ours = Simulated(fleet, tasks, exact, admitted()).makespan()
        fifo = Simulated(fleet, tasks, exact, first_come).makespan()
        noisy = []
        for seed in range(5):
            draw = random.Random(seed)
            lengths = {task.id: task.minutes * draw.uniform(1 - SLACK, 1 + SLACK) for task in tasks}
            noisy.append(Simulated(fleet, tasks, lengths, admitted()).makespan() / lower_bound(fleet, tasks, lengths))
        worst = max(worst, ours / bound)
        print(
            f"{name:28} {len(tasks):5} {bound / 60:8.2f} {ours / 60:7.2f} {ours / bound:6.3f} {max(noisy):6.3f} "
            f"{fifo / 60:7.2f} {fifo / bound:6.3f}"
        )
    times = decision_ms(10_000, 200)
    print(
        f"\n10,000 jobs on 200 runners, {len(times)} decisions: median {statistics.median(times):.1f} ms, "
        f"longest {max(times):.1f} ms"
    )
    missed = worst > LIMIT or max(times) > LIMIT_MS
    print(f"limits: ratio {LIMIT}, {LIMIT_MS:.0f} ms a decision: {'MISSED' if missed else 'kept'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
