"""Ctrl-C at any line of the build step: no job stays at the engine that nobody knows."""

import json
import signal
import sys
from itertools import count
from pathlib import Path

import pytest

from farm.engines.base import Capacity, Observation, Traits
from farm.plan.settings import load_settings
from farm.run import build_job, build_step, mainjob, run_context, toolchain
from farm.run.backends import Backend
from farm.run.mainjob import MainJob
from farm.run.run import request_for
from farm.run.workspace import Outcomes, Watcher, Workspace, open_journal
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
TRACED = (
    mainjob.__file__,
    build_step.__file__,
    build_job.__file__,
    run_context.__file__,
    toolchain.__file__,
    __file__,
)


class Engine:
    """Has a job from the middle of `submit` on, as Docker does: it was made, and its answer is on
    its way.
    """

    name = "docker"
    poll_s = 0.0
    traits = Traits(gathers=True)

    def __init__(self, *, again):
        self.running = set()
        self.again = again

    def capacity(self):
        return Capacity(1, 1 << 30)

    def submit(self, _job):
        self.running.add("container")
        self.answered = True
        return "container"

    def observe(self, _handle):
        return Observation("done", exit_code=0)

    def logs(self, _handle, **_since):
        yield b"built\n"

    def collect(self, _handle, dest, _max_bytes):
        (dest / "wheel").mkdir(parents=True)
        (dest / "wheel" / "x.whl").write_bytes(b"PK")

    def cancel(self, handle):
        assert handle == "container"
        if self.again:
            signal.raise_signal(signal.SIGINT)

    def release(self, handle):
        self.running.discard(handle)


def interrupted_at(number, call, engine):
    """Calls, with Ctrl-C at one line after the engine got a job; whether there was such a line."""
    left = number

    def trace(frame, event, _argument):
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line" and engine.running:
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture
def plan():
    return plan_of("cpu-avx-py311", "canary")


# An exception between open() and `with` leaves a file to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("again", [False, True], ids=["once", "and again while the job ends"])
def test_an_interrupted_submit_leaves_no_job(tmp_path, plan, again):
    reached = 0
    for number in count(1):
        folder = tmp_path / str(number)
        settings = load_settings(ROOT).model_copy(update={"artifacts": str(folder)})
        workspace, engine = Workspace(folder, settings, Watcher()), Engine(again=again)
        with open_journal(folder, settings) as journal:
            request = request_for(plan, until="build", on="docker")
            run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
            backend = Backend(engine, builder=None, workers=list)
            job = MainJob(
                workspace,
                plan,
                journal,
                run,
                Outcomes(run=run.id),
                lambda _runner, backend=backend: backend,
            )
            interrupted = interrupted_at(number, lambda job=job: job.steps("build"), engine)
            (attempt,) = journal.jobs(run.id)[0].attempts
        assert engine.running == set(), number
        if not interrupted:
            break
        assert attempt.state in ("cancelled", "done"), number
        reached = number
    assert reached > 30
