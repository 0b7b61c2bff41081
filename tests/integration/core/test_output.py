"""A command whose reader goes away, whose disk is full, or that is interrupted: one quiet end."""

import os
import select
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SELECT = ("--variant", "sm35-avx-py311", "--package", "canary")
# A command that says when it has started, then prints for ever, with a thread that only sleeps.
ENDLESS = """
import sys, threading, time
from farm.cli import main
from farm.cli import matrix
def endless(args):
    {body}
matrix.run_matrix = endless
sys.exit(main.main(["matrix"]))
"""
PRINTS = "while True: print('x' * 1000)"
THREAD = """
    def work():
        while True: print("x" * 1000, flush=True)
    threading.Thread(target=work, daemon=True).start()
    while True: print("x" * 1000, flush=True); time.sleep(0.1)
"""
FILES = """
    try:
        while True: print("x" * 1000)
    except OSError:
        raise AssertionError("taken for a failure of the disk")
"""


def start(*command, **pipes):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *command], env=environ, cwd=ROOT, stderr=subprocess.PIPE, **pipes
    )


def ended(process):
    with process:
        try:
            err = process.stderr.read().decode()
            return process.wait(60), err
        finally:
            process.kill()


def closed():
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("unbuffered", [(), ("-u",)], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments", [("plan", *SELECT, "--json"), ("--help",), ("--version",)], ids=" ".join
)
def test_a_closed_pipe_ends_a_command_quietly(arguments, unbuffered):
    writer = closed()
    process = start(*unbuffered, "-m", "farm.cli.main", *arguments, stdout=writer)
    os.close(writer)
    assert ended(process) == (141, "")


@pytest.mark.parametrize("body", [PRINTS, THREAD, FILES], ids=["main", "thread", "files"])
def test_what_prints_without_end_is_ended(body):
    process = start("-c", ENDLESS.format(body=body), stdout=subprocess.PIPE)
    assert process.stdout.read(3000) == b"x" * 1000 + b"\n" + b"x" * 1000 + b"\n" + b"x" * 998
    process.stdout.close()
    assert ended(process) == (141, "")


def test_errors_with_standard_error_closed():
    writer = closed()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "farm.cli.main", "status", "absent"]
    done = subprocess.run(
        command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=writer, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stdout) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_a_full_disk_is_said_once(unbuffered):
    with Path("/dev/full").open("wb") as full:
        process = start(*unbuffered, "-m", "farm.cli.main", "plan", *SELECT, stdout=full)
    code, err = ended(process)
    assert (code, err.splitlines()[0]) == (
        9,
        "farm: the output cannot be written: No space left on device",
    )
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_an_unbuffered_output_is_read_while_the_command_works(stream):
    """Of PYTHONUNBUFFERED, as images and CI systems set it: nothing was printed before the end, or
    8 KiB.
    """
    script = "import sys; from farm.cli import show; show.prepare()"
    script += f"; print('now', file=sys.{stream}); sys.stdin.read()"
    process = start("-u", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    came, _, _ = select.select([getattr(process, stream)], [], [], 30)
    process.communicate()
    assert came


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_dispatcher_outlives_a_log_that_takes_no_more():
    """Its warnings go to a log beside the journal: the disk that refuses the one refuses the
    other.
    """
    script = (
        "from farm.cli import builds, show; show.prepare(); [builds._warn('full') for _ in "
        "range(2)]"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], env=environ, cwd=ROOT, stderr=full, check=False
        )
    assert done.returncode == 0


ALL_CLOSED = ">&- 2>&- <&-"


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [
        *product([("status",), ("--version",)], [0], [">&-", "2>&-", "<&-", ALL_CLOSED]),
        *product([("status", "absent")], [2], [">&-", "2>&-", "<&-", ALL_CLOSED]),
        (("plan", *SELECT), 0, ALL_CLOSED),
        (("plan", *SELECT, "--json"), 0, ">&-"),
        (("plan", "--variant", "no"), 2, "2>&-"),
    ],
)
def test_an_output_that_was_closed_before_the_start(arguments, code, closed):
    command = f'exec "{sys.executable}" -m farm.cli.main {" ".join(arguments)} {closed}'
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", command], env=environ, cwd=ROOT, capture_output=True, check=False
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (code, False)


def test_no_file_takes_the_number_of_a_closed_output():
    """Else a program that the farm starts would print into it."""
    code = (
        "import os, sys; from farm.cli import show; show.prepare(); "
        "os._exit(os.open(sys.argv[1], os.O_RDONLY))"
    )
    command = f'exec "{sys.executable}" -c "{code}" /dev/null >&- 2>&- <&-'
    done = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, check=False
    )
    assert done.returncode > 2


@pytest.mark.parametrize("command", ["status", "plan --variant sm35-avx-py311", "init", "detect"])
def test_a_folder_that_was_removed(tmp_path, command):
    gone = tmp_path / "gone"
    gone.mkdir()
    typed = f'rmdir {gone}; exec "{sys.executable}" -m farm.cli.main {command}'
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", typed], env=environ, cwd=gone, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "farm: the folder in which farm was started is no longer there",
        "  next: cd into another one",
    ]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupt_is_exit_code_130(name):
    # Below nohup, or in a shell's background, the tests have it ignored, and so would what they
    # start.
    default = "default_int_handler" if name == "SIGINT" else "SIG_DFL"
    # Short sleeps: Python does not see a signal that comes just before a sleep until that is over.
    body = "print('go', flush=True); [time.sleep(0.05) for _ in range(12000)]"
    code = (
        f"import signal; signal.signal(signal.{name}, "
        f"signal.{default})\n{ENDLESS.format(body=body)}"
    )
    process = start("-c", code, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"go\n"
    process.send_signal(getattr(signal, name))
    assert ended(process) == (130, "farm: interrupted; nothing incomplete was published\n")


# A command that has run once, so that all is imported, and runs again with a limit little above
# what the process has.
LIMITED = """
import resource, sys, threading
from pathlib import Path
from farm.cli.main import main
command = sys.argv[2:]
code = main(command)
assert code == 0, code
threading.stack_size(256 << 20)  # more than the limit leaves, and than a stack that the C library kept
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (24 << 20), resource.RLIM_INFINITY))
sys.stdout.flush()
sys.exit(main(command))
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="address space is limited and read as Linux does"
)
def test_a_limit_of_memory_is_no_traceback(tmp_path):
    (tmp_path / "catalog.json").write_text("{}")
    command = ("index", "check", "--index", str(tmp_path))  # a read of 64 MiB at most
    process = start("-c", LIMITED, "_", *command, stdout=subprocess.PIPE)
    code, err = ended(process)
    assert (code, err.splitlines()[0]) == (9, "farm: the system gave no more memory")
    assert "limit" in err.splitlines()[1]


def test_nohup_outlives_its_terminal():
    body = "print('go', flush=True); sys.stdin.readline(); print('here still')"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = start(
        "-c",
        f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{ENDLESS.format(body=body)}",
        **pipes,
    )
    assert process.stdout.readline() == b"go\n"
    process.send_signal(signal.SIGHUP)
    process.stdin.close()
    assert process.stdout.readline() == b"here still\n"
    assert ended(process)[1] == ""
