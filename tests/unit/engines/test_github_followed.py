"""GitHub's limits as a budget: what following hundreds of runs costs, counted on a clock that the test moves."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from farm.engines.github_followed import Followed
from farm.engines.github_models import Run

PER_HOUR, PER_MINUTE = 5000, 900
"""GitHub Docs, "Rate limits for the REST API": requests an hour of a user's token; points a minute, a GET is one."""
START = datetime(2026, 11, 22, tzinfo=UTC)
LENGTH = timedelta(minutes=90)


class Github:
    """Stands in for the API: runs that wait, run and end one after the other; counts requests, a page each."""

    def __init__(self, count):
        self.count, self.now, self.asked = count, 0.0, []

    def clock(self):
        return self.now

    def _cost(self, pages=1):
        self.asked += [self.now] * pages

    def _made(self, number):
        began = number * LENGTH.total_seconds() / self.count
        status = "queued" if self.now < began else "in_progress"
        if self.now > began + LENGTH.total_seconds():
            status = "completed"
        return Run(
            id=number, status=status, conclusion="success" if status == "completed" else None,
            created_at=START, path=".github/workflows/build-plan.yml",
        )  # fmt: skip

    def run(self, run_id):
        self._cost()
        return self._made(run_id) if run_id < self.count else None

    def dispatched_runs(self, workflow, _since):
        assert workflow == "build-plan.yml"
        self._cost(math.ceil(self.count / 100))
        return [self._made(number) for number in range(self.count)]

    def jobs(self, _run_id):
        self._cost()
        return []

    def runners(self):
        self._cost()
        return []


@pytest.mark.parametrize("count", [200, 400])
def test_following_many_runs_stays_under_half_of_each_limit(count):
    github = Github(count)
    followed = Followed(github, 15.0, github.clock)
    open_runs = set(range(count))
    while open_runs and github.now < 4 * 3600:
        for number in sorted(open_runs):
            run = followed.run(number)
            if run.status == "completed":
                open_runs.discard(number)
                continue
            followed.jobs(run)
            if run.status == "queued":
                followed.runners()
        github.now += 15.0
    assert not open_runs
    after = [when for when in github.asked if when > 60]  # the first look at each is a request of its own
    hours = [sum(at <= when < at + 3600 for when in after) for at in range(60, int(github.now), 600)]
    minutes = [sum(at <= when < at + 60 for when in github.asked) for at in range(0, int(github.now), 15)]
    print(f"{count} runs: {max(hours)} requests in the worst hour, {max(minutes)} in the worst minute")
    assert max(hours) < PER_HOUR / 2
    assert max(minutes) < max(PER_MINUTE / 2, 2 * count + 60)
    naive = count * 3 * 240  # run, jobs and runners of each, four times a minute
    assert max(hours) < naive / 50


def test_a_run_that_is_not_there_is_none_and_one_that_ends_is_seen():
    github = Github(1)
    followed = Followed(github, 15.0, github.clock)
    assert followed.run(7) is None
    assert followed.run(0).status == "in_progress"
    github.now = LENGTH.total_seconds() + 1
    assert followed.run(0).status == "completed"
