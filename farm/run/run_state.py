"""Where a run is, why it is there, and how far its build is: read from the journal."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from farm.base.errors import ExitCode
from farm.engines.base import FINAL
from farm.run.journal import Journal
from farm.run.journal_records import Attempt, Event, EventKind, Run
from farm.run.run_owner import NOBODY, is_dead


class Phase(StrEnum):
    """Where a run is."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"
    """The build has ended; repair, verify, publish or smoke are under way."""
    SUCCEEDED = "success"
    FAILED = "failure"
    INFRASTRUCTURE = "infra"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.INFRASTRUCTURE, Phase.CANCELLED)


class Reason(StrEnum):
    """Why a run is where it is; the value is the sentence for people."""

    NO_DISPATCHER = "no dispatcher is running: `farm dispatch` continues it"
    CONTROLLER_DEAD = "its controller is dead: the same `farm submit` continues it"
    NOT_SCHEDULED = "the dispatcher has not looked at it yet"
    PREPARING = "being prepared"
    AFTER_BUILD = "the build has ended; the steps after it are under way"
    SCHEDULER = "waiting for a runner"
    ENGINE = "waiting for the engine"
    ERROR = "it failed"
    CANCELLED = "cancelled by `farm cancel`"
    INTERRUPTED = (
        "interrupted (Ctrl-C, SIGTERM or a closed terminal): the same `farm submit` starts it again"
    )


@dataclass(frozen=True)
class RunState:
    """`attempts`: all, oldest first; `build`: the newest of it; `detail`: words of scheduler,
    engine or error.
    """

    phase: Phase
    reason: Reason | None = None
    detail: str | None = None
    attempts: tuple[Attempt, ...] = ()
    build: Attempt | None = None

    @property
    def last(self) -> Attempt | None:
        """The newest attempt."""
        return _last(self.attempts)

    @property
    def abandoned(self) -> bool:
        """No one carries the run out, and no one will by himself."""
        return self.reason in (Reason.NO_DISPATCHER, Reason.CONTROLLER_DEAD)

    @property
    def text(self) -> str | None:
        """One sentence that explains a wait or a failure; None where there is nothing to
        explain.
        """
        if self.detail:
            return self.detail
        if self.reason is None:
            return None
        return str(self.reason)


def _last(attempts: Sequence[Attempt]) -> Attempt | None:
    if not attempts:
        return None
    return attempts[-1]


def state_of(journal: Journal, run: Run) -> RunState:
    """The state of a run now."""
    attempts: list[Attempt] = []
    builds: list[Attempt] = []
    for job in journal.jobs(run.id):
        attempts += job.attempts
        if job.kind == "build":
            builds += job.attempts
    if run.finished is None:
        state = _open(journal, run, attempts)
    else:
        state = _ended(journal, run)
    # The owner's death overrules the last state that it wrote, which may be a `running` of last
    # week.
    if run.finished is None and run.owner != NOBODY and is_dead(run.owner):
        reason = Reason.CONTROLLER_DEAD
        if run.request.detached:
            reason = Reason.NO_DISPATCHER
        state = RunState(state.phase, reason)
    return replace(state, attempts=tuple(attempts), build=_last(builds))


def _ended(journal: Journal, run: Run) -> RunState:
    if run.result == "success":
        return RunState(Phase.SUCCEEDED)
    reason = None
    detail = None
    error = journal.happened(run.id, EventKind.ERROR)
    if error:
        reason = Reason.ERROR
        detail = str(error.data["text"])
    if run.exit_code == ExitCode.INTERRUPTED:
        reason = Reason.INTERRUPTED
        if journal.happened(run.id, EventKind.CANCEL):
            reason = Reason.CANCELLED
        return RunState(Phase.CANCELLED, reason, detail)
    if run.result == "failure":
        return RunState(Phase.FAILED, reason, detail)
    return RunState(Phase.INFRASTRUCTURE, reason, detail)


def _open(journal: Journal, run: Run, attempts: Sequence[Attempt]) -> RunState:
    # The attempt comes first: a reason of the scheduler from before its start explains nothing any
    # more.
    last = _last(attempts)
    if last is not None and last.state not in FINAL:
        reason = None
        if last.why:
            reason = Reason.ENGINE
        return RunState(Phase(last.state), reason, last.why)
    waits = journal.happened(run.id, EventKind.WAITING)
    moved = journal.happened(run.id, EventKind.STATE)
    if last is not None and last.state == "done":
        # What the scheduler gave as a reason before the build is over; after it, it is why a later
        # step is tried again.
        if waits is not None and moved is not None and waits.id > moved.id:
            return RunState(Phase.FINISHING, Reason.SCHEDULER, str(waits.data["why"]))
        return RunState(Phase.FINISHING, Reason.AFTER_BUILD)
    begun = journal.happened(run.id, EventKind.BEGUN)
    if begun is not None and (waits is None or begun.id > waits.id):
        return RunState(Phase.QUEUED, Reason.PREPARING)  # sources and image, which may take long
    if waits is not None:
        return RunState(Phase.QUEUED, Reason.SCHEDULER, str(waits.data["why"]))
    if run.request.detached:
        return RunState(Phase.QUEUED, Reason.NOT_SCHEDULED)
    return RunState(Phase.QUEUED, Reason.PREPARING)


EVERY_S = 10.0  # a build notes its progress at most this often
WINDOW = 30  # events that the rate is taken from: five minutes


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps; steps a minute and minutes left, None while they are unknown."""

    done: int
    total: int
    rate: float | None
    minutes_left: float | None

    def __str__(self) -> str:
        text = f"{self.done}/{self.total} steps"
        if self.rate is None:
            return text
        if self.minutes_left is None:
            remaining = ""
        else:
            remaining = f", about {self.minutes_left:.0f} min left"
        return f"{text}, {self.rate:.1f} a minute{remaining}"


def progress(events: Iterable[Event]) -> Progress | None:
    """The progress of the newest attempt that noted any; a total that changes begins a new
    count.
    """
    events_of_progress = [event for event in events if event.kind == EventKind.PROGRESS]
    if not events_of_progress:
        return None
    last = events_of_progress[-1]
    done = int(last.data["done"])
    total = int(last.data["total"])
    count = []
    for event in events_of_progress:
        if event.attempt_id == last.attempt_id and event.data["total"] == total:
            count.append(event)
    first = count[-WINDOW:][0]
    took = datetime.fromisoformat(last.time) - datetime.fromisoformat(first.time)
    seconds = took.total_seconds()
    steps = done - int(first.data["done"])
    # No rate from two events of one moment, from a clock that was set back, or where nothing went
    # on.
    if seconds <= 0 or steps <= 0:
        return Progress(done, total, None, None)
    rate = steps / seconds * 60
    return Progress(done, total, rate, (total - done) / rate)
