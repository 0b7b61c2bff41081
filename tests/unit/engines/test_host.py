"""What every engine promises (farm.engines.base), run against the host engine with real
processes.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, NoRunnerError
from farm.base.processes import started
from farm.engines.base import FINAL, Cause, Job, Observation
from farm.engines.host import START_S, HostEngine
from farm.engines.transfer import RefusedOutputError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads /proc to see what became of processes"
)


@pytest.fixture
def engine(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tempfile.tempdir", str(tmp_path)
    )  # the machine's lock: other tests run beside this one
    engine = HostEngine(tmp_path / "host", cpus=1, memory=512 << 20)
    yield engine
    for handle, _ in engine._all():
        engine.release(handle)


@pytest.fixture
def start(engine, tmp_path):
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "greeting").write_text("hello\n")

    def go(script, *, timeout_s=60, labels=None, volumes=None, to=engine):
        job = Job(
            name="test",
            image="",
            command=("sh", "-c", script),
            inputs={"/farm/in": inputs},
            output="/farm/out",
            environment={"FARM_JOBS": "1"},
            limits=to.capacity(),
            timeout_s=timeout_s,
            labels=labels or {},
            volumes=volumes or {},
        )
        return to.submit(job)

    return go


def end(engine, handle):
    for _ in engine.logs(handle):
        pass
    seen = engine.observe(handle)
    assert seen.state in FINAL
    return seen


def until(condition, what):
    for _ in range(4800):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def alive(pid):
    return started(pid) != ""


def test_a_build_speaks_english_whatever_the_shell_that_starts_it_speaks(
    engine, start, monkeypatch
):
    """As in a container: the causes of failures are found by the tools' own words."""
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    handle = start('echo "$LC_ALL,$LANG"')
    assert b"C.UTF-8,\n" in b"".join(engine.logs(handle))


def test_a_host_job_reads_inputs_and_leaves_outputs(engine, start, tmp_path):
    handle = start(
        'mkdir -p "$FARM_ROOT/out/deep"; cp "$FARM_ROOT/in/greeting" "$FARM_ROOT/out/deep/"; echo '
        "$FARM_JOBS"
    )
    assert b"".join(engine.logs(handle)) == b"1\n"
    assert end(engine, handle) == Observation("done", exit_code=0)
    files = engine.collect(handle, tmp_path / "got", 1 << 20)
    assert [path.relative_to(tmp_path).as_posix() for path in files] == ["got/deep/greeting"]
    assert files[0].read_text() == "hello\n"


def test_one_job_runs_on_a_machine_whatever_project_it_is_of(engine, start, tmp_path):
    """And whoever comes second is told whose it is."""
    other = HostEngine(tmp_path / "other", cpus=1, memory=512 << 20)
    go = tmp_path / "go"
    handle = start(
        f"while [ ! -e '{go}' ]; do sleep 0.1; done", labels={"farm.run": "20261126-120000-ab12"}
    )
    assert other.busy() == f"test (run 20261126-120000-ab12, in {engine.root})"
    with pytest.raises(NoRunnerError, match=r"already runs test \(run 20261126-120000-ab12, in "):
        start("true", to=other)
    go.touch()
    assert end(engine, handle).exit_code == 0
    until(lambda: other.busy() is None, "the lock is held for ever")
    second = start("true", to=other)
    assert end(other, second).exit_code == 0
    other.release(second)


@pytest.mark.parametrize("put", [os.symlink, os.link, lambda _, lock: os.mkfifo(lock)])
def test_the_lock_is_no_way_to_a_file_of_this_user(engine, start, tmp_path, put):
    """Everybody may write to the folder for temporary files, and the lock's name is known."""
    kept = tmp_path / "kept"
    kept.write_text("a key")
    put(kept, tmp_path / f"torch-farm-{os.getuid()}.lock")
    with pytest.raises(InfrastructureError, match="cannot be used as this user's lock"):
        start("true")
    assert (kept.read_text(), engine.busy()) == ("a key", None)


def test_logs_continue_at_their_last_position(engine, start):
    handle = start("echo one; echo two >&2; echo three")
    whole = b"".join(engine.logs(handle))
    assert whole == b"one\ntwo\nthree\n"
    assert b"".join(engine.logs(handle, since=5)) == whole[5:]


def test_another_controller_takes_the_job_up(engine, start, tmp_path):
    go = tmp_path / "go"
    handle = start(
        f"while [ ! -e '{go}' ]; do sleep 0.1; done; echo done", labels={"farm.plan": "p"}
    )
    other = HostEngine(tmp_path / "host", cpus=1, memory=1 << 30)
    assert other.find({"farm.plan": "p"}) == handle
    assert other.find({"farm.plan": "q"}) is None
    assert other.observe(handle).state == "running"
    go.touch()
    assert b"".join(other.logs(handle)) == b"done\n"
    assert end(other, handle) == Observation("done", exit_code=0)


def test_a_machine_runs_one_job_at_a_time(engine, start):
    first = start("sleep 60", labels={"farm.run": "1"})
    with pytest.raises(NoRunnerError, match="this machine already runs test"):
        start("true", labels={"farm.run": "2"})
    again = start(
        "echo again", labels={"farm.run": "1"}
    )  # the same run's next attempt replaces the one before
    assert engine.observe(first).state == "lost"
    assert end(engine, again).exit_code == 0


def test_the_whole_tree_dies_when_a_job_is_cancelled(engine, start, tmp_path):
    notes = tmp_path / "pids"
    # A grandchild that left its parent and its session, as a daemon does.
    handle = start(
        f"setsid sh -c 'echo $$ >> \"{notes}\"; exec sleep 300' & echo $$ >> '{notes}'; wait"
    )
    until(
        lambda: notes.exists() and len(notes.read_text().split()) == 2,
        "the processes did not start",
    )
    pids = [int(word) for word in notes.read_text().split()]
    assert all(map(alive, pids))
    engine.cancel(handle)
    assert engine.observe(handle) == Observation("cancelled", exit_code=143, cause=Cause.CANCELLED)
    assert not any(map(alive, pids))


def test_processes_left_by_a_job_are_ended(engine, start, tmp_path):
    notes = tmp_path / "pid"
    left = f"setsid sh -c 'echo $$ > \"{notes}\"; exec sleep 300' &"
    handle = start(f"{left} while [ ! -s '{notes}' ]; do sleep 0.05; done")
    assert end(engine, handle) == Observation("done", exit_code=0)
    assert not alive(int(notes.read_text()))


def test_the_time_limit_holds_without_a_controller(engine, start):
    seen = end(engine, start("sleep 300", timeout_s=1))
    assert (seen.state, seen.exit_code, seen.text) == ("done", 124, "killed at its time limit: 1 s")


def test_the_memory_limit_holds(tmp_path, start):
    small = HostEngine(tmp_path / "host", cpus=1, memory=64 << 20)
    handle = start(
        f'exec {sys.executable} -c "x = bytearray(200 << 20); import time; time.sleep(60)"',
        to=small,
    )
    seen = end(small, handle)
    assert (seen.state, seen.exit_code) == ("done", 137)
    assert seen.cause is Cause.OUT_OF_MEMORY


def test_how_long_a_supervisor_may_take_is_counted_by_no_clock_that_jumps(
    engine, start, monkeypatch
):
    handle = start("true")
    end(engine, handle)
    for name in ("pid", "exit.json"):  # as while it starts
        (engine._jobs / handle / name).unlink()
    now, since = time.time(), time.monotonic()
    for hours in (1, -1):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * 3600)
        assert engine.observe(handle).state == "starting"
    for later in (2 * START_S + 1, -1e6):  # time has gone; the machine was started again
        monkeypatch.setattr(time, "monotonic", lambda later=later: since + later)
        assert engine.observe(handle) == Observation("lost", why="its supervisor never started")


def test_a_killed_supervisor_is_a_lost_job_and_nothing_of_it_stays(engine, start, tmp_path):
    notes = tmp_path / "pid"
    handle = start(f"echo $$ > '{notes}'; sleep 300")
    until(lambda: notes.exists() and notes.read_text().strip(), "the job did not start")
    pid = int(notes.read_text())
    os.kill(engine._read(handle, "pid")["pid"], signal.SIGKILL)
    until(lambda: engine.observe(handle).state == "lost", "the loss was not seen")
    assert alive(pid)
    engine.release(handle)
    assert not alive(pid)
    assert engine.observe(handle).why == "the engine does not know the job"


def test_a_volume_outlives_the_job_and_another_does_not_see_it(engine, start):
    tree = {"/farm/src": "tree-a"}
    look = (
        'cat "$FARM_ROOT/src/object" 2>/dev/null || echo none; echo made > "$FARM_ROOT/src/object"'
    )
    seen = []
    for volumes in (tree, tree, {"/farm/src": "tree-b"}, tree):
        handle = start(look, volumes=volumes)
        seen.append(b"".join(engine.logs(handle)))
        engine.release(handle)
    assert seen == [b"none\n", b"made\n", b"none\n", b"made\n"]
    engine.discard("tree-a")
    engine.discard("tree-a")
    handle = start(look, volumes=tree)
    assert b"".join(engine.logs(handle)) == b"none\n"


@pytest.mark.parametrize(
    ("script", "limit", "what"),
    [
        ("ln -s /etc/passwd out", 1 << 20, "not a plain file"),
        ("mkfifo out", 1 << 20, "not a plain file"),
        ("rmdir ../out; ln -s /etc ../out", 1 << 20, "cannot be read"),
        ("mkdir -p $(printf 'a/%.0s' $(seq 150))", 1 << 20, "not a plain file"),
        ("head -c 2000 /dev/zero > out", 1000, "larger than allowed"),
    ],
)
def test_hostile_output_is_refused(engine, start, tmp_path, script, limit, what):
    handle = start(f'mkdir -p "$FARM_ROOT/out"; cd "$FARM_ROOT/out"; {script}')
    assert end(engine, handle).exit_code == 0
    with pytest.raises(RefusedOutputError, match=what):
        engine.collect(handle, tmp_path / "got", limit)


def test_the_job_sees_no_credentials(engine, start, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    handle = start("env")
    text = b"".join(engine.logs(handle)).decode()
    assert "s3cret" not in text
    assert f"FARM_ROOT={engine.root}/farm\n" in text


def test_a_folder_outside_is_refused(engine, tmp_path):
    job = Job("t", "", ("true",), {"/etc": tmp_path}, "/farm/out", {}, engine.capacity(), 10)
    with pytest.raises(InfrastructureError, match="is not below /farm"):
        engine.submit(job)
    up = Job("t", "", ("true",), {"/farm/../etc": tmp_path}, "/farm/out", {}, engine.capacity(), 10)
    with pytest.raises(InfrastructureError, match="is not below /farm"):
        engine.submit(up)


def test_a_job_that_cannot_start_says_why(engine, start, tmp_path):
    job = Job("t", "", ("/nowhere/program",), {}, "/farm/out", {}, engine.capacity(), 10)
    seen = end(engine, engine.submit(job))
    assert (seen.state, seen.exit_code) == ("done", 127)
    assert "/nowhere/program" in seen.why


def test_a_supervisor_that_ended_before_it_left_is_not_waited_for(engine, start, monkeypatch):
    """Ctrl-C reaches every process of a terminal, this one too until it has a session of its
    own.
    """

    def wait(_seconds):
        raise AssertionError("nothing is to be waited for")

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="the job's supervisor does not start"):
        start("true")


def test_a_handle_that_is_not_known_is_lost(engine):
    assert engine.observe("nothing").state == "lost"
    assert list(engine.logs("nothing")) == []
    engine.release("nothing")
    engine.cancel("nothing")
    with pytest.raises(InfrastructureError, match="is gone"):
        engine.collect("nothing", Path("x"), 1)


def test_a_job_continues_after_the_machine_was_suspended(engine, start):
    """As a suspended machine or SIGSTOP: what was stopped has not ended, and ends as it should once
    it goes on.
    """
    go = engine.root / "go"
    handle = start(f"while [ ! -e '{go}' ]; do sleep 0.1; done; exit 3")
    pid = engine._read(handle, "pid")["pid"]
    os.kill(pid, signal.SIGSTOP)
    go.touch()
    assert engine.observe(handle).state == "running"
    os.kill(pid, signal.SIGCONT)
    assert end(engine, handle).exit_code == 3


def test_a_suspended_job_can_be_cancelled(engine, start):
    handle = start("sleep 600")
    os.kill(engine._read(handle, "pid")["pid"], signal.SIGSTOP)
    engine.cancel(handle)
    assert engine.observe(handle).state == "cancelled"


def test_a_release_that_was_interrupted_keeps_no_machine(engine, start, monkeypatch):
    """It stops at the worst file: what said that the job had started is gone, the rest is still
    there.
    """
    handle = start("true", labels={"farm.run": "1"})
    end(engine, handle)

    def interrupted(folder):
        (folder / "pid").unlink()
        (folder / "exit.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("farm.base.processes.remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.release(handle)
    assert engine.observe(handle).state == "lost"
    assert engine.find({"farm.run": "1"}) is None
    second = start("true", labels={"farm.run": "2"})
    assert end(engine, second) == Observation("done", exit_code=0)
    engine.release(handle)
    assert [path.name for path in engine._jobs.iterdir() if path.is_dir()] == [second]


def test_a_job_released_by_another_controller_is_not_found(engine, start, tmp_path):
    start("true", labels={"farm.run": "1"})

    class Late(HostEngine):
        def _read(self, handle, name):
            if engine.observe(handle).state != "lost":
                end(engine, handle)
                engine.release(handle)
            return super()._read(handle, name)

    assert Late(tmp_path / "host").find({"farm.run": "1"}) is None
