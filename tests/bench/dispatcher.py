"""The dispatcher with thousands of runs: python tests/bench/dispatcher.py [--runs 5000] [--runners 200]

The real dispatcher, scheduler and journal; the engine only sleeps, and a run's steps are its build alone. Prints the
CPU time of the first round, of the rounds after it while nothing ends, of a restart, of `farm status`, the memory, and
then lets the builds go and prints how far the end is from the lower bound: all work spread evenly over all runners, or
the longest build.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from farm.cli.main import main as farm
from farm.plan.build import resolve
from farm.plan.matrix import load_matrix
from farm.plan.selectors import Selectors
from farm.plan.settings import load_settings
from farm.plan.variant import Variant
from farm.run import dispatch
from farm.run.dispatch import Dispatcher
from farm.run.queue import Worker
from farm.run.run import request_for
from farm.run.workspace import Silent, Workspace, open_journal

ROOT = Path(__file__).parents[2]
CHANNEL = "kepler-2.0.1"
SLACK = 0.2
"""A build takes the mean of its variant times a factor in [1 - SLACK, 1 + SLACK]."""


class Fleet:
    """An open engine whose builds sleep; `lengths` in seconds, by the variant of a run."""

    def __init__(self, count: int) -> None:
        self.fleet = [Worker(f"runner-{number:03d}") for number in range(count)]
        self.started, self.lock, self.gate = 0, threading.Lock(), threading.Event()

    def workers(self) -> list[Worker]:
        return self.fleet

    def close(self) -> None:
        pass


def make_job(fleet: Fleet, lengths: dict[str, float]) -> type:
    class Job:
        def __init__(self, _workspace, _plan, journal, run, *_more, runner, **_others):
            self.journal, self.run, self.runner = journal, run, runner

        def steps(self, _until):
            job = self.journal.create_job(self.run.id, "build")
            attempt = self.journal.create_attempt(job.id, "docker", self.runner)
            self.journal.set_handle(attempt.id, f"sleep-{attempt.id}")
            self.journal.set_state(attempt.id, "running")
            with fleet.lock:
                fleet.started += 1
            fleet.gate.wait()
            time.sleep(lengths[self.run.id])
            self.journal.set_state(attempt.id, "done", "success")

    return Job


def wait_for(check) -> None:
    while not check():
        time.sleep(0.01)


def cpu(work) -> tuple[float, object]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--runners", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=3.0, help="the mean length of a build")
    args = parser.parse_args()
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        project = Path(name)
        (project / "ci").mkdir()
        for file in ("farm.yaml", "matrix.yaml", "runners.yaml"):
            (project / "ci" / file).write_text((ROOT / "ci" / file).read_text())
        workspace = Workspace(project, load_settings(project), Silent())
        variants = sorted(
            {str(build.variant) for build in load_matrix(ROOT).builds(CHANNEL) if build.package == "torch"}
        )
        mean = {variant: chance.uniform(0.3, 1.7) * args.seconds for variant in variants}
        plan = resolve(ROOT, Selectors(Variant.parse("sm35-avx-py311"), "torch"))
        text, lengths = json.loads(plan.to_json()), {}
        with open_journal(project, workspace.settings) as journal:
            request = request_for(plan, until="build", on="docker", detached=True)
            for number in range(args.runs):
                variant = variants[number % len(variants)]
                asked = replace(request, variant=variant)
                run = journal.create_run(f"{number:064x}", asked, {**text, "variant": variant})
                lengths[run.id] = chance.uniform(1 - SLACK, 1 + SLACK) * mean[variant]
            print(f"{args.runs} runs, plans of {len(json.dumps(text))} characters, {args.runners} runners")
            fleet = Fleet(args.runners)
            dispatch.open_backend = lambda *_: fleet
            dispatch.MainJob = make_job(fleet, lengths)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            dispatcher = Dispatcher(workspace, journal)
            began = time.monotonic()
            first, _ = cpu(dispatcher.tick)
            print(f"first round: {first:.2f} CPU s, {time.monotonic() - began:.1f} s; started {fleet.started}")
            wait_for(lambda: fleet.started == args.runners)
            start, ticks = time.process_time(), 20
            for _ in range(ticks):
                dispatcher.tick()
                time.sleep(1)
            print(
                f"steady: {(time.process_time() - start) / ticks:.3f} CPU s a second, {fleet.started} builds under way"
            )
            again, _ = cpu(Dispatcher(workspace, journal, only=frozenset())._find)
            print(f"restart: {again:.2f} CPU s to find the runs again")
            with contextlib.redirect_stdout(io.StringIO()):
                shown, code = cpu(lambda: farm(["--project", str(project), "status", "--json"]))
            print(f"farm status: {shown:.2f} CPU s, exit code {code}")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"memory: {peak / 1024:.0f} MB, {(peak - before) / 1024:.0f} of it the dispatcher's")
            began, start = time.monotonic(), time.process_time()
            fleet.gate.set()
            dispatcher.drain()
            took, spent = time.monotonic() - began, time.process_time() - start
            bound = max(sum(lengths.values()) / args.runners, *lengths.values())
            print(f"the end: {took:.1f} s, lower bound {bound:.1f} s, {took / bound - 1:.1%} above it")
            print(f"         {spent / args.runs * 1000:.1f} CPU ms a run, {args.runs / took:.0f} runs ended a second")


if __name__ == "__main__":
    main()
