"""What every engine promises (farm.engines.base), run against each of them for real.

A new engine adds its name to ENGINES, a fixture `<name>_engine` and one for the image in `image`.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.engines.base import FINAL, Engine, Job, Observation
from farm.engines.docker import DockerEngine
from farm.engines.host import HostEngine
from farm.errors import InfrastructureError, UsageError

ENGINES = ["docker", "swarm", "host"]
FARM = "${FARM_ROOT:-/farm}"
"""Where a job finds its folders: the host engine has them elsewhere."""
Start = Callable[..., str]


@pytest.fixture
def docker_engine(client):
    return DockerEngine(client, cpus=0.5, memory=256 << 20)


@pytest.fixture
def host_engine(tmp_path):
    return HostEngine(tmp_path / "host", cpus=0.5, memory=256 << 20)


@pytest.fixture(params=ENGINES)
def engine(request) -> Engine:
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
def image(engine, request) -> str:
    if engine.name == "host":
        return ""
    return request.getfixturevalue("pulled") if engine.name == "swarm" else request.getfixturevalue("toolchain").tag


@pytest.fixture
def start(engine: Engine, image: str, tmp_path: Path) -> Iterator[Start]:
    handles: list[str] = []
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "greeting").write_text("hello\n")

    def go(script: str, **changes: Any) -> str:
        arguments: dict[str, Any] = {
            "name": "test",
            "image": image,
            "command": ("sh", "-c", script),
            "inputs": {"/farm/in": inputs},
            "output": "/farm/out",
            "environment": {"FARM_JOBS": "1"},
            "limits": engine.capacity(),
            "timeout_s": 60,
        }
        handles.append(engine.submit(Job(**(arguments | changes))))
        return handles[-1]

    yield go
    for handle in handles:
        engine.cancel(handle)
        engine.release(handle)


def until(engine: Engine, handle: str, check: Callable[[Observation], bool], seconds: float = 90) -> Observation:
    deadline, seen = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        seen = engine.observe(handle)
        assert seen.state != "queued" or seen.why, "queued without a why"
        if check(seen):
            return seen
        time.sleep(0.1)
    raise AssertionError(f"still {seen}")


def end(engine: Engine, handle: str) -> Observation:
    return until(engine, handle, lambda seen: seen.state in FINAL)


def test_capacity_is_what_a_job_may_use(engine):
    assert (engine.capacity().cpus, engine.capacity().memory) == (0.5, 256 << 20)


def test_inputs_go_in_and_outputs_come_out(engine, start, tmp_path):
    handle = start(f"mkdir -p {FARM}/out/deep; cp {FARM}/in/greeting {FARM}/out/deep/; echo $FARM_JOBS")
    assert b"".join(engine.logs(handle)) == b"1\n"
    assert end(engine, handle) == Observation("done", exit_code=0)
    files = engine.collect(handle, tmp_path / "out", 1 << 20)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["out/deep/greeting"]
    assert files[0].read_text() == "hello\n"


def test_a_failure_of_its_own_keeps_its_exit_code_and_its_log(engine, start):
    handle = start("echo the reason; exit 3")
    assert b"".join(engine.logs(handle)) == b"the reason\n"
    seen = end(engine, handle)
    assert (seen.state, seen.exit_code) == ("done", 3)


def test_logs_come_while_it_runs_and_go_on_where_they_were(engine, start):
    handle = start("echo one; sleep 6; echo two >&2")
    pieces = engine.logs(handle)
    assert next(pieces) == b"one\n"
    assert engine.observe(handle).state == "running"
    assert b"".join(pieces) == b"two\n"
    assert b"".join(engine.logs(handle, since=4)) == b"two\n"
    assert b"".join(engine.logs(handle, since=2)) == b"e\ntwo\n"


def test_the_time_limit_holds_inside(engine, start):
    handle = start("sleep 600", timeout_s=2)
    seen = end(engine, handle)
    assert (seen.state, seen.exit_code) == ("done", 124)
    assert "time limit" in str(seen.why)


def test_limits_hold_and_say_so(engine, start):
    seen = end(engine, start("tail /dev/zero"))
    assert seen.state == "done"
    assert seen.exit_code not in (0, None)
    assert "out of memory" in str(seen.why)


def test_cancel_returns_when_it_has_ended(engine, start):
    handle = start("trap '' TERM; echo up; while true; do sleep 1; done")
    assert next(engine.logs(handle)) == b"up\n"
    engine.cancel(handle)
    assert engine.observe(handle).state in FINAL
    assert engine.observe(handle).exit_code != 0
    engine.cancel(handle)


def test_an_image_that_is_nowhere_is_no_fault_of_the_build(engine, start):
    if engine.name == "host":
        pytest.skip("the host engine has no images")
    if engine.name == "docker":  # it takes an image of its own machine, made a moment before
        with pytest.raises(InfrastructureError, match=r"[Nn]o such image"):
            start("true", image="farm-test/absent:1")
        return
    seen = end(engine, start("true", image="farm-test/absent:1"))
    assert seen.state == "lost"
    assert "o such image" in str(seen.why)


def test_submitting_the_same_attempt_twice_leaves_one(engine, start):
    labels = {"farm.run": "test-conformance", "farm.attempt": "1"}
    first = start("sleep 600", labels=labels)
    second = start("sleep 600", labels=labels)
    assert first == second or engine.observe(first).state == "lost"
    until(engine, second, lambda seen: seen.state == "running")


def test_what_was_released_is_lost(engine, start, tmp_path):
    handle = start("true")
    end(engine, handle)
    engine.release(handle)
    engine.release(handle)
    assert engine.observe(handle).state == "lost"
    assert list(engine.logs(handle)) == []
    with pytest.raises(InfrastructureError):
        engine.collect(handle, tmp_path / "none", 1)


@pytest.mark.parametrize("script", ["ln -s /etc/passwd link", "mkfifo pipe"])
def test_output_that_is_no_plain_file_is_refused(engine, start, tmp_path, script):
    handle = start(f"mkdir -p {FARM}/out; cd {FARM}/out; {script}")
    end(engine, handle)
    with pytest.raises(InfrastructureError, match="no plain file"):
        engine.collect(handle, tmp_path / "out", 1 << 20)


def test_output_beyond_its_bound_is_refused(engine, start, tmp_path):
    handle = start(f"mkdir -p {FARM}/out; head -c 9000000 /dev/zero > {FARM}/out/big")
    end(engine, handle)
    with pytest.raises(InfrastructureError, match="larger than allowed"):
        engine.collect(handle, tmp_path / "out", 1 << 20)


def test_a_volume_outlives_a_job_or_is_refused(engine, start):
    volumes = {"/farm/kept": "farm-test-volume"}
    script = f"cd {FARM}/kept; cat note; echo old > note"
    if not engine.keeps_volumes:
        with pytest.raises(UsageError, match="keeps no volumes"):
            start(script, volumes=volumes)
        return
    try:
        outputs = []
        for _ in range(2):
            handle = start(script, volumes=volumes)
            outputs.append(b"".join(engine.logs(handle)))
            end(engine, handle)
            engine.release(handle)
        assert b"No such file" in outputs[0]
        assert outputs[1] == b"old\n"
    finally:
        engine.discard("farm-test-volume")
    handle = start(script, volumes=volumes)
    assert b"No such file" in b"".join(engine.logs(handle))
    engine.discard("farm-test-volume")  # in use: a shared one is left to its last user, or is gone
    end(engine, handle)
    engine.release(handle)
    engine.discard("farm-test-volume")
    engine.discard("farm-test-volume")


def test_there_is_no_credential(engine, start):
    handle = start("env; cat /farm-manifest 2>/dev/null | gzip -d 2>/dev/null; true")
    assert b"secret-for-tests" not in b"".join(engine.logs(handle))


def test_a_capability_that_no_runner_has_is_waited_for_and_said(swarm_engine, pulled, tmp_path):
    job = Job("test", pulled, ("true",), {}, "/farm/out", {}, swarm_engine.capacity(), 60, requires=("sm35",))
    handle = swarm_engine.submit(job)
    try:
        seen = until(swarm_engine, handle, lambda s: s.state == "queued" and "no suitable node" in str(s.why), 20)
        assert "constraints" in str(seen.why)
        swarm_engine.cancel(handle)
        assert swarm_engine.observe(handle).state == "cancelled"
    finally:
        swarm_engine.release(handle)


def test_a_gpu_is_lent_to_one_job_at_a_time(swarm_engine, pulled):
    def gpu_job(script: str) -> str:
        command = ("sh", "-c", script)
        job = Job("test", pulled, command, {}, "/farm/out", {}, swarm_engine.capacity(), 60, gpus=1)
        return swarm_engine.submit(job)

    first, second = gpu_job("sleep 600"), None
    try:
        until(swarm_engine, first, lambda seen: seen.state == "running")
        second = gpu_job("echo $DOCKER_RESOURCE_GPU")
        until(swarm_engine, second, lambda seen: "insufficient resources" in str(seen.why), 20)
        swarm_engine.cancel(first)
        assert b"".join(swarm_engine.logs(second)) == b"K40-0\n"
    finally:
        for handle in filter(None, (first, second)):
            swarm_engine.cancel(handle)
            swarm_engine.release(handle)
