"""GitHub's limits as a budget: what following hundreds of runs costs, counted on a clock that the test moves."""

import bisect
import hashlib
import json
import math
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from farm.engines.github import Followed
from farm.engines.github_api import GithubApi, Run

PER_HOUR, PER_MINUTE, WRITES_PER_MINUTE = 5000, 900, 80
"""GitHub Docs, "Rate limits for the REST API": requests an hour of a user's token; points a minute, a GET is one and a
POST five; requests a minute that create something."""
START = datetime(2026, 11, 22, tzinfo=UTC)
LENGTH = timedelta(minutes=45)


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


class Limits:
    """GitHub as one client meets it: its answers, ETags, latency and limits, on a clock that waiting moves."""

    def __init__(self, count, *, busy_at=None):
        self.github, self.asked, self.changed, self.refused = Github(count), [], [], []
        self.busy_at, self.quiet_until, self.made = busy_at, 0.0, {}

    def sleep(self, seconds):
        self.github.now += seconds

    def answer(self, request):
        self.github.now += 0.05
        now, path = self.github.now, request.url.path
        if now < self.quiet_until:
            self.refused.append(now)
        if self.busy_at is not None and now >= self.busy_at:
            self.busy_at, self.quiet_until = None, now + 90
            return httpx.Response(403, headers={"retry-after": "90"}, json={"message": "secondary rate limit"})
        if request.method == "POST":
            self.changed.append(now)
            number = len(self.changed) - 1
            return httpx.Response(200, json={"workflow_run_id": number, "run_url": "x", "html_url": "x"})
        data = self._data(path, request.url.params)
        etag = hashlib.sha256(data).hexdigest()
        same = request.headers.get("if-none-match") == etag
        self.asked.append((now, same))
        headers = {"etag": etag}
        page = int(request.url.params.get("page", 1))
        if path.endswith("/build-plan.yml/runs") and page * 100 < self.github.count:
            headers["link"] = f'<https://api/{path}?page={page + 1}>; rel="next"'.replace("api//", "api/")
        return httpx.Response(304, headers=headers) if same else httpx.Response(200, headers=headers, content=data)

    def _cuts(self):
        """(runs that have ended, runs that have begun): they begin one after the other and take as long."""
        each = LENGTH.total_seconds() / self.github.count
        begun, ended = (int((self.github.now - off) // each) + 1 for off in (0.0, LENGTH.total_seconds()))
        return max(0, min(ended, self.github.count)), min(begun, self.github.count)

    def _data(self, path, params):
        if path.endswith("/runners"):
            return b'{"total_count": 0, "runners": []}'
        ended, begun = self._cuts()
        key = (path, params.get("page"), ended, begun)
        if key not in self.made:
            self.made[key] = json.dumps(self._answer(path, params, ended, begun)).encode()
        return self.made[key]

    def _answer(self, path, params, ended, begun):
        def run(number):
            status = "completed" if number < ended else "in_progress" if number < begun else "queued"
            result = "success" if number < ended else None
            known = {"id": number, "status": status, "conclusion": result, "created_at": START.isoformat()}
            return known | {"path": ".github/workflows/build-plan.yml"}

        if path.endswith("/jobs"):
            return {"total_count": 0, "jobs": [], "of": [run(int(path.split("/")[-2]))["status"]]}
        if path.endswith("/runs"):
            first = (int(params.get("page", 1)) - 1) * 100
            runs = [run(number) for number in range(first, min(first + 100, self.github.count))]
            return {"total_count": self.github.count, "workflow_runs": runs}
        return run(int(path.rsplit("/", 1)[1]))

    def worst(self, times, window, cost=1):
        """The most that is spent in any window of so many seconds that begins with a request."""
        times = sorted(times)
        ends = [bisect.bisect_left(times, when + window) for when in times]
        return max((end - start for start, end in enumerate(ends)), default=0) * cost


@pytest.fixture
def limits(request):
    made = Limits(*request.param[:1], **dict(request.param[1:]))
    api = GithubApi("https://api", "owner/farm", "token", sleep=made.sleep, clock=made.github.clock)
    api._http = httpx.Client(transport=httpx.MockTransport(made.answer))
    yield made, api
    api.close()


def follow_all(limits, api):
    """Dispatches every run as the engine does, with two reads before each, then follows all until they end."""
    github = limits.github
    for _ in range(github.count):
        api.dispatched_runs("build-plan.yml", START)
        api.runners()
        api.dispatch("build-plan.yml", "main", {})
    github.now = 3600.0  # from here on the runs wait, run and end
    followed = Followed(api, 15.0, github.clock)
    open_runs = set(range(github.count))
    while open_runs and github.now < 5 * 3600:
        begun = github.now
        for number in sorted(open_runs):
            run = followed.run(number)
            if run.status == "completed":
                open_runs.discard(number)
                continue
            followed.jobs(run)
            if run.status == "queued":
                followed.runners()
        github.now = max(github.now, begun + 15.0)
    assert not open_runs


@pytest.mark.parametrize("limits", [(200,), (400,)], indirect=True, ids=["200", "400"])
def test_following_many_runs_stays_under_half_of_each_limit(limits):
    limits, api = limits
    follow_all(limits, api)
    reads, writes = [when for when, _ in limits.asked], limits.changed
    counted = [when for when, same in limits.asked if not same] + writes  # a 304 costs nothing of the hour
    points = limits.worst(reads + [when for when in writes for _ in range(5)], 60)
    hour, made = limits.worst(counted, 3600), limits.worst(writes, 60)
    print(
        f"{limits.github.count} runs: {hour} requests in the worst hour, {points} points and {made} writes in a minute"
    )
    assert hour < PER_HOUR / 2
    assert points < PER_MINUTE / 2
    assert made < WRITES_PER_MINUTE / 2


@pytest.mark.parametrize("limits", [(200, ("busy_at", 4000.0))], indirect=True, ids=["200"])
def test_a_limit_that_github_names_is_obeyed(limits):
    """A 403 with Retry-After: 90; not one request is sent in these seconds, by none of the 200 followed runs."""
    limits, api = limits
    follow_all(limits, api)
    assert limits.quiet_until > 4000
    assert limits.refused == []


def test_a_run_that_is_not_there_is_none_and_one_that_ends_is_seen():
    github = Github(1)
    followed = Followed(github, 15.0, github.clock)
    assert followed.run(7) is None
    assert followed.run(0).status == "in_progress"
    github.now = LENGTH.total_seconds() + 1
    assert followed.run(0).status == "completed"
