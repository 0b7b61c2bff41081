"""The client's manners: conditional requests, rate limits, retries, redirects. Against the fake in
fake.py.
"""

import json
from datetime import timedelta

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.engines.github_api import GithubApi
from tests.integration.github.conftest import BUILDER
from tests.integration.github.fake import TOKEN


def test_a_storage_that_refuses_is_named(fake, api):
    run = fake.new_run("build-plan.yml", {})
    fake.finish(run, log=b"log")
    fake.expired_links = 1
    with pytest.raises(InfrastructureError, match="storage answers 403"):
        list(api.log(run * 10))


def test_polling_is_conditional(fake, api):
    run = fake.new_run("build-plan.yml", {})
    first = api.run(run)
    assert api.run(run) == first
    tags = [
        headers.get("if-none-match")
        for method, path, headers in fake.requests
        if path.endswith(f"/runs/{run}")
    ]
    assert tags[0] is None
    assert tags[1]
    fake.take(run, "k40")
    assert api.run(run).status == "in_progress"


def test_the_api_version_is_named_and_the_token_stays_with_the_api(fake, api):
    run = fake.new_run("build-plan.yml", {})
    fake.finish(run, log=b"log")
    assert b"".join(api.log(run * 10)) == b"log"
    by_path = {path: headers for _, path, headers in fake.requests}
    stored = [headers for path, headers in by_path.items() if path.startswith("/storage/")]
    assert len(stored) == 1
    assert "authorization" not in stored[0]


@pytest.mark.parametrize("fault", [(500, {}, b""), (502, {}, b"<html>"), ("hang up", {}, b"")])
def test_reads_are_tried_again_with_growing_waits(fake, api, clock, fault):
    fake.add_runner("a", BUILDER)
    fake.faults["GET /runners"] = [fault] * 3
    assert [runner.name for runner in api.runners()] == ["a"]
    assert clock.slept == [1.0, 2.0, 4.0]


def test_reads_are_not_tried_for_ever(fake, api, clock):
    fake.faults["GET /runners"] = [(500, {}, b"")] * 99
    with pytest.raises(InfrastructureError, match=r"does not answer .*/runners: status 500"):
        api.runners()
    assert len(fake.sent("GET", "/runners")) == 5


def test_retry_after_comes_first(fake, api, clock):
    fake.faults["GET /runners"] = [(429, {"retry-after": "17", "x-ratelimit-remaining": "0"}, b"")]
    api.runners()
    assert clock.slept == [17.0]


def test_a_used_up_limit_waits_for_its_reset_by_githubs_clock(fake, api, clock):
    fake.skew = timedelta(hours=5)
    reset = str(int(fake.now().timestamp()) + 100)
    fake.faults["GET /runners"] = [
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}, b"")
    ]
    api.runners()
    assert len(clock.slept) == 1
    assert (
        1 < clock.slept[0] <= 102
    )  # what has gone since is less; by this machine's clock it were five hours


def test_an_hour_is_not_waited_for_but_said(fake, api, clock):
    fake.faults["GET /runners"] = [(403, {"retry-after": "3600"}, b"")]
    with pytest.raises(InfrastructureError, match="lifts in 60 minutes"):
        api.runners()
    assert clock.slept == []


def test_writes_keep_a_time_between_them(fake, api, clock):
    run = fake.new_run("build-plan.yml", {})
    api.cancel(run)
    assert clock.slept == []
    api.cancel(run)
    assert 0 < clock.slept[0] <= 1.0


def test_a_next_page_elsewhere_is_not_followed(fake, api):
    fake.faults["GET /runners"] = [
        (
            200,
            {"link": '<https://example.invalid/x>; rel="next"'},
            b'{"total_count": 0, "runners": []}',
        )
    ]
    with pytest.raises(InfrastructureError, match="elsewhere than its API"):
        api.runners()


def test_another_repository_is_said_to_be_missing(fake, clock):
    api = GithubApi(fake.url, "owner/other", TOKEN, sleep=clock)
    with pytest.raises(
        UsageError,
        match="GitHub has no /repos/owner/other/actions/runners, or the token may not see",
    ):
        api.runners()
    api.close()


def test_hostile_error_messages_are_made_plain(fake, api):
    body = json.dumps({"message": "no\x1b[31m\nway" + "x" * 9999}).encode()
    fake.faults["GET /runners"] = [(422, {}, body)]
    with pytest.raises(UsageError) as caught:
        api.runners()
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
