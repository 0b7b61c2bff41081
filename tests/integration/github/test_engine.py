"""The github engine against the fake of GitHub in fake.py (a fake: nothing here ran on GitHub)."""

import json
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from farm.base.errors import InfrastructureError, NoRunnerError, UsageError
from farm.engines.base import Capacity, Cause
from farm.engines.github import GithubEngine
from farm.engines.github_api import GithubApi, connect
from farm.engines.transfer import RefusedOutputError
from farm.plan.file import Plan
from farm.plan.render import render
from farm.plan.settings import load_github
from farm.run.build_job import make_job
from tests.integration.github.conftest import BUILDER, K40, ROOT
from tests.integration.github.fake import REPOSITORY, TOKEN


@pytest.fixture
def builder(fake):
    fake.add_runner("linux-build", BUILDER)


def only_run(fake):
    assert len(fake.runs) == 1
    return next(iter(fake.runs))


def test_a_build_from_dispatch_to_wheel(fake, engine, clock, job, plan, builder, tmp_path):
    handle = engine.submit(job())
    run = only_run(fake)
    assert handle == str(run)
    inputs = fake.inputs[run]
    assert json.loads(inputs["plan"])["digest"] == plan.digest
    assert json.loads(inputs["labels"]) == ["self-hosted", "linux", "x64", "farm-build"]
    assert inputs["timeout_minutes"] == "70"  # the plan's ten, and an hour for the image
    assert inputs["submission_id"] in fake.runs[run]["display_title"].split()

    assert engine.observe(handle).state == "queued"
    assert (
        "has not given it to a runner yet; queued for 0.0 of the 24 hours"
        in engine.observe(handle).why
    )
    fake.take(run, "linux-build")
    seen = engine.observe(handle)
    assert (seen.state, seen.why) == ("running", "on linux-build: Do the job")

    clock.due = [lambda: None, lambda: fake.finish(run, log=b"line 1\nline 2\n")]
    assert b"".join(engine.logs(handle)) == b"line 1\nline 2\n"
    assert b"".join(engine.logs(handle, since=7)) == b"line 2\n"
    assert (engine.observe(handle).state, engine.observe(handle).exit_code) == ("done", 0)

    fake.leave(run, {"wheel/a.whl": b"wheel", "lib/x.so": b"library"})
    files = engine.collect(handle, tmp_path / "built", 1 << 20)
    assert sorted(str(f.relative_to(tmp_path / "built")) for f in files) == [
        "lib/x.so",
        "wheel/a.whl",
    ]
    assert (tmp_path / "built" / "wheel" / "a.whl").read_bytes() == b"wheel"
    engine.release(handle)
    engine.release(handle)
    assert fake.artifacts[run] == []
    assert len(fake.sent("POST", "/dispatches")) == 1


# -- is there a runner? --


def test_no_runner_has_the_labels(fake, engine, job):
    fake.add_runner("k40", K40)
    with pytest.raises(
        NoRunnerError,
        match="no runner of owner/farm has the labels self-hosted, linux, x64, farm-b",
    ):
        engine.submit(job())
    assert not fake.sent("POST", "")


def test_every_runner_with_the_labels_is_offline(fake, engine, job):
    fake.add_runner("one", BUILDER, online=False)
    fake.add_runner("two\x1b[31m", BUILDER, online=False)
    fake.add_runner("k40", K40)
    with pytest.raises(NoRunnerError, match=r"is offline: one, two$") as caught:
        engine.submit(job())
    assert "24 hours" in caught.value.hint
    assert not fake.sent("POST", "")


def test_why_a_job_waits(fake, engine, job, builder):
    handle = engine.submit(job())
    run = only_run(fake)
    fake.runners[0]["busy"] = True
    assert engine.observe(handle).why.startswith("busy: linux-build;")
    fake.runners[0]["status"] = "offline"
    assert "is offline: linux-build" in engine.observe(handle).why
    fake.runners.clear()  # a runner that vanishes
    assert "no runner of owner/farm has the labels" in engine.observe(handle).why
    fake.scopes.discard("admin")
    assert "why is not known, since the runners cannot be listed" in engine.observe(handle).why
    fake.runs[run]["status"] = "waiting"
    assert "waits for a reviewer" in engine.observe(handle).why
    fake.runs[run]["status"] = "pending"
    assert "concurrency group" in engine.observe(handle).why


# -- a dispatch is never repeated blindly --


def took_effect(then):
    """The fault: GitHub starts the run, and its answer is lost."""

    def fault(fake, body):
        fake.new_run("build-plan.yml", json.loads(body)["inputs"])
        return then

    return fault


@pytest.mark.parametrize("then", [(502, {}, b""), (500, {}, b"<html>"), ("hang up", {}, b"")])
def test_a_dispatch_whose_answer_was_lost_is_found_by_its_id(fake, engine, job, builder, then):
    fake.faults["POST /dispatches"] = [took_effect(then)]
    handle = engine.submit(job())
    assert handle == str(only_run(fake))
    assert len(fake.sent("POST", "/dispatches")) == 1


def test_the_run_of_a_lost_answer_may_appear_late(fake, engine, clock, job, builder):
    def lost(fake, body):
        clock.due = [
            lambda: None,
            lambda: fake.new_run("build-plan.yml", json.loads(body)["inputs"]),
        ]
        return 502, {}, b""

    fake.faults["POST /dispatches"] = [lost]
    assert engine.submit(job()) == str(only_run(fake))
    assert clock.slept[-2:] == [1.0, 2.0]


def test_a_dispatch_that_never_took_effect_is_an_error_and_no_second_dispatch(
    fake, engine, clock, job, builder
):
    fake.faults["POST /dispatches"] = [(503, {}, b"")]
    with pytest.raises(
        InfrastructureError,
        match=r"answered 503 .* no run farm-.* has appeared since, but it still may",
    ):
        engine.submit(job())
    assert len(fake.sent("POST", "/dispatches")) == 1
    assert sum(clock.slept) >= 60


def test_an_answer_without_an_id_is_looked_for(fake, engine, job, builder):
    """As API version 2022-11-28 answers: 204 without a body."""
    fake.faults["POST /dispatches"] = [took_effect((204, {}, b""))]
    assert engine.submit(job()) == str(only_run(fake))


def test_a_rate_limited_dispatch_was_not_done_and_is_sent_again(fake, engine, clock, job, builder):
    body = json.dumps({"message": "You have exceeded a secondary rate limit."}).encode()
    fake.faults["POST /dispatches"] = [
        (403, {"retry-after": "30"}, body),
        (429, {}, b""),
        (403, {}, body),
    ]
    assert engine.submit(job()) == str(only_run(fake))
    assert [s for s in clock.slept if s >= 30] == [30.0, 60.0, 60.0]


# -- a restarted controller --


def test_a_restarted_controller_resumes_the_handle(fake, engine, job, builder, clock):
    handle = engine.submit(job())
    fake.take(int(handle), "linux-build")
    with closing(GithubApi(fake.url, REPOSITORY, TOKEN, sleep=clock)) as api:
        again = GithubEngine(api, load_github(ROOT), Capacity(1, 1), sleep=clock)
        assert again.observe(handle).state == "running"
        fake.finish(int(handle), log=b"all\n")
        assert b"".join(again.logs(handle)) == b"all\n"


def test_a_controller_that_died_before_it_noted_the_handle_takes_the_run_up(
    fake, engine, job, builder
):
    handle = engine.submit(job())
    assert engine.submit(job()) == handle  # the same run of the farm, the same plan
    assert len(fake.runs) == 1
    assert engine.submit(job(run="20261121-2")) != handle  # another run of the farm
    fake.finish(int(handle), "failure")
    assert engine.submit(job()) not in {handle}  # what has ended is not taken up: it is done again
    assert len(fake.runs) == 3


def test_what_the_engine_does_not_know_is_lost(engine):
    assert engine.observe("77").state == "lost"
    assert engine.observe("a-container-id").state == "lost"
    engine.cancel("77")
    engine.release("77")
    assert list(engine.logs("77")) == []


# -- how a run ends --


@pytest.mark.parametrize(
    ("conclusion", "step", "log", "state", "code", "why"),
    [
        (
            "failure",
            "Do the job",
            b"##[error]Process completed with exit code 5.\n",
            "done",
            5,
            "exit code 5",
        ),
        ("failure", "Do the job", b"no note of the runner\n", "done", 1, "exit code 1"),
        (
            "failure",
            "Do the job",
            b"##[error]Process completed with exit code 9.\n",
            "lost",
            None,
            "exit code 9",
        ),
        (
            "failure",
            "Do the job",
            b"##[error]Process completed with exit code 4.\n",
            "lost",
            None,
            "exit code 4",
        ),
        (
            "failure",
            "Run actions/checkout",
            b"",
            "lost",
            None,
            "step 'Run actions/checkout' failed on linux-build",
        ),
        ("failure", None, b"", "lost", None, "linux-build was lost at step 'Do the job'"),
        ("timed_out", "Do the job", b"", "done", 124, "time limit"),
        ("cancelled", "Do the job", b"", "cancelled", None, "cancelled at GitHub"),
        ("stale", "Do the job", b"", "lost", None, "ended it as stale"),
    ],
)
def test_results(fake, engine, job, builder, conclusion, step, log, state, code, why):
    handle = engine.submit(job())
    fake.take(int(handle), "linux-build")
    job_conclusion = conclusion if conclusion != "stale" else "neutral"
    fake.finish(int(handle), job_conclusion, log, step=step)
    fake.runs[int(handle)]["conclusion"] = conclusion
    seen = engine.observe(handle)
    assert (seen.state, seen.exit_code) == (state, code)
    assert why in seen.text


def test_a_job_that_github_dropped_from_the_queue_is_lost(fake, engine, job, builder):
    handle = engine.submit(job())
    fake.finish(int(handle), "cancelled")
    fake.jobs[int(handle)][0] |= {
        "runner_name": None,
        "created_at": "2026-11-20T00:00:00Z",
        "completed_at": "2026-11-21T00:00:01Z",
    }
    assert engine.observe(handle).state == "lost"
    assert "24 hours" in engine.observe(handle).why


@pytest.mark.parametrize(
    ("labels", "title", "minutes", "state"),
    [
        (["self-hosted"], "farm farm-1 build, at most 75 minutes", 75, "done"),
        (["self-hosted"], "farm farm-1 build, at most 75 minutes", 40, "cancelled"),
        (["ubuntu-24.04"], "farm farm-1 build", 360, "done"),
        (["self-hosted"], "farm farm-1 build", 360, "cancelled"),
        (["self-hosted"], "farm farm-1 build", 5 * 24 * 60, "done"),
    ],
)
def test_a_time_limit_of_github_is_distinguished_from_a_cancel(
    fake, engine, job, builder, labels, title, minutes, state
):
    """GitHub records both as `cancelled`: a build at its limit was taken for a person's cancel."""
    handle = engine.submit(job())
    fake.take(int(handle), "linux-build")
    fake.finish(int(handle), "cancelled", step="Do the job")
    start = datetime(2026, 11, 20, tzinfo=UTC)
    fake.jobs[int(handle)][0] |= {
        "labels": labels,
        "started_at": start.isoformat(),
        "completed_at": (start + timedelta(minutes=minutes)).isoformat(),
    }
    fake.runs[int(handle)]["display_title"] = title
    seen = engine.observe(handle)
    assert seen.state == state
    assert seen.cause is (Cause.TIME_LIMIT if state == "done" else None)


def test_the_log_of_a_vanished_runner_is_said_to_be_missing(fake, engine, job, builder):
    handle = engine.submit(job())
    fake.take(int(handle), "linux-build")
    fake.finish(int(handle), "failure", step=None)
    assert b"GitHub has no /repos/owner/farm/actions/jobs/" in b"".join(engine.logs(handle))


# -- cancel --


def test_cancel_returns_when_the_run_has_ended(fake, engine, job, builder):
    handle = engine.submit(job())
    engine.cancel(handle)
    assert engine.observe(handle).state == "cancelled"
    engine.cancel(handle)
    assert len(fake.sent("POST", "/cancel")) == 1


def test_a_stubborn_run_is_cancelled_by_force(fake, engine, job, builder):
    handle = engine.submit(job())
    fake.runs[int(handle)]["stubborn"] = True
    engine.cancel(handle)
    assert fake.sent("POST", "/force-cancel")
    assert engine.observe(handle).state == "cancelled"


# -- what comes back is not trusted --


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:/evil", "a\\..\\evil"])
def test_an_artifact_cannot_write_outside(fake, engine, job, builder, tmp_path, name):
    handle = engine.submit(job())
    fake.finish(int(handle))
    fake.leave(int(handle), {name: b"x"})
    with pytest.raises(RefusedOutputError, match="not a plain file below its folder"):
        engine.collect(handle, tmp_path / "a" / "built", 1 << 20)
    assert not list(tmp_path.rglob("*evil*"))


def test_a_bomb_is_not_unpacked(fake, engine, job, builder, tmp_path):
    handle = engine.submit(job())
    fake.finish(int(handle))
    fake.leave(int(handle), {"big": bytes(10 << 20)})
    with pytest.raises(RefusedOutputError, match="larger than allowed"):
        engine.collect(handle, tmp_path / "built", 1 << 20)
    assert sum(f.stat().st_size for f in tmp_path.rglob("big")) <= 1 << 20


def test_an_artifact_with_another_digest_expired_or_absent(fake, engine, job, builder, tmp_path):
    handle = engine.submit(job())
    fake.finish(int(handle))
    with pytest.raises(InfrastructureError, match="has left no artifact farm-out"):
        engine.collect(handle, tmp_path / "a", 1 << 20)
    fake.leave(int(handle), {"x": b"x"}, expired=True)
    with pytest.raises(InfrastructureError, match="has expired"):
        engine.collect(handle, tmp_path / "b", 1 << 20)
    fake.leave(int(handle), {"x": b"x"}, digest="sha256:" + 64 * "0")
    with pytest.raises(InfrastructureError, match="does not match GitHub"):
        engine.collect(handle, tmp_path / "c", 1 << 20)
    fake.leave(int(handle), {"x": b"newest"})
    assert engine.collect(handle, tmp_path / "d", 1 << 20)[0].read_bytes() == b"newest"


def test_a_hostile_log_is_bounded_and_comes_as_it_is(fake, engine, job, builder, monkeypatch):
    """Terminal control is taken out where a log is shown (`farm.base.text.plain`); the archive
    keeps the bytes.
    """
    monkeypatch.setattr("farm.engines.github.MAX_LOG", 1 << 20)
    handle = engine.submit(job())
    fake.finish(int(handle), log=b"\x1b]0;owned\x07" + b"A" * (5 << 20))
    got = b"".join(engine.logs(handle))
    assert got.startswith(b"\x1b]0;owned\x07AAA")
    assert got.endswith(b"[the log is longer than the farm takes]\n")
    assert len(got) < (1 << 20) + 100


def test_the_job_that_the_pipeline_makes_is_taken(fake, engine, plan, builder, tmp_path):
    render(ROOT, plan).write(tmp_path / "context")
    source = tmp_path / "source"
    source.mkdir()
    made = make_job(
        plan,
        image="unused",
        inputs={"/farm/job": tmp_path / "context" / "job", "/farm/source": source},
        capacity=engine.capacity(),
        labels={"farm.run": "r", "farm.kind": "build"},
    )
    engine.submit(made)
    inputs = fake.inputs[only_run(fake)]
    carried = tmp_path / "carried.json"
    carried.write_text(inputs["plan"])  # as the workflow writes it
    assert (Plan.read(carried).digest, Plan.read(carried).to_json()) == (
        plan.digest,
        plan.to_json(),
    )
    assert int(inputs["timeout_minutes"]) == plan.timeout_minutes + 60


def test_a_job_without_a_plan_is_refused(fake, engine, job, builder):
    with pytest.raises(UsageError, match="this job has none"):
        engine.submit(replace(job(), inputs={}))
    assert fake.requests == []


# -- tokens --


def test_no_token_and_no_repository(fake):
    with pytest.raises(UsageError, match="no usable token") as caught:
        connect(fake.url, REPOSITORY, {})
    assert "FARM_GITHUB_TOKEN" in caught.value.hint
    with pytest.raises(UsageError, match=r"github\.repository is not set"):
        connect(fake.url, None, {"FARM_GITHUB_TOKEN": TOKEN})
    with pytest.raises(UsageError, match="no usable token"):
        connect(fake.url, REPOSITORY, {"FARM_GITHUB_TOKEN": "two\nlines"})


def test_a_clock_that_is_wrong_by_hours_changes_nothing(fake, engine, job, builder):
    fake.skew = timedelta(hours=-7)
    fake.faults["POST /dispatches"] = [took_effect((502, {}, b""))]
    assert engine.submit(job()) == str(only_run(fake))
