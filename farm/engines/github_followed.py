"""States of the runs at GitHub, requested together.

A call for each of 400 runs each time would use up GitHub's limits (5,000 requests an hour; GitHub Docs, "Rate limits
for the REST API"). One list of the workflow's runs says which have moved on; the jobs of a run are asked for when its
status has changed.
"""

import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import PurePosixPath

from farm.engines.github_api import GithubApi
from farm.engines.github_models import Listed, Run, RunJob

EACH_S = 0.1
"""Seconds by which the time between two lists grows with each run that is followed: 400 runs, 40 s."""
JOBS_AGAIN = 60
"""After so many lists the jobs of a run are asked for again although its status is the same: which step it is at."""


class Followed:
    """See the module. Its methods may be called by many threads; all raise as `GithubApi` does."""

    def __init__(self, api: GithubApi, poll_s: float, clock: Callable[[], float]) -> None:
        self._api, self._poll_s, self._clock = api, poll_s, clock
        self._lock = threading.RLock()
        self._runs: dict[int, Run] = {}
        self._listed_at = float("-inf")
        self._jobs: dict[int, tuple[str | None, float, list[RunJob]]] = {}
        self._runners: tuple[float, list[Listed]] = (float("-inf"), [])

    @property
    def _period_s(self) -> float:
        return max(self._poll_s, EACH_S * len(self._runs)) if self._poll_s else 0.0

    def run(self, run_id: int) -> Run | None:
        """A run as the last list has it; None where GitHub has none."""
        with self._lock:
            if run_id not in self._runs:
                return self._asked(run_id)
            if self._clock() - self._listed_at >= self._period_s:
                self._list()
            found = self._runs.get(run_id)
            if found is None:  # not in the list any more: deleted, or moved behind what a list shows
                return self._asked(run_id)
            if found.status == "completed":
                self._forget(run_id)
            return found

    def forget_all(self) -> None:
        """Forget the states: the next question is requested anew."""
        with self._lock:
            self._listed_at = float("-inf")
            self._runners = (float("-inf"), [])

    def _asked(self, run_id: int) -> Run | None:
        found = self._api.run(run_id)
        # A run that has ended is followed no more: it would make the list longer for ever.
        if found is not None and found.status != "completed":
            self._runs[run_id] = found
        else:
            self._forget(run_id)
        return found

    def _list(self) -> None:
        since: dict[str, datetime] = {}
        for run in self._runs.values():
            workflow = PurePosixPath(run.path.partition("@")[0]).name
            # One list a workflow, as far back as the oldest run that is followed.
            since[workflow] = min(run.created_at, since.get(workflow, run.created_at))
        listed: dict[int, Run] = {}
        for workflow, when in since.items():
            if workflow:
                listed |= {run.id: run for run in self._api.dispatched_runs(workflow, when)}
        self._runs = {run_id: listed[run_id] for run_id in self._runs if run_id in listed}
        self._listed_at = self._clock()

    def _forget(self, run_id: int) -> None:
        self._runs.pop(run_id, None)
        self._jobs.pop(run_id, None)

    def jobs(self, run: Run) -> list[RunJob]:
        """The jobs of a run; those of its present status."""
        with self._lock:
            known = self._jobs.get(run.id)
            # Of a run under way the jobs change little: they cost a request each, the list of runs one for all.
            if known and known[0] == run.status and self._clock() - known[1] < JOBS_AGAIN * self._period_s:
                return known[2]
            jobs = self._api.jobs(run.id)
            self._jobs[run.id] = (run.status, self._clock(), jobs)
            return jobs

    def runners(self) -> list[Listed]:
        """The repository's runners."""
        with self._lock:
            when, listed = self._runners
            if self._clock() - when >= self._period_s:
                listed = self._api.runners()
                self._runners = (self._clock(), listed)
            return listed
