"""The dispatcher: carries out detached runs, in the order and on the runners that the queue
decides.

It keeps nothing that the journal and the engines do not know: killed at any moment, the next one
takes every run up where it is. Each run under way has a thread, which follows its build and does
the short steps after it. The slot of its runner is free again as soon as the wheel is here.

A round costs what has changed, not what waits: new runs and requests to cancel are read from where
the last round stopped, a run is looked at when something happened to it, and a decision is made
when a runner may have become free.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from farm.base.errors import (
    BuildFailedError,
    ExitCode,
    FarmError,
    InfrastructureError,
    NoRunnerError,
)
from farm.base.locks import lock
from farm.run import resume
from farm.run.backends import Backend, Labels, engine_kind, open_backend
from farm.run.build_step import EngineUnreachableError, StillRunningError
from farm.run.cancellable import CancelledError, in_thread
from farm.run.journal import Journal
from farm.run.journal_records import Attempt, EventKind, OpenRun
from farm.run.mainjob import MainJob
from farm.run.needs import PRODUCT, Makers
from farm.run.queue import Needs, Queue, QueueRunner, Task, fits
from farm.run.resume import BuildState
from farm.run.run import finish, note_error, note_steps, plan_of
from farm.run.set_aside import set_aside
from farm.run.workspace import Outcomes, Workspace

FIELDS = (*PRODUCT, "machine", "needs", "memory_per_job_gb")
"""Fields of a plan that a decision needs; the plan itself is read when the run starts."""
TICK_S = 1.0
DECIDE_S = 5.0
"""How long a decision stands while nothing changes: engines are asked for their runners so often at
most.
"""
# how long an engine may take to name its runners before the runs of other engines go on without it
ANSWER_S = 10.0
OTHERS_S = 5.0  # how often runs are asked about that another live process owns
PAUSE_S = 5.0
# how long a runner that lost a build does not get that one again, where it is the only one
LOST_S = 60.0
LOSSES = 3  # how often a build may be lost before its run ends
# how long the journal may be out of reach (a full disk, a lock) before the dispatcher ends
GIVE_UP_S = 600.0
MAX_STEP_TRIES = 20
"""How often a step that needs no runner (publish, push of an image) is tried while store or
registry are away.
"""


class AlreadyDispatchingError(FarmError):
    """Another dispatcher works on this journal."""


@contextlib.contextmanager
def exclusive(folder: Path, patience_s: float) -> Iterator[None]:
    """Holds the dispatcher's lock in `folder`; AlreadyDispatchingError where another one has it for
    `patience_s`.
    """
    # "a": the file is only locked, never written, and must not be cut by whoever comes second.
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
class Entry:
    """One run that has not ended.

    `worker`: the runner that it was given (None: the step under way needs none), of which it
    `holds` a slot; `active`: it has a thread; `not_before`: when it may be looked at again, as
    `time.time` counts; `step_tries` of a step that needs no runner; `losses` of its attempts, the
    newest at `lost_at`; `reason`: why it waits, as the journal has it.
    """

    id: str
    on: str
    task: Task
    worker: str | None = None
    holds: bool = False
    active: bool = False
    not_before: float = 0.0
    step_tries: int = 0
    losses: int = 0
    lost_at: float = 0.0
    reason: str = ""


@dataclass
class Dispatcher:
    """See the module. `only`: these runs and no others; `warn` is given what the journal cannot
    take.
    """

    workspace: Workspace
    journal: Journal
    only: frozenset[str] | None = None
    warn: Callable[[str], object] = lambda _text: None
    _ahead: float = field(default_factory=lambda: time.time() - time.monotonic())
    _entries: dict[str, Entry] = field(default_factory=dict)
    _newest: str = ""
    _others: dict[str, OpenRun] = field(default_factory=dict)
    _others_at: float = 0.0
    _cancels_from: int = 0
    _look_at: set[str] = field(default_factory=set)
    _makers: Makers = field(default_factory=Makers)
    _labels: dict[str, Labels] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _decided: dict[str, float] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _queues: dict[str, Queue] = field(default_factory=dict)
    _ended: "queue.Queue[tuple[str, BaseException | None]]" = field(default_factory=queue.Queue)
    _results: dict[str, BaseException | None] = field(default_factory=dict)
    _backends: dict[tuple[str, str], Backend] = field(default_factory=dict)
    _opening: dict[tuple[str, str], threading.Lock] = field(default_factory=dict)
    _calls: dict[tuple[str, str], Future[list[QueueRunner]]] = field(default_factory=dict)

    def drain(self) -> None:
        """Works until no detached run is left; InfrastructureError: the journal was out of reach
        for `GIVE_UP_S`.
        """
        away: float | None = None
        try:
            while True:
                try:
                    if not self.tick():
                        return
                    away = None
                except InfrastructureError as error:
                    # The journal: engines that are away are dealt with below.
                    away = away or time.monotonic()
                    if time.monotonic() - away > GIVE_UP_S:
                        raise
                    self.warn(f"{error}; trying again in {PAUSE_S:.0f} s")
                    time.sleep(PAUSE_S)
                self._take_ended(TICK_S)
        finally:
            for backend in self._backends.values():
                backend.close()

    def tick(self) -> bool:
        """One round; False when nothing is left to do; InfrastructureError of the journal: it may
        be made again.
        """
        self._take_ended(0.0)
        for run_id in list(self._results):
            self._conclude(run_id, self._results[run_id])
            # After it: what the journal could not take is settled in the next round.
            del self._results[run_id]
        self._find()
        now = self._now()
        for event, run_id in self.journal.since(self._cancels_from, EventKind.CANCEL):
            self._cancels_from = event
            if run_id in self._entries:
                self._look_at.add(run_id)
        for run_id in list(self._look_at):
            self._look(run_id, now)
        for on in {entry.on for entry in self._entries.values()}:
            if on in self._changed or now - self._decided.get(on, float("-inf")) >= DECIDE_S:
                # First: a slot that becomes free meanwhile is a change again.
                self._changed.discard(on)
                self._decided[on] = now
                self._admit(on, now)
        if self._reasons:
            self.journal.note_waiting(self._reasons)
            self._reasons = {}
        return bool(self._entries or self._others)

    def _take_ended(self, patience_s: float) -> None:
        """Takes the ends of runs' threads; waits for a first one so long."""
        with contextlib.suppress(queue.Empty):
            while True:
                run_id, problem = self._ended.get(timeout=patience_s)
                self._results[run_id] = problem
                patience_s = 0.0

    def _now(self) -> float:
        """The time of the start and what has gone since: a clock that is set back holds up
        nothing.
        """
        return self._ahead + time.monotonic()

    # --- which runs there are

    def _find(self) -> None:
        """Takes new runs, and those whose owner has died."""
        new_runs = self.journal.open_after(self._newest, FIELDS)
        mine: dict[str, OpenRun] = {}
        for run in new_runs:
            self._makers.add(run)
            if run.request.detached and (self.only is None or run.id in self.only):
                mine[run.id] = run
        if self._others and time.monotonic() - self._others_at > OTHERS_S:
            self._others_at = time.monotonic()
            for run_id, run in self._others.items():
                if not self.journal.run(run_id).finished:
                    mine[run_id] = run
            self._others = {}
        claimed = set[str]()
        if mine:
            claimed = self.journal.claim_all(mine)
        if claimed:
            attempted = self.journal.attempted()
            for run_id in claimed:
                self._track(mine[run_id], has_attempts=run_id in attempted)
        # Another process owns them: they are asked about again, in case it dies.
        for run_id, run in mine.items():
            if run_id not in claimed:
                self._others[run_id] = run
        if new_runs:
            self._newest = new_runs[-1].id

    def _track(self, run: OpenRun, *, has_attempts: bool) -> None:
        about = run.about
        on = run.request.on
        try:
            if about["machine"] is None:
                plan_of(self.journal.run(run.id))  # says what is wrong with it
            if on not in self._labels:
                self._labels[on] = engine_kind(on).labels(self.workspace)
            labels = self._labels[on](about["variant"], about["platform"])
        except InfrastructureError:
            raise
        except FarmError as error:
            note_error(self.journal, run.id, error)
            finish(self.journal, run.id, error)
            return
        lost_attempts = []
        if has_attempts:
            lost_attempts = self._state(run.id).lost
        needs = Needs(
            platform=about["platform"],
            machine=about["machine"],
            labels=labels,
            memory=int((about["memory_per_job_gb"] or 0) * 1e9),
            excluded=frozenset(attempt.runner for attempt in lost_attempts),
        )
        task = Task(
            run.id,
            needs,
            priority=run.request.priority,
            created=datetime.fromisoformat(run.created).timestamp(),
            after=self._makers.of(about["needs"] or (), about["variant"], about["platform"]),
        )
        self._entries[run.id] = Entry(run.id, on, task, losses=len(lost_attempts))
        self._changed.add(on)
        if not has_attempts:
            resume.adopt_previous_build(self.workspace, self.journal, run.id, run.plan_digest)
        if has_attempts or self._state(run.id).resumable:
            self._look_at.add(run.id)

    def _state(self, run_id: str) -> BuildState:
        return resume.build_state(self.workspace, self.journal, run_id)

    # --- before the build

    def _look(self, run_id: str, now: float) -> None:
        """Ends what was cancelled, goes on with what needs no runner: a build under way, or one
        that was collected.
        """
        entry = self._entries.get(run_id)
        if entry is None or entry.active:  # its own thread sees to it
            self._look_at.discard(run_id)
            return
        state = self._state(run_id)
        attempt = state.open_attempt
        if attempt is None and self.journal.happened(run_id, EventKind.CANCEL):
            self._end(entry, CancelledError("cancelled before it started"))
        elif now < entry.not_before:
            return
        elif attempt is not None:
            self._start(entry, attempt.runner)
        elif state.resumable:  # its wheel is here: the steps that follow need no runner
            self._start(entry, None)
        self._look_at.discard(run_id)

    def _admit(self, on: str, now: float) -> None:
        waiting = self._waiting(on, now)
        if not waiting:
            return
        try:
            workers, troubles = self._workers(on)
        except FarmError as error:  # the configuration is wrong: waiting would not help
            for entry in waiting:
                self._end(entry, error)
            return
        workers = self._resting_marked(workers, now)
        waiting = _placeable(waiting, workers, now)
        done, failed = self._ended_before(waiting)
        run_queue = self._queues.setdefault(on, Queue(self.workspace.settings.grace_s))
        decision = run_queue.decide(
            now,
            [entry.task for entry in waiting],
            workers,
            self._held_workers(on),
            done=done,
            failed=failed,
        )
        for placement in decision.placed:
            self._start(self._entries[placement.task.id], placement.worker)
        trouble = "; ".join(troubles)
        for run_id, why in decision.waiting.items():
            text = trouble or why
            if trouble and workers:
                text = f"{why} ({trouble})"
            self._wait(self._entries[run_id], text)
        for run_id, why in decision.refused.items():
            entry = self._entries[run_id]
            if entry.task.after & failed:
                hint = "`farm retry` that run, then this one"
                self._end(entry, BuildFailedError(why, hint=hint))
                continue
            text = trouble or why
            if workers:
                text = f"no runner of {on} takes it: {why}"
            self._refuse(entry, text)

    def _waiting(self, on: str, now: float) -> list[Entry]:
        """The runs for an engine that have no thread, and whose time has come."""
        waiting = []
        for entry in self._entries.values():
            if entry.on == on and not entry.active and now >= entry.not_before:
                waiting.append(entry)
        return waiting

    def _held_workers(self, on: str) -> list[str]:
        """The runner of each run that holds one, as often as it has runs."""
        names = []
        for entry in self._entries.values():
            if entry.on == on and entry.holds and entry.worker:
                names.append(entry.worker)
        return names

    def _resting_marked(self, workers: list[QueueRunner], now: float) -> list[QueueRunner]:
        """The runners of an engine; those that are set aside are busy with their rest."""
        resting = set_aside(self.journal, datetime.fromtimestamp(now, UTC))
        marked = []
        for worker in workers:
            if worker.name in resting:
                marked.append(replace(worker, busy=resting[worker.name].text))
            else:
                marked.append(worker)
        return marked

    def _ended_before(self, waiting: list[Entry]) -> tuple[list[str], set[str]]:
        """The runs that others wait for: those that succeeded, and those that ended otherwise."""
        names = set[str]()
        for entry in waiting:
            names |= entry.task.after
        done = []
        failed = set()
        for name in names - self._entries.keys():
            run = self.journal.run(name)
            if run.result == "success":
                done.append(run.id)
            elif run.finished:
                failed.add(run.id)
        return done, failed

    def _refuse(self, entry: Entry, text: str) -> None:
        hint = (
            "add such a runner to ci/runners.yaml, or correct what it says of one; then "
            "`farm retry`"
        )
        self._end(entry, NoRunnerError(text, hint=hint))

    def _wait(self, entry: Entry, why: str) -> None:
        """Keeps a reason for the journal, unless it has the same."""
        if why != entry.reason:
            self._reasons[entry.id] = entry.reason = why

    def _workers(self, on: str) -> tuple[list[QueueRunner], list[str]]:
        """The runners of an engine, and what is wrong with machines of it that do not answer, once
        for `ANSWER_S`.
        """
        names = engine_kind(on).machines(self.workspace)
        fresh = [name for name in names if (on, name) not in self._calls]
        for name in fresh:
            self._calls[on, name] = in_thread(partial(self._workers_of, on, name))
        wait([self._calls[on, name] for name in fresh], ANSWER_S)
        workers = []
        troubles = []
        for name in names:
            where = f"runner {name}"
            if len(names) == 1:
                where = f"the engine {on}"
            if not self._calls[on, name].done():  # it is asked for again
                troubles.append(f"{where} does not answer: no answer")
                continue
            try:
                workers += self._calls.pop((on, name)).result()
            except (InfrastructureError, NoRunnerError) as error:
                troubles.append(f"{where} does not answer: {error}")
        return workers, troubles

    def _workers_of(self, on: str, name: str) -> list[QueueRunner]:
        return self._backend(on, name).workers()

    def _backend(self, on: str, runner: str | None) -> Backend:
        key = on, engine_kind(on).machine_of(self.workspace, runner)
        # Asked for by the threads of runs as well.
        with self._opening.setdefault(key, threading.Lock()):
            if key not in self._backends:
                self._backends[key] = open_backend(self.workspace, on, runner)
            return self._backends[key]

    # --- the build and what follows, in a thread

    def _start(self, entry: Entry, worker: str | None) -> None:
        entry.active = True
        entry.holds = worker is not None
        entry.worker = worker
        entry.reason = ""
        self._reasons.pop(entry.id, None)
        threading.Thread(target=self._carry_out, args=(entry,), name=entry.id, daemon=True).start()

    def _free(self, entry: Entry) -> None:
        """The wheel is here: the steps that follow need no runner."""
        entry.holds = False
        self._changed.add(entry.on)

    def _carry_out(self, entry: Entry) -> None:
        """The whole life of a run's thread: whatever happens, its end is put where the next round
        finds it.
        """
        problem: BaseException | None = None
        outcomes = Outcomes(run=entry.id)
        try:
            run = self.journal.run(entry.id)
            # Else it is asked about again, for as long as its machine is away.
            if self._state(entry.id).open_attempt is None:
                self.journal.event(entry.id, EventKind.BEGUN)
            job = MainJob(
                self.workspace,
                plan_of(run),
                self.journal,
                run,
                outcomes,
                lambda runner: self._backend(entry.on, runner),
                runner=entry.worker,
                on_built=lambda: self._free(entry),
            )
            job.steps(run.request.until)
        except BaseException as error:
            problem = error
        try:
            note_steps(self.journal, entry.id, outcomes)
        except BaseException as error:
            self.warn(f"the steps of run {entry.id} are not in the journal: {error}")
        finally:
            self._ended.put((entry.id, problem))

    # --- after it

    def _conclude(self, run_id: str, error: BaseException | None) -> None:
        """The end of a run whose thread has ended, or its next try. If the journal fails, all of
        this is done again.
        """
        entry = self._entries[run_id]
        now = self._now()
        if error is None:
            self.journal.finish_run(run_id, "success", ExitCode.DONE)
            self._forget(entry)
            return
        failure = _as_farm_error(error)
        lost_attempts = self._state(run_id).lost
        lost_one = len(lost_attempts) > entry.losses
        # The runner went between look and start.
        away = isinstance(failure, NoRunnerError) and lost_one
        if not isinstance(failure, InfrastructureError) and not away:  # the build's own fault
            self._end(entry, failure)
        elif isinstance(failure, EngineUnreachableError):
            self._unreachable(entry, failure, now)
        elif isinstance(failure, StillRunningError):
            note_error(self.journal, run_id, failure)
            self._again(entry, now + PAUSE_S)
        elif entry.worker and lost_one:
            self._lose(entry, entry.worker, lost_attempts, failure, now)
        elif entry.step_tries >= MAX_STEP_TRIES:
            self._end(entry, failure)
        else:
            entry.step_tries += 1
            self._wait(entry, f"{failure}; again in {PAUSE_S:.0f} s")
            self._again(entry, now + PAUSE_S)

    def _unreachable(self, entry: Entry, error: EngineUnreachableError, now: float) -> None:
        """The engine of a run's build does not answer: the build is cancelled, given up, or asked
        about again.
        """
        if self.journal.happened(entry.id, EventKind.CANCEL):
            text = f"cancelled; its build may go on to its time limit: {error}"
            self._end(entry, CancelledError(text))
            return
        given_up = self._gone(entry, now)
        if given_up:
            self.journal.set_state(given_up.id, "lost", "infra", why=str(error))
            self._lose(entry, given_up.runner, self._state(entry.id).lost, error, now)
            return
        live = self._state(entry.id).open_attempt
        if live is None:
            note_error(self.journal, entry.id, error)
        else:
            # The attempt's reason until its engine answers: one event, however often it is asked.
            self.journal.set_state(live.id, "running", why=str(error))
        self._again(entry, now + PAUSE_S)

    def _gone(self, entry: Entry, now: float) -> Attempt | None:
        """The build of a machine that has not answered for `grace_s`, where others could build it;
        else None.
        """
        state = self.journal.happened(entry.id, EventKind.STATE)
        if state is None or len(engine_kind(entry.on).machines(self.workspace)) < 2:
            return None
        if now - datetime.fromisoformat(state.time).timestamp() < self.workspace.settings.grace_s:
            return None
        return self._state(entry.id).open_attempt

    def _lose(
        self, entry: Entry, worker: str, lost: list[Attempt], error: FarmError, now: float
    ) -> None:
        """A runner lost the build: it goes to another entry, if there is entry."""
        if len(lost) >= LOSSES:
            self._end(entry, error)
            return
        entry.losses = len(lost)
        entry.lost_at = now
        needs = entry.task.needs
        entry.task = replace(entry.task, needs=needs._replace(excluded=needs.excluded | {worker}))
        if len(engine_kind(entry.on).machines(self.workspace)) > 1:
            why = lost[-1].why
            text = f"lost on {worker} ({why}); to be tried again, rather on another machine"
        else:  # the engine chooses the node, or there is no other
            text = f"lost ({lost[-1].why}); to be tried again"
        self._wait(entry, text)
        self._again(entry, 0.0)

    def _again(self, entry: Entry, not_before: float) -> None:
        """The run has no thread now, and is looked at when its time has come."""
        entry.active = False
        entry.holds = False
        entry.worker = None
        entry.not_before = not_before
        self._look_at.add(entry.id)
        self._changed.add(entry.on)

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.id]
        self._look_at.discard(entry.id)
        self._reasons.pop(entry.id, None)
        self._changed.add(entry.on)

    def _end(self, entry: Entry, error: FarmError) -> None:
        note_error(self.journal, entry.id, error)
        finish(self.journal, entry.id, error)
        self._forget(entry)


def _placeable(waiting: list[Entry], workers: list[QueueRunner], now: float) -> list[Entry]:
    """The runs that may get a runner now.

    One that was lost, and that no other runner can take, online or not, waits a while and goes back
    to those that lost it.
    """
    entries = []
    for entry in waiting:
        needs = entry.task.needs
        has_another = not all(fits(needs, worker) for worker in workers)
        if not workers or not needs.excluded or has_another:
            entries.append(entry)
        elif now - entry.lost_at >= LOST_S:
            entry.task = replace(entry.task, needs=needs._replace(excluded=frozenset()))
            entries.append(entry)
    return entries


def _as_farm_error(error: BaseException) -> FarmError:
    """A bug, or something that this machine is out of, as an error of its run: the others go on."""
    if isinstance(error, FarmError):
        return error
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return InfrastructureError(text)
    return FarmError(f"the farm itself failed: {text}")
