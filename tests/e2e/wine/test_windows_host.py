"""The host engine on Windows (Wine): what the conformance suite of all engines does not ask."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farm.base.errors import NoRunnerError
from farm.engines.base import FINAL, Cause, Job, Observation
from tests.e2e.conftest import wait
from tests.e2e.wine.windows_host import SECRET, WindowsHost, windows_path

# Each generation starts the next one as a daemon would: in a group of its own, away from the
# console, and, if it may, from the job object. Then it writes its pid and waits; the first one as
# long as it is told.
GENERATIONS = r"""
import os, pathlib, subprocess, sys, time
left, notes = int(sys.argv[1]), pathlib.Path(sys.argv[2])
for more in (subprocess.CREATE_BREAKAWAY_FROM_JOB, 0) if left else ():
    away = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS | more
    try:
        subprocess.Popen([sys.executable, __file__, str(left - 1), sys.argv[2]], creationflags=away)
        break
    except PermissionError:
        continue
(notes / str(os.getpid())).touch()
while len(list(notes.iterdir())) < 3 or "wait" in sys.argv or left < 2:
    time.sleep(0.05)
"""


@pytest.fixture
def open_host(windows_python, tmp_path):
    opened = []

    def go():
        opened.append(WindowsHost(windows_python, tmp_path / "host"))
        return opened[-1]

    yield go
    last = next((host for host in reversed(opened) if host.process.poll() is None), None)
    for entry in (tmp_path / "host/farm-jobs").glob("*/job.json"):
        (last or go()).release(entry.parent.name)
    for host in opened:
        host.close()


@pytest.fixture
def host(open_host):
    return open_host()


def submit(host, script, *, command=None, labels=None, timeout_s=120, inputs=None):
    command = command or host.command(script)
    job = Job(
        "test",
        "",
        command,
        inputs or {},
        "/farm/out",
        {},
        host.capacity(),
        timeout_s,
        labels=labels or {},
    )
    return host.submit(job)


def end(host, handle):
    log = b"".join(host.logs(handle))
    return wait("its end", lambda: (s := host.observe(handle)).state in FINAL and s), log.decode()


def generations(host, tmp_path, *more):
    """A job of three generations; returns its handle and the processes."""
    notes, source = tmp_path / "notes", tmp_path / "source.py"
    notes.mkdir()
    source.write_text(GENERATIONS)
    words = (host.python.exe, source, "2", notes, *more)
    handle = submit(
        host, "", command=tuple(windows_path(w) if isinstance(w, Path) else w for w in words)
    )
    wait("the processes", lambda: len(list(notes.iterdir())) == 3)
    return handle, [int(note.name) for note in notes.iterdir()]


def supervisor(host, handle):
    return json.loads((host.root / "farm-jobs" / handle / "pid").read_text())["pid"]


def test_a_cancel_ends_three_generations(host, tmp_path):
    handle, pids = generations(host, tmp_path, "wait")
    assert all(map(host.alive, pids))
    host.cancel(handle)
    assert host.observe(handle) == Observation("cancelled", exit_code=143, cause=Cause.CANCELLED)
    assert not any(map(host.alive, pids))


def test_what_a_job_leaves_behind_dies_with_it(host, tmp_path):
    handle, pids = generations(host, tmp_path)
    assert end(host, handle)[0] == Observation("done", exit_code=0)
    assert not any(map(host.alive, pids))


def test_a_killed_supervisor_is_a_lost_job_and_nothing_of_it_stays(host, tmp_path):
    handle, pids = generations(host, tmp_path, "wait")
    host.kill(supervisor(host, handle))
    wait(
        "the loss",
        lambda: host.observe(handle) == Observation("lost", why="its supervisor was killed"),
    )
    assert all(map(host.alive, pids))
    host.release(handle)
    assert not any(map(host.alive, pids))
    assert end(host, submit(host, "say('next')")) == (Observation("done", exit_code=0), "next\n")


def test_a_job_outlives_its_controller_and_the_next_one_finds_it(open_host):
    first = open_host()
    script = """
say("up")
while not (root / "go").exists():
    time.sleep(0.1)
say("done")
sys.exit(7)
"""
    handle = submit(first, script, labels={"farm.run": "1"})
    assert next(first.logs(handle)) == b"up\n"
    first.die()
    second = open_host()
    assert (second.find({"farm.run": "1"}), second.find({"farm.run": "2"})) == (handle, None)
    assert second.observe(handle).state == "running"
    (second.root / "farm/go").touch()
    assert end(second, handle) == (Observation("done", exit_code=7), "up\ndone\n")


def test_a_pid_that_is_somebody_elses_by_now_is_not_the_job(host):
    handle = submit(host, "time.sleep(300)")
    note = host.root / "farm-jobs" / handle / "pid"
    record = json.loads(note.read_text())
    note.write_text(json.dumps(record | {"start": record["start"] + "1"}))
    assert host.observe(handle).state == "lost"
    note.write_text(json.dumps(record))
    assert host.observe(handle).state == "running"


def test_a_machine_runs_one_job_at_a_time(host):
    first = submit(host, "time.sleep(300)", labels={"farm.run": "1"})
    with pytest.raises(NoRunnerError, match="this machine already runs test"):
        submit(host, "", labels={"farm.run": "2"})
    again = submit(
        host, "say('again')", labels={"farm.run": "1"}
    )  # the same run's next attempt replaces it
    assert host.observe(first).state == "lost"
    assert end(host, again) == (Observation("done", exit_code=0), "again\n")


def test_of_two_controllers_at_the_same_moment_one_gets_the_machine(open_host, tmp_path):
    many = (
        tmp_path / "many"
    )  # they are copied between the look at the machine and the note that it is taken
    many.mkdir()
    for number in range(300):
        (many / str(number)).touch()

    def try_it(host):
        try:
            return submit(host, "time.sleep(300)", inputs={"/farm/in": many})
        except NoRunnerError as error:
            return error

    hosts = [open_host(), open_host()]
    assert [host.capacity() for host in hosts] == [hosts[0].capacity()] * 2, "both are up"
    with ThreadPoolExecutor() as pool:
        got = list(pool.map(try_it, hosts))
    refused = [each for each in got if isinstance(each, NoRunnerError)]
    assert [str(each) for each in refused] == ["this machine already runs test"]


def test_a_job_sees_what_windows_needs_and_nothing_else(host):
    seen, log = end(host, submit(host, "say(repr(dict(os.environ)))"))
    assert seen == Observation("done", exit_code=0)
    environment = eval(log, {"__builtins__": {}})
    made = {
        "FARM_JOB",
        "FARM_ROOT",
        "HOME",
        "USERPROFILE",
        "APPDATA",
        "LOCALAPPDATA",
        "TEMP",
        "TMP",
    }
    system = {
        "SYSTEMROOT",
        "SYSTEMDRIVE",
        "WINDIR",
        "COMSPEC",
        "PATH",
        "PATHEXT",
        "PROGRAMFILES",
        "PROGRAMDATA",
    }
    left = {
        name
        for name in environment
        if not name.startswith(("WINE", "PROCESSOR_", "PROGRAM", "COMMONPROGRAM"))
    }
    assert made | system <= environment.keys()
    assert left - made - system <= {"OS", "NUMBER_OF_PROCESSORS", "TZ"}
    assert not set(SECRET.values()) & set(environment.values())
    folder = windows_path(host.root / "farm")
    assert all(environment[name].startswith(folder) for name in made - {"FARM_JOB"})
    assert rf"{environment['SYSTEMROOT']}\system32".lower() in environment["PATH"].lower().split(
        ";"
    )


def test_a_job_gets_the_cpus_it_was_given(host):
    script = r"""
mask, whole = ctypes.c_size_t(), ctypes.c_size_t()
kernel = ctypes.WinDLL("kernel32")
kernel.GetCurrentProcess.restype = ctypes.c_void_p
this = ctypes.c_void_p(kernel.GetCurrentProcess())
kernel.GetProcessAffinityMask(this, ctypes.byref(mask), ctypes.byref(whole))
say(str(mask.value.bit_count()))
"""
    assert end(host, submit(host, script)) == (Observation("done", exit_code=0), "1\n")


def test_a_job_that_cannot_start_says_why(host):
    seen, _ = end(host, submit(host, "", command=("nowhere.exe",)))
    assert (seen.state, seen.exit_code) == ("done", 127)
    assert "nowhere.exe" in seen.why


def test_a_batch_file_is_a_job_and_read_only_output_is_cleared(host, tmp_path):
    batch = tmp_path / "kit"
    batch.mkdir()
    lines = (
        "@echo off",
        r'if exist "%FARM_ROOT%\out\" exit /b 9',
        r'mkdir "%FARM_ROOT%\out"',
        r'cd /d "%FARM_ROOT%\out"',
        "echo made>wheel.whl",
        "attrib +r wheel.whl",
        "exit /b 5",
    )
    (batch / "build.cmd").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    for _ in range(2):  # the second one finds the folder empty
        command = ("cmd", "/d", "/c", "/farm/job/build.cmd")
        limits = host.capacity()
        handle = host.submit(
            Job("test", "", command, {"/farm/job": batch}, "/farm/out", {}, limits, 60)
        )
        assert end(host, handle) == (Observation("done", exit_code=5), "")
        [made] = host.collect(handle, tmp_path / "got", 100)
        assert made.read_bytes() == b"made\r\n"
        host.release(handle)
        made.unlink()


def test_there_is_no_chroot(windows_python, tmp_path):
    code = (
        "from pathlib import Path; from farm.engines.host import HostEngine; "
        "HostEngine(Path('x'), tree=True)"
    )
    done = windows_python.run(
        "-c", code, env={"PYTHONPATH": windows_path(Path(__file__).parents[3])}, cwd=tmp_path
    )
    assert (
        "NoRunnerError: the toolchain of an offline bundle can only be entered on Linux"
        in done.stderr
    )
