"""Slurm's queue, asked once for all jobs of the engine: sites ban users who ask for each of
them.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

LISTING_S = 20.0  # how long an answer serves all jobs
NEW_S = 2.0  # how long it serves a job that it does not hold yet
URGENT_S = 1.0  # how long it serves a job that is being cancelled


class JobKey(NamedTuple):
    """A job as the farm names it: the name of its array and its number in it."""

    array: str
    task: str


class SlurmQueue:
    """The newest answer of `squeue`, shared by the threads that follow jobs.

    `ask` gives the lines of squeue, `array|task|number|STATE|nodes|reason`; it may raise
    InfrastructureError.
    """

    def __init__(self, ask: Callable[[], list[str]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._rows: dict[JobKey, str] = {}
        self._begun = float("-inf")

    def row(self, job: JobKey, since: float, *, urgent: bool = False) -> str | None:
        """Return the line of a job, `number|STATE|nodes|reason`.

        `since`: when the job was submitted or first seen here, by `time.monotonic`; `urgent`: its
        end was asked for just now.

        Returns:
            An empty text where Slurm does not know the job; None where Slurm was not asked since
            the job is there.
        """
        with self._lock:
            age = time.monotonic() - self._begun
            if age >= self._serves_s(job, urgent=urgent):
                self._refresh()
            if job in self._rows:
                return self._rows[job]
            return "" if self._begun > since else None

    def _serves_s(self, job: JobKey, *, urgent: bool) -> float:
        """Seconds for which the newest answer is good enough for a job."""
        if urgent:
            return URGENT_S
        return LISTING_S if job in self._rows else NEW_S

    def _refresh(self) -> None:
        begun = time.monotonic()
        rows = {}
        for line in self._ask():
            array, task, row = line.split("|", 2)
            rows[JobKey(array, task)] = row
        self._rows = rows
        self._begun = begun
