"""What every engine promises (farm.engines.base), run against each of them for real.

GitHub's REST API is the project's own fake, and its runner a stand-in that carries the job out as a
process here. What differs at GitHub stands in the tests: the log comes at the end, and `farm build`
on the runner says 5 for any failure of the build, with the reason in the log.

The host engine runs twice: here, and on Windows, which is Wine (tests/e2e/wine/windows_host.py);
there the scripts are the Python of WINDOWS.

A new engine adds its name to ENGINES, a fixture `<name>_engine` and one for the image in `image`.
One of these tests fills the memory of its job: an engine must hold limits before it is run here.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.engines.base import FINAL, Capacity, Engine, Job, Observation
from farm.engines.docker import DockerEngine
from farm.engines.github import GithubEngine
from farm.engines.github_api import GithubApi
from farm.engines.host import HostEngine
from farm.engines.transfer import RefusedOutputError
from farm.plan.settings import load_github
from tests.e2e.wine.windows_host import WindowsHost
from tests.integration.github.fake import REPOSITORY, TOKEN, WORKFLOWS, Fake, serve
from tests.integration.github.runner import Ended, StandIn
from tests.plans import plan_of

ROOT = WORKFLOWS.parents[1]
LABELS = ["self-hosted", "linux", "x64", "farm-build"]
ENGINES = ["docker", "swarm", "host", "windows_host", "github"]
FARM = "${FARM_ROOT:-/farm}"
"""Where a job finds its folders: the host engine has them elsewhere."""
IMAGES = {"swarm": "pulled"}
"""Fixtures of the images of engines that do not run the one that was made here."""
Start = Callable[..., str]
PAUSES = (6, 30, 120)
"""Seconds between two lines of a log: longer ones where a busy machine brings both at once."""
WINDOWS = {
    f"mkdir -p {FARM}/out/deep; cp {FARM}/in/greeting {FARM}/out/deep/; echo $FARM_JOBS": """
(root / "out/deep").mkdir(parents=True)
shutil.copy(root / "in/greeting", root / "out/deep")
say(os.environ["FARM_JOBS"])
""",
    "echo the reason; exit 3": "say('the reason'); sys.exit(3)",
    **{
        f"echo one; sleep {pause}; echo two >&2": f"say('one'); time.sleep({pause}); say('two', sys.stderr)"
        for pause in PAUSES
    },
    "sleep 600": "time.sleep(600)",
    "tail /dev/zero": """
held = []
for _ in range(100):
    held.append(b"x" * (8 << 20))
    time.sleep(0.1)
time.sleep(60)
""",
    "trap '' TERM; echo up; while true; do sleep 1; done": "say('up'); time.sleep(600)",
    "true": "",
    f"mkdir -p {FARM}/out; head -c 9000000 /dev/zero > {FARM}/out/big": """
(root / "out").mkdir()
(root / "out/big").write_bytes(bytes(9000000))
""",
    f"cd {FARM}/kept; cat note; echo old > note": """
note = root / "kept/note"
say(note.read_text() if note.exists() else "No such file")
note.write_text("old")
""",
    "env; cat /farm-manifest 2>/dev/null | gzip -d 2>/dev/null; true": "say(str(dict(os.environ)))",
}
"""What the scripts below are on Windows."""


@pytest.fixture
def docker_engine(client):
    return DockerEngine(client, cpus=0.5, memory=256 << 20)


@pytest.fixture
def host_engine(tmp_path, own_machine_lock):
    return HostEngine(tmp_path / "host", cpus=0.5, memory=256 << 20)


@pytest.fixture
def windows_host_engine(windows_python, tmp_path):
    engine = WindowsHost(windows_python, tmp_path / "host")
    yield engine
    engine.close()


class Noting(GithubEngine):
    """Keeps what was submitted: a dispatch carries a plan alone, and the stand-in is to run the
    test's own script.
    """

    def __init__(self, api: GithubApi, plan: Path) -> None:
        super().__init__(api, load_github(ROOT), Capacity(0.5, 256 << 20), poll_s=0.2)
        self.plan, self.jobs = plan, {}

    def submit(self, job: Job) -> str:
        handle = super().submit(replace(job, inputs=job.inputs | {"/farm/job": self.plan}))
        self.jobs[int(handle)] = job
        return handle


@pytest.fixture
def github_engine(tmp_path, own_machine_lock):
    plan = tmp_path / "plan"
    plan.mkdir()
    (plan / "plan.json").write_text(plan_of("cpu-avx-py311", "canary").to_json())
    fake = Fake()
    server = serve(fake)
    api = GithubApi(
        fake.url, REPOSITORY, TOKEN, sleep=lambda seconds: time.sleep(min(seconds, 0.2))
    )
    engine = Noting(api, plan)
    machine = HostEngine(tmp_path / "runner", cpus=0.5, memory=256 << 20)

    def work(run, _inputs, stopped):
        """What `farm build` does with a plan: 0, 5 for a failure of the build, 9 for any other."""
        while run not in engine.jobs:
            time.sleep(0.05)
        handle = machine.submit(engine.jobs[run])
        while machine.observe(handle).state not in FINAL:
            time.sleep(0.1)
            if stopped():
                machine.cancel(handle)
        seen, log = machine.observe(handle), b"".join(machine.logs(handle))
        try:
            if seen.exit_code:
                message = f"the build failed with exit code {seen.exit_code} ({seen.text})\n"
                return Ended(log + message.encode(), code=5)
            found = machine.collect(handle, tmp_path / f"out-{run}", 1 << 30)
            names = {
                str(path.relative_to(tmp_path / f"out-{run}")): path.read_bytes() for path in found
            }
            return Ended(log, names)
        except BuildFailedError as error:
            return Ended(log + f"{error}\n".encode(), code=5)
        except InfrastructureError as error:
            return Ended(log + f"{error}\n".encode(), code=9)
        finally:
            machine.release(handle)

    with StandIn(fake, "linux-build", LABELS, work):
        yield engine
    api.close()
    server.shutdown()
    server.server_close()
    assert fake.problems == []


@pytest.fixture(params=ENGINES)
def engine(request) -> Engine:
    return request.getfixturevalue(f"{request.param}_engine")


@pytest.fixture
def image(engine, request) -> str:
    if not handed(engine):
        return ""
    found = request.getfixturevalue(IMAGES.get(engine.name, "toolchain"))
    return getattr(found, "tag", found)


def handed(engine: Engine) -> bool:
    """Whether an image is handed to the engine: a process has none, a runner with a farm of its own
    makes one.
    """
    return engine.traits.in_container and not engine.traits.gathers


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
            "command": engine.command(WINDOWS[script])
            if isinstance(engine, WindowsHost)
            else ("sh", "-c", script),
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


def until(
    engine: Engine, handle: str, check: Callable[[Observation], bool], seconds: float = 300
) -> Observation:
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


def code(engine: Engine, given: int) -> int:
    """The exit code of a build's own failure, as the engine tells it."""
    return 5 if engine.traits.gathers else given


def reason(engine: Engine, handle: str, seen: Observation) -> str:
    """Where an engine says why a build failed."""
    return b"".join(engine.logs(handle)).decode() if engine.traits.gathers else str(seen.text)


def test_capacity_is_what_a_job_may_use(engine):
    assert (engine.capacity().cpus, engine.capacity().memory) == (0.5, 256 << 20)


def test_inputs_go_in_and_outputs_come_out(engine, start, tmp_path):
    handle = start(
        f"mkdir -p {FARM}/out/deep; cp {FARM}/in/greeting {FARM}/out/deep/; echo $FARM_JOBS"
    )
    assert b"".join(engine.logs(handle)) == b"1\n"
    assert end(engine, handle) == Observation("done", exit_code=0)
    files = engine.collect(handle, tmp_path / "out", 1 << 20)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["out/deep/greeting"]
    assert files[0].read_text() == "hello\n"


def test_a_failure_of_its_own_keeps_its_exit_code_and_its_log(engine, start):
    handle = start("echo the reason; exit 3")
    log = b"".join(engine.logs(handle))
    assert log.startswith(b"the reason\n")
    assert log == b"the reason\n" or engine.traits.gathers
    seen = end(engine, handle)
    assert (seen.state, seen.exit_code) == ("done", code(engine, 3))


def test_logs_come_while_it_runs_and_go_on_where_they_were(engine, start):
    for pause in PAUSES:
        handle = start(f"echo one; sleep {pause}; echo two >&2", timeout_s=2 * PAUSES[-1])
        pieces = engine.logs(handle)
        if engine.traits.gathers:  # it shows a job's log when the job has ended
            assert b"".join(pieces) == b"one\ntwo\n"
            break
        first, seen = next(pieces), engine.observe(handle)
        if (first, seen.state) == (b"one\n", "running"):
            assert b"".join(pieces) == b"two\n"
            break
        engine.cancel(handle)
    else:
        raise AssertionError(f"it never came while the job ran: {first!r}, {seen}")
    assert b"".join(engine.logs(handle, since=4)) == b"two\n"
    assert b"".join(engine.logs(handle, since=2)) == b"e\ntwo\n"


def test_the_time_limit_holds_inside(engine, start):
    handle = start("sleep 600", timeout_s=2)
    seen = end(engine, handle)
    assert (seen.state, seen.exit_code) == ("done", code(engine, 124))
    assert "time limit" in reason(engine, handle, seen)


def test_limits_hold_and_say_so(engine, start):
    handle = start("tail /dev/zero")
    seen = end(engine, handle)
    assert seen.state == "done"
    assert seen.exit_code not in (0, None)
    assert "out of memory" in reason(engine, handle, seen)


def test_cancel_returns_when_it_has_ended(engine, start):
    handle = start("trap '' TERM; echo up; while true; do sleep 1; done")
    if engine.traits.gathers:
        until(engine, handle, lambda seen: seen.state == "running")
    else:
        assert next(engine.logs(handle)) == b"up\n"
    engine.cancel(handle)
    assert engine.observe(handle).state in FINAL
    assert engine.observe(handle).exit_code != 0
    engine.cancel(handle)


def test_an_image_that_is_nowhere_is_no_fault_of_the_build(engine, start):
    if not handed(engine):
        pytest.skip("no image is handed to this engine")
    try:
        handle = start("true", image="farm-test/absent:1")
    except InfrastructureError as error:  # it looks at once, else when the job starts
        assert "o such image" in str(error)  # noqa: PT017 either may be
        return
    seen = end(engine, handle)
    assert seen.state == "lost"
    assert "o such image" in str(seen.text)


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
    if engine.traits.gathers:  # a run stays to be read there, its output is deleted
        assert engine.observe(handle).state == "done"
    else:
        assert engine.observe(handle).state == "lost"
        assert list(engine.logs(handle)) == []
    with pytest.raises(InfrastructureError):
        engine.collect(handle, tmp_path / "none", 1)


@pytest.mark.parametrize("script", ["ln -s /etc/passwd link", "mkfifo pipe"])
def test_output_that_is_no_plain_file_is_refused(engine, start, tmp_path, script):
    if isinstance(engine, WindowsHost):
        pytest.skip("Wine makes neither links nor junctions")
    handle = start(f"mkdir -p {FARM}/out; cd {FARM}/out; {script}")
    end(engine, handle)
    refused = (
        "left no artifact" if engine.traits.gathers else "not a plain file"
    )  # the farm on the runner refuses it
    with pytest.raises((RefusedOutputError, InfrastructureError), match=refused):
        engine.collect(handle, tmp_path / "out", 1 << 20)


def test_output_beyond_its_bound_is_refused(engine, start, tmp_path):
    handle = start(f"mkdir -p {FARM}/out; head -c 9000000 /dev/zero > {FARM}/out/big")
    end(engine, handle)
    with pytest.raises(RefusedOutputError, match="larger than allowed"):
        engine.collect(handle, tmp_path / "out", 1 << 20)


def test_a_volume_outlives_a_job_or_is_refused(engine, start):
    volumes = {"/farm/kept": "farm-test-volume"}
    script = f"cd {FARM}/kept; cat note; echo old > note"
    if not engine.traits.keeps_volumes:
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
