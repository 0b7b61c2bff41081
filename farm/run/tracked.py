"""What the dispatcher holds of one run that has not ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from farm.engines.admission import Task
from farm.run.journal import Attempt, OpenRun
from farm.run.needs import PRODUCT

FIELDS = (*PRODUCT, "machine", "base", "channel", "timeout_minutes", "needs")
"""What a decision needs of a plan; the plan itself is read when the run starts."""


@dataclass
class Tracked:
    """One run.

    Attributes:
        on: The name of its engine.
        worker: The runner that it was given; None: the step under way needs none.
        ends: When it is expected to end, as `time.time` counts.
        active: It has a thread.
        not_before: When it may be looked at again, as `time.time` counts.
        step_tries: How often a step that needs no runner was tried.
        losses: How many of its attempts were lost.
        reason, reason_at: Why it waits, as the journal has it, and since when.
    """

    id: str
    on: str
    task: Task
    worker: str | None = None
    ends: float = 0.0
    active: bool = False
    not_before: float = 0.0
    step_tries: int = 0
    losses: int = 0
    reason: str = ""
    reason_at: float = 0.0

    @classmethod
    def of(
        cls, run: OpenRun, labels: frozenset[str], lost: Sequence[Attempt], after: frozenset[str], minutes: float
    ) -> Self:
        """A run with `FIELDS` of its plan.

        Args:
            run: The run.
            labels: What its runner must carry.
            lost: Its attempts that were lost.
            after: The runs to wait for.
            minutes: How long its build is expected to take.
        """
        about = run.about
        task = Task(
            run.id,
            platform=about["platform"],
            machine=about["machine"],
            labels=labels,
            minutes=minutes,
            priority=run.request.priority,
            created=datetime.fromisoformat(run.created).timestamp(),
            cache_key=f"{about['base']} {about['channel']}",
            excluded=frozenset(attempt.runner for attempt in lost),
            after=after,
        )
        return cls(run.id, run.request.on, task, losses=len(lost))
