"""The dispatcher: carries out detached runs, in the order and on the runners that the scheduler decides.

It keeps nothing that the journal and the engines do not know: killed at any moment, the next one takes every run up
where it is. Each run under way has a thread, which follows its build and does the short steps after it.

A round costs what has changed, not what waits: new runs and requests to cancel are read from where the last round
stopped, a run is looked at when something happened to it, and a decision is made when a runner may have become free.
"""

import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from farm.base.errors import BuildFailedError, ExitCode, FarmError, InfrastructureError, NoRunnerError
from farm.engines.admission import Admission, Running, Worker, fits
from farm.engines.base import FINAL
from farm.run.asked import Asked, NoAnswerError
from farm.run.backends import Backend, Labels, engine_kind, open_backend
from farm.run.context import CancelledError, StillRunningError
from farm.run.journal import Attempt, EventKind, Journal, OpenRun
from farm.run.lengths import Lengths
from farm.run.mainjob import MainJob
from farm.run.needs import Makers
from farm.run.report import Outcomes
from farm.run.run import finish, note_error, note_steps, plan_of
from farm.run.tracked import FIELDS, Tracked
from farm.run.workspace import Workspace

TICK_S = 1.0
DECIDE_S = 5.0
"""How long a decision stands while nothing changes: engines are asked for their runners so often at most."""
ANSWER_S = 10.0
"""How long an engine may take to name its runners before the runs of other engines go on without it."""
OTHERS_S = 5.0
"""How often runs are asked about that another live process owns."""
REASON_S = 300.0
"""How long a reason stands whose numbers alone have changed."""
PAUSE_S = 5.0
GIVE_UP_S = 600.0
"""How long the journal may be out of reach (a full disk, a lock) before the dispatcher ends."""
MAX_STEP_TRIES = 20
"""How often a step that needs no runner (publish, push of an image) is tried while store or registry are away."""
_DIGITS = str.maketrans("", "", "0123456789.")


@dataclass
class Dispatcher:
    """See the module. `only`: these runs and no others; `warn` is given what the journal cannot take."""

    workspace: Workspace
    journal: Journal
    only: frozenset[str] | None = None
    admission: dict[str, Admission] = field(default_factory=dict)
    warn: Callable[[str], object] = lambda _text: None
    _ahead: float = field(default_factory=lambda: time.time() - time.monotonic())
    _tracked: dict[str, Tracked] = field(default_factory=dict)
    _newest: str = ""
    _others: dict[str, OpenRun] = field(default_factory=dict)
    _others_at: float = 0.0
    _cancels_from: int = 0
    _look_at: set[str] = field(default_factory=set)
    _makers: Makers = field(default_factory=Makers)
    _lengths: Lengths | None = None
    _labels: dict[str, Labels] = field(default_factory=dict)
    _changed: set[str] = field(default_factory=set)
    _decided: dict[str, float] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    _kept: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _ended: "queue.Queue[tuple[str, BaseException | None]]" = field(default_factory=queue.Queue)
    _unsettled: dict[str, BaseException | None] = field(default_factory=dict)
    _backends: dict[str, Backend] = field(default_factory=dict)
    _opening: dict[str, threading.Lock] = field(default_factory=dict)
    _asked: dict[str, Asked[list[Worker]]] = field(default_factory=dict)

    def drain(self) -> None:
        """Works until no detached run is left.

        Raises:
            InfrastructureError: The journal could not be written for `GIVE_UP_S`; the next dispatcher goes on.
        """
        away: float | None = None
        try:
            while True:
                try:
                    if not self.tick():
                        return
                    away = None
                except InfrastructureError as error:  # the journal: engines that are away are dealt with below
                    away = away or time.monotonic()
                    if time.monotonic() - away > GIVE_UP_S:
                        raise
                    self.warn(f"{error}; trying again in {PAUSE_S:.0f} s")
                    time.sleep(PAUSE_S)
                with contextlib.suppress(queue.Empty):
                    run_id, problem = self._ended.get(timeout=TICK_S)
                    self._unsettled[run_id] = problem
        finally:
            for backend in self._backends.values():
                backend.close()

    def tick(self) -> bool:
        """One round; False when there is nothing left to do.

        Raises:
            InfrastructureError: The journal cannot be read or written; the round may be made again.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                run_id, problem = self._ended.get_nowait()
                self._unsettled[run_id] = problem
        for run_id in list(self._unsettled):
            self._settle(run_id, self._unsettled[run_id])
            del self._unsettled[run_id]  # after it: what the journal could not take is settled in the next round
        self._find()
        now = self._now()
        self._find_cancelled()
        for run_id in list(self._look_at):
            self._look(run_id, now)
        for on in {one.on for one in self._tracked.values()}:
            if on in self._changed or now - self._decided.get(on, float("-inf")) >= DECIDE_S:
                self._admit(on, now)
                self._changed.discard(on)
                self._decided[on] = now
        if self._reasons:
            self.journal.note_waiting(self._reasons)
            self._reasons = {}
        return bool(self._tracked or self._others)

    def _now(self) -> float:
        """The time of the start and what has gone since: a clock that is set back holds up nothing."""
        return self._ahead + time.monotonic()

    # --- which runs there are

    def _find(self) -> None:
        """Takes new runs, and those whose owner has died."""
        found = self.journal.open_after(self._newest, FIELDS)
        for run in found:
            self._makers.add(run)
        mine = {r.id: r for r in found if r.request.detached and (self.only is None or r.id in self.only)}
        if self._others and time.monotonic() - self._others_at > OTHERS_S:
            self._others_at = time.monotonic()
            gone = {run_id for run_id in self._others if self.journal.run(run_id).finished}
            mine |= {run_id: run for run_id, run in self._others.items() if run_id not in gone}
            self._others = {}
        claimed = self.journal.claim_all(mine) if mine else set()
        attempted = self.journal.attempted() if claimed else set()
        for run_id in claimed:
            self._track(mine[run_id], has_attempts=run_id in attempted)
        # Another process owns them: they are asked about again, in case it dies.
        self._others |= {run_id: run for run_id, run in mine.items() if run_id not in claimed}
        self._newest = found[-1].id if found else self._newest

    def _track(self, run: OpenRun, *, has_attempts: bool) -> None:
        about, on = run.about, run.request.on
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
        lost = self._lost(run.id) if has_attempts else []
        after = self._makers.of(about["needs"] or (), about["variant"], about["platform"])
        if self._lengths is None:
            self._lengths = Lengths(self.journal.build_lengths())
        self._tracked[run.id] = Tracked.of(run, labels, lost, after, self._lengths.minutes(about))
        self._changed.add(on)
        if has_attempts:
            self._look_at.add(run.id)

    def _find_cancelled(self) -> None:
        for event, run_id in self.journal.since(self._cancels_from, EventKind.CANCEL):
            self._cancels_from = event
            if run_id in self._tracked:
                self._look_at.add(run_id)

    def _attempts(self, run_id: str) -> list[Attempt]:
        return [a for job in self.journal.jobs(run_id) if job.kind == "build" for a in job.attempts]

    def _lost(self, run_id: str) -> list[Attempt]:
        return [attempt for attempt in self._attempts(run_id) if attempt.result == "infra"]

    # --- before the build

    def _look(self, run_id: str, now: float) -> None:
        """Ends what was cancelled, goes on with what needs no runner: a build under way, or one that was collected."""
        one = self._tracked.get(run_id)
        if one is None or one.active:  # its own thread sees to it
            self._look_at.discard(run_id)
            return
        live = next((a for a in self._attempts(run_id) if a.state not in FINAL), None)
        if live is None and self.journal.happened(run_id, EventKind.CANCEL):
            self._end(one, CancelledError("cancelled before it started"))
        elif now < one.not_before:
            return
        elif live is not None:
            self._start(one, live.runner, now)
        elif (self.workspace.run_folder(run_id) / "built").is_dir():
            self._start(one, None, now)
        self._look_at.discard(run_id)

    def _admit(self, on: str, now: float) -> None:
        mine = [one for one in self._tracked.values() if one.on == on]
        waiting = [one for one in mine if not one.active and now >= one.not_before]
        if not waiting:
            return
        trouble = ""
        try:
            workers = self._workers(on)
        except FarmError as error:
            # The configuration is wrong: waiting would not help.
            if not isinstance(error, InfrastructureError | NoRunnerError):
                for one in waiting:
                    self._end(one, error)
                return
            workers, trouble = [], f"the engine {on} does not answer: {error}"
            for one in waiting:
                self._say(one, trouble, now)
        workers = [replace(w, caches=frozenset(self._kept[w.name])) for w in workers]
        for one in waiting:
            if workers and one.task.excluded and all(fits(one.task.needs, worker) for worker in workers):
                # There is no other runner that fits, online or not: back to one that failed it, after its quarantine.
                one.task = replace(one.task, excluded=frozenset())
        admission = self.admission.setdefault(on, Admission(grace_s=self.workspace.settings.grace_s))
        running = [Running(o.id, o.worker, o.ends) for o in mine if o.active and o.worker]
        names = {name for one in waiting for name in one.task.after if name not in self._tracked}
        before = [self.journal.run(name) for name in names]
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
            hint = "`farm runners check` names what is missing; add a runner or set its labels, then `farm retry`"
            text = trouble or f"no runner of {on} takes it: {why}"
            self._end(self._tracked[name], NoRunnerError(text, hint=hint))

    def _say(self, one: Tracked, why: str, now: float) -> None:
        """Keeps a reason for the journal; thousands of runs whose minutes alone changed would only make it grow."""
        same = why.translate(_DIGITS) == one.reason.translate(_DIGITS)
        if why != one.reason and (not same or now - one.reason_at > REASON_S):
            self._reasons[one.id] = why
            one.reason, one.reason_at = why, now

    def _workers(self, on: str) -> list[Worker]:
        """The engine's runners. One that never answers holds up the runs of other engines once, for `ANSWER_S`."""
        before = self._asked.get(on)
        asked = self._asked[on] = before or Asked(lambda: self._backend(on).workers())
        try:
            found = asked.answer(0.0 if before else ANSWER_S)
        except NoAnswerError:
            raise
        except BaseException:
            del self._asked[on]
            raise
        del self._asked[on]
        return found

    def _backend(self, on: str) -> Backend:
        with self._opening.setdefault(on, threading.Lock()):  # asked for by the threads of runs as well
            if on not in self._backends:
                self._backends[on] = open_backend(self.workspace, on)
            return self._backends[on]

    # --- the build and what follows, in a thread

    def _start(self, one: Tracked, worker: str | None, now: float, speed: float = 1.0) -> None:
        one.active, one.worker, one.reason = True, worker, ""
        one.ends = now + one.task.minutes * 60 / speed
        self._reasons.pop(one.id, None)
        threading.Thread(target=self._carry_out, args=(one,), name=one.id, daemon=True).start()

    def _carry_out(self, one: Tracked) -> None:
        """The whole life of a run's thread: whatever happens, its end is put where the next round finds it."""
        problem: BaseException | None = None
        outcomes = Outcomes(run=one.id)
        try:
            run = self.journal.run(one.id)
            self.journal.event(one.id, EventKind.BEGUN)
            job = MainJob(
                self.workspace,
                plan_of(run),
                self.journal,
                run,
                outcomes,
                lambda: self._backend(one.on),
                runner=one.worker,
                excluded=tuple(sorted(one.task.excluded)),
            )
            job.steps(run.request.until)
        except BaseException as error:
            problem = error
        try:
            note_steps(self.journal, one.id, outcomes)
        except BaseException as error:
            self.warn(f"the steps of run {one.id} are not in the journal: {error}")
        finally:
            self._ended.put((one.id, problem))

    # --- after it

    def _settle(self, run_id: str, error: BaseException | None) -> None:
        """What comes of a run whose thread has ended. The journal first: if it fails, all of this is done again."""
        one = self._tracked[run_id]
        worker, now = one.worker, self._now()
        admission = self.admission.setdefault(one.on, Admission(grace_s=self.workspace.settings.grace_s))
        if error is None:
            self.journal.finish_run(run_id, "success", ExitCode.DONE)
            if worker:
                admission.succeeded(worker)
                if self._lengths is not None:
                    self._lengths.note(self.journal.build_lengths(run_id))
            self._forget(one)
            return
        if not isinstance(error, FarmError):  # a bug, or this machine is out of something: the others go on
            text = f"{type(error).__name__}: {error}"
            system = isinstance(error, OSError)
            error = InfrastructureError(text) if system else FarmError(f"the farm itself failed: {text}")
        lost = self._lost(run_id)
        away = isinstance(error, NoRunnerError) and len(lost) > one.losses  # the runner went between look and start
        # The build's own fault: the run ends, and its runner has worked.
        if not isinstance(error, InfrastructureError) and not away:
            self._end(one, error)
            if worker:
                admission.succeeded(worker)
        elif isinstance(error, StillRunningError):
            note_error(self.journal, run_id, error)
            self._again(one, now + PAUSE_S)
        elif worker and len(lost) > one.losses:
            self._lose(one, worker, lost, error, now)
        elif one.step_tries >= MAX_STEP_TRIES:
            self._end(one, error)
        else:
            one.step_tries += 1
            self._say(one, f"{error}; again in {PAUSE_S:.0f} s", now)
            self._again(one, now + PAUSE_S)

    def _lose(self, one: Tracked, worker: str, lost: list[Attempt], error: FarmError, now: float) -> None:
        """A runner lost the build: it gets nothing for a while, and the build goes to another one."""
        admission = self.admission[one.on]
        if not admission.may_retry(len(lost)):
            self._end(one, error)
            admission.failed(worker, now)
            return
        held = admission.failed(worker, now)
        self.journal.event(one.id, "quarantine", runner=worker, seconds=round(held - now))
        one.losses = len(lost)
        one.task = replace(one.task, excluded=one.task.excluded | {worker})
        self._say(one, f"lost on {worker} ({lost[-1].why}); to be tried again, on another runner if there is one", now)
        self._again(one, 0.0)

    def _again(self, one: Tracked, not_before: float) -> None:
        """The run has no thread now, and is looked at when its time has come."""
        one.active, one.worker, one.not_before = False, None, not_before
        self._look_at.add(one.id)
        self._changed.add(one.on)

    def _forget(self, one: Tracked) -> None:
        del self._tracked[one.id]
        self._look_at.discard(one.id)
        self._reasons.pop(one.id, None)
        self._changed.add(one.on)

    def _end(self, one: Tracked, error: FarmError) -> None:
        note_error(self.journal, one.id, error)
        finish(self.journal, one.id, error)
        self._forget(one)


def _speed(workers: list[Worker], name: str) -> float:
    return next(worker.speed for worker in workers if worker.name == name)
