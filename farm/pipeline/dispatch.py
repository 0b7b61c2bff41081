"""The dispatcher: carries out detached runs, in the order and on the runners that the admission decides.

It keeps nothing that the journal and the engines do not know: killed at any moment, the next one takes every run up
where it is. Each run under way has a thread, which follows its build and does the short steps after it.
"""

import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from farm.engines.admission import Admission, Running, Task, Worker, fits
from farm.engines.base import FINAL
from farm.errors import BuildFailedError, FarmError, InfrastructureError, NoRunnerError
from farm.locks import lock
from farm.pipeline import needs
from farm.pipeline.backends import Backend, labels_for, open_backend
from farm.pipeline.context import CancelledError, StillRunningError
from farm.pipeline.mainjob import MainJob
from farm.pipeline.report import Outcomes
from farm.pipeline.run import finish, note_error, note_steps, plan_of
from farm.pipeline.workspace import Workspace
from farm.plan import Plan
from farm.runs import Attempt, EventKind, Journal, Run

TICK_S = 1.0
SAY_AGAIN_S = 30.0
PAUSE_S = 5.0
MAX_STEP_TRIES = 20
"""How often a step that needs no runner (publish, push of an image) is tried while store or registry are away."""


class AlreadyDispatchingError(FarmError):
    """Another dispatcher works on this journal."""


@contextlib.contextmanager
def sole(folder: Path, patience_s: float) -> Iterator[None]:
    """Holds the dispatcher's lock in `folder`; the kernel lets go of it when the process ends, however it ends.

    Raises:
        AlreadyDispatchingError: Another one holds it, for longer than `patience_s`.
    """
    with (folder / "dispatch.lock").open("ab") as file:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                lock(file.fileno(), wait=False)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AlreadyDispatchingError("another dispatcher is at work here") from None
                time.sleep(0.2)
        yield


@dataclass
class _Tracked:
    """What the dispatcher holds of one run."""

    run: Run
    plan: Plan
    on: str
    task: Task
    worker: str | None = None
    ends: float = 0.0
    active: bool = False
    not_before: float = 0.0
    step_tries: int = 0
    losses: int = 0
    said: str = ""
    said_at: float = 0.0


@dataclass
class Dispatcher:
    """See the module. `only`: these runs and no others."""

    workspace: Workspace
    journal: Journal
    only: frozenset[str] | None = None
    admission: dict[str, Admission] = field(default_factory=dict)
    _ahead: float = field(default_factory=lambda: time.time() - time.monotonic())
    _tracked: dict[str, _Tracked] = field(default_factory=dict)
    _kept: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ended: "queue.Queue[tuple[str, BaseException | None]]" = field(default_factory=queue.Queue)
    _backends: dict[str, Backend] = field(default_factory=dict)

    def drain(self) -> None:
        """Works until no detached run is left."""
        try:
            while self.tick():
                with contextlib.suppress(queue.Empty):
                    self._settle(*self._ended.get(timeout=TICK_S))
        finally:
            for backend in self._backends.values():
                backend.close()

    def tick(self) -> bool:
        """One round; False when there is nothing left to do."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._settle(*self._ended.get_nowait())
        for run in self.journal.open_runs():
            if run.id not in self._tracked and self._ours(run) and self.journal.claim(run.id):
                self._track(run)
        now = self._now()
        for one in list(self._tracked.values()):
            if not one.active:
                self._look(one, now)
        for on in {one.on for one in self._tracked.values()}:
            self._admit(on, now)
        return bool(self._tracked) or any(self._ours(run) for run in self.journal.open_runs())

    def _now(self) -> float:
        """The time of the start and what has gone since: a clock that is set back holds up nothing."""
        return self._ahead + time.monotonic()

    def _ours(self, run: Run) -> bool:
        return run.request.detached and (self.only is None or run.id in self.only)

    def _track(self, run: Run) -> None:
        try:
            plan, on = plan_of(run), run.request.on
            labels = labels_for(self.workspace, on, plan)
        except FarmError as error:
            note_error(self.journal, run, error)
            finish(self.journal, run, error)
            return
        lost = self._lost(run)
        task = Task(
            run.id,
            platform=plan.platform,
            machine=plan.machine,
            labels=labels,
            minutes=plan.timeout_minutes / 3,  # of the recipe; what a build takes is rarely near its limit
            priority=run.request.priority,
            created=datetime.fromisoformat(run.created).timestamp(),
            cache_key=f"{plan.base} {plan.channel}",
            excluded=frozenset(attempt.runner for attempt in lost),
            after=needs.builders(self.journal.open_runs(), plan),
        )
        self._tracked[run.id] = _Tracked(run, plan, on, task, losses=len(lost))

    def _attempts(self, run: Run) -> list[Attempt]:
        return [a for job in self.journal.jobs(run.id) if job.kind == "build" for a in job.attempts]

    def _lost(self, run: Run) -> list[Attempt]:
        return [attempt for attempt in self._attempts(run) if attempt.result == "infra"]

    # --- before the build

    def _look(self, one: _Tracked, now: float) -> None:
        """Ends what was cancelled, goes on with what needs no runner: a build under way, or one that was collected."""
        attempts = self._attempts(one.run)
        live = next((a for a in attempts if a.state not in FINAL), None)
        if live is None and self.journal.happened(one.run.id, EventKind.CANCEL):
            self._end(one, CancelledError("cancelled before it started"))
        elif now >= one.not_before and live is not None:
            self._start(one, live.runner, now)
        elif now >= one.not_before and (self.workspace.run_folder(one.run.id) / "built").is_dir():
            self._start(one, None, now)

    def _admit(self, on: str, now: float) -> None:
        mine = [one for one in self._tracked.values() if one.on == on]
        waiting = [one for one in mine if not one.active and now >= one.not_before]
        if not waiting:
            return
        try:
            workers = self._backend(on).workers()
        except FarmError as error:
            if not isinstance(error, InfrastructureError | NoRunnerError):
                for one in waiting:
                    self._end(one, error)
                return
            workers = []
            for one in waiting:
                self._say(one, f"the engine {on} does not answer: {error}", now)
        workers = [replace(w, caches=frozenset(self._kept[w.name])) for w in workers]
        for one in waiting:
            if workers and one.task.excluded and all(fits(one.task.needs, worker) for worker in workers):
                # There is no other runner that fits, online or not: back to one that failed it, after its quarantine.
                one.task = replace(one.task, excluded=frozenset())
        admission = self.admission.setdefault(on, Admission(grace_s=self.workspace.settings.grace_s))
        running = [Running(o.run.id, o.worker, o.ends) for o in mine if o.active and o.worker]
        before = [self.journal.run(name) for name in {name for one in waiting for name in one.task.after}]
        failed = {run.id for run in before if run.finished and run.result != "success"}
        decision = admission.decide(
            now,
            [one.task for one in waiting],
            workers,
            running,
            done=[run.id for run in before if run.result == "success"],
            failed=failed,
        )
        for placement in decision.placed:
            self._kept[placement.worker].add(placement.task.cache_key)
            self._start(self._tracked[placement.task.id], placement.worker, now, _speed(workers, placement.worker))
        for name, why in decision.waiting.items():
            if workers:
                self._say(self._tracked[name], why, now)
        for name, why in decision.refused.items():
            if self._tracked[name].task.after & failed:
                self._end(self._tracked[name], BuildFailedError(why, hint="`farm retry` that run, then this one"))
                continue
            hint = "`farm status` tells what it needs; add a runner or set its labels, then `farm retry`"
            self._end(self._tracked[name], NoRunnerError(f"no runner of {on} takes it: {why}", hint=hint))

    def _say(self, one: _Tracked, why: str, now: float) -> None:
        if why != one.said and (not one.said or now - one.said_at > SAY_AGAIN_S):
            self.journal.event(one.run.id, EventKind.WAITING, why=why)
            one.said, one.said_at = why, now

    def _backend(self, on: str) -> Backend:
        if on not in self._backends:
            self._backends[on] = open_backend(self.workspace, on)
        return self._backends[on]

    # --- the build and what follows, in a thread

    def _start(self, one: _Tracked, worker: str | None, now: float, speed: float = 1.0) -> None:
        one.active, one.worker, one.said = True, worker, ""
        one.ends = now + one.task.minutes * 60 / speed
        threading.Thread(target=self._carry, args=(one,), name=one.run.id, daemon=True).start()

    def _carry(self, one: _Tracked) -> None:
        job = MainJob(
            self.workspace,
            one.plan,
            self.journal,
            one.run,
            Outcomes(run=one.run.id),
            lambda: self._backend(one.on),
            runner=one.worker,
            excluded=tuple(sorted(one.task.excluded)),
        )
        problem: BaseException | None = None
        try:
            job.steps(one.run.request.until)
        except BaseException as error:
            problem = error
        note_steps(self.journal, one.run, job.outcomes)
        self._ended.put((one.run.id, problem))

    # --- after it

    def _settle(self, run_id: str, error: BaseException | None) -> None:
        """What comes of a run whose thread has ended."""
        one = self._tracked[run_id]
        worker, one.active, one.worker = one.worker, False, None
        now = self._now()
        admission = self.admission.setdefault(one.on, Admission(grace_s=self.workspace.settings.grace_s))
        if error is None:
            if worker:
                admission.succeeded(worker)
            self.journal.finish_run(run_id, "success", 0)
            del self._tracked[run_id]
            return
        if not isinstance(error, FarmError):  # a bug: this run ends, the others go on
            error = FarmError(f"the farm itself failed: {type(error).__name__}: {error}")
        lost = self._lost(one.run)
        away = isinstance(error, NoRunnerError) and len(lost) > one.losses  # the runner went between look and start
        if not isinstance(error, InfrastructureError) and not away:
            if worker:
                admission.succeeded(worker)
            self._end(one, error)
        elif isinstance(error, StillRunningError):
            note_error(self.journal, one.run, error)
            one.not_before = now + PAUSE_S
        elif worker and len(lost) > one.losses:
            one.losses = len(lost)
            held = admission.failed(worker, now)
            self.journal.event(run_id, "quarantine", runner=worker, seconds=round(held - now))
            if admission.may_retry(len(lost)):
                one.task = replace(one.task, excluded=one.task.excluded | {worker})
                self._say(
                    one, f"lost on {worker} ({lost[-1].why}); to be tried again, on another runner if there is one", now
                )
            else:
                self._end(one, error)
        else:
            one.step_tries += 1
            one.not_before = now + PAUSE_S
            if one.step_tries > MAX_STEP_TRIES:
                self._end(one, error)
            else:
                self._say(one, f"{error}; again in {PAUSE_S:.0f} s", now)

    def _end(self, one: _Tracked, error: FarmError) -> None:
        note_error(self.journal, one.run, error)
        finish(self.journal, one.run, error)
        del self._tracked[one.run.id]


def _speed(workers: list[Worker], name: str) -> float:
    return next(worker.speed for worker in workers if worker.name == name)
