"""The build job: its limits, its source, its output and what its end means."""

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError
from farm.engines.base import Capacity, Cause, Observation
from farm.run.build_job import NINJA, completed, follow, judge, kept, log_end, make_job, the_wheel
from farm.run.workspace import Outcomes, Watcher
from tests.plans import plan_of


@pytest.fixture
def plan():
    return plan_of("sm35-avx-py311", "canary")


class Recorder(Watcher):
    def __init__(self):
        self.lines, self.done = [], []

    def line(self, text):
        self.lines.append(text)

    def progress(self, done, total):
        self.done.append((done, total))


# --- job ---


@pytest.mark.parametrize(
    ("cpus", "memory", "per_job", "jobs"),
    [
        (8, 64e9, 2.2, "8"),
        (8, 10e9, 2.2, "4"),
        (2, 1e9, 2.2, "1"),
        (0.5, 64e9, 1.0, "1"),
        (3.9, 64e9, 1.0, "3"),
        (64, 8.8e9, 2.2, "4"),
    ],
)
def test_the_number_of_compilers_fits_cpus_and_memory(plan, tmp_path, cpus, memory, per_job, jobs):
    plan = plan.model_copy(update={"memory_per_job_gb": per_job, "timeout_minutes": 15})
    capacity = Capacity(cpus=cpus, memory=int(memory))
    inputs = {"/farm/job": tmp_path / "c", "/farm/source": tmp_path / "s"}
    job = make_job(
        plan,
        image="i",
        inputs=inputs,
        capacity=capacity,
        labels={"a": "b"},
        volumes=kept(plan, "mine"),
    )
    assert job.environment == {"FARM_JOBS": jobs}
    assert job.timeout_s == 900
    assert job.inputs == inputs
    assert job.volumes == {"/farm/src": f"farm-tree-{plan.digest[:24]}"}
    assert (job.name, job.output, job.limits, job.labels) == (
        "canary-sm35-avx-py311",
        "/farm/out",
        capacity,
        {"a": "b"},
    )


def test_a_compiler_cache_is_one_package_s_of_one_project(plan):
    """What a build writes into its cache, no build of another package finds."""
    compiled = plan.model_copy(update={"apt": ["ccache", *plan.apt]})
    other = compiled.model_copy(update={"package": "other"})
    found = [
        kept(each, project)["/farm/ccache"] for each in (compiled, other) for project in ("a", "b")
    ]
    assert len(set(found)) == 4
    assert "/farm/ccache" not in kept(plan, "a")


# --- output ---


class Engine:
    """A real log and a real end, without a container: what `follow` sees of an engine."""

    name, poll_s = "played", 0.01

    def __init__(self, pieces, *seen):
        self.pieces, self.seen = pieces, list(seen) or [Observation("done", exit_code=0)]

    def logs(self, handle, since=0):
        assert (handle, since) == ("h", 0)
        yield from self.pieces

    def observe(self, handle):
        assert handle == "h"
        return self.seen.pop(0) if len(self.seen) > 1 else self.seen[0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_whole_wherever_the_pieces_end(tmp_path, size):
    text = "[1/12] cc ünïcode.o\n\n\x1b[32m[2/12] cc\x1b[0m\r[12/12] link\nno end"
    data = text.encode()
    recorder = Recorder()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    follow(Engine(pieces), "h", tmp_path / "sub" / "build.log", recorder)
    assert recorder.lines == ["[1/12] cc ünïcode.o", "", "[12/12] link", "no end"]
    assert recorder.done == [(1, 12), (12, 12)]
    assert (tmp_path / "sub" / "build.log").read_bytes() == data


def test_a_line_without_an_end_stays_bounded(tmp_path):
    recorder = Recorder()
    follow(
        Engine([b"begin"] + [b"x" * 50_000] * 40 + [b"\nnext\n", b"\xff\xfe\n"]),
        "h",
        tmp_path / "log",
        recorder,
    )
    assert [len(line) for line in recorder.lines] == [2004, 4, 2]
    assert recorder.lines[0].startswith("xxx")  # only the end of it is kept in memory
    assert recorder.lines[1:] == ["next", "��"]
    assert (tmp_path / "log").stat().st_size == 2_000_000 + 14


def test_following_a_job_waits_for_its_end(tmp_path):
    end = Observation("done", exit_code=3)
    running = Observation("running")
    assert follow(Engine([], running, running, end), "h", tmp_path / "log", Watcher()) is end


def test_the_state_of_a_waiting_job_is_reported_until_it_runs(tmp_path):
    seen = [
        Observation("queued", why="no slot"),
        Observation("starting", why="pulls"),
        Observation("running"),
    ]
    end, reports = Observation("done", exit_code=0), []
    assert (
        follow(Engine([b"x"], *seen, end), "h", tmp_path / "log", Watcher(), saw=reports.append)
        is end
    )
    assert reports == seen


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[1/2] x", ("1", "2")),
        ("[123456/999999] x", ("123456", "999999")),
        ("[1234567/9999999] x", None),
        (" [1/2] x", None),
        ("[ 50%] x", None),
        ("[1/2", None),
        ("[-1/2]", None),
        ("[\u0661/\u0662]", None),
    ],
)
def test_progress_of_ninja(line, expected):
    match = NINJA.match(line)
    assert (match and match.groups()) == expected


# --- end ---


def log_of(tmp_path, text):
    path = tmp_path / "build.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_only_the_end_of_a_huge_log_is_read(tmp_path):
    huge = b"FAILED: long ago\n" + b"y" * (1 << 20) + b"\nlast \x1b[31mline\x1b[0m\n"
    assert log_end(log_of(tmp_path, huge))[-1] == "last line"
    assert not any("long ago" in line for line in log_end(tmp_path / "build.log"))
    assert log_end(log_of(tmp_path, "")) == []


def test_what_the_end_of_a_build_means(tmp_path):
    log = log_of(tmp_path, "FAILED: a.o\nerror: b\n")
    judge(Observation("done", exit_code=0), log)
    with pytest.raises(BuildFailedError) as caught:
        judge(Observation("done", cause=Cause.OUT_OF_MEMORY, exit_code=137), log)
    assert str(caught.value) == (
        "the build failed with exit code 137 (out of memory: killed at its memory limit):\n    "
        "error: b"
    )
    assert str(log) in caught.value.hint
    assert "memory_per_job_gb" in caught.value.hint
    with pytest.raises(InfrastructureError, match="the build was killed from outside") as killed:
        judge(Observation("done", cause=Cause.KILLED, exit_code=137), log)
    assert "continues" in killed.value.hint
    for state in ("lost", "cancelled"):
        with pytest.raises(InfrastructureError, match=f"the build was {state}: gone"):
            judge(Observation(state, why="gone"), log)


def test_one_wheel_is_expected(tmp_path):
    with pytest.raises(BuildFailedError, match="left 0 wheels"):
        the_wheel(tmp_path)
    (tmp_path / "a.whl").touch()
    assert the_wheel(tmp_path).name == "a.whl"
    (tmp_path / "b.whl").touch()
    with pytest.raises(BuildFailedError, match="left 2 wheels"):
        the_wheel(tmp_path)


# --- what is left of a run ---


def test_steps_are_kept_in_order_with_their_outcomes():
    outcomes, shown = Outcomes(run="r1"), []
    watcher = Recorder()
    watcher.step = shown.append
    with outcomes.timed("repair", watcher) as step:
        step.result = "added nothing"
    with outcomes.timed("install", watcher) as step:
        step.outcome = "not run"
    with pytest.raises(ValueError, match="x"), outcomes.timed("verify", watcher):
        raise ValueError("x")
    assert shown == ["repair", "install", "verify"]
    data = outcomes.to_json()
    assert [(s["step"], s["outcome"], s["result"]) for s in data["steps"]] == [
        ("repair", "done", "added nothing"),
        ("install", "not run", ""),
        ("verify", "failed", ""),
    ]
    assert all(s["seconds"] >= 0 for s in data["steps"])
    assert (data["run"], data["wheel"], data["pip"]) == ("r1", None, None)


def test_the_lines_of_a_short_job_are_passed_on_while_it_runs():
    """Packing a toolchain takes twelve minutes, which printed nothing."""
    lines = []

    class Engine:
        def submit(self, _job):
            return "job"

        def logs(self, _handle):
            yield b"100 MB pac"
            yield b"ked\n200 MB packed\nre"
            assert lines == ["100 MB packed", "200 MB packed"]
            yield b"st"

        def observe(self, _handle):
            return Observation("done", exit_code=0)

        def release(self, _handle):
            pass

    with completed(Engine(), None, lines.append) as (_, log, _observed):
        assert log == b"100 MB packed\n200 MB packed\nrest"
