"""steps.py: who says which step of a build begins, whatever the programs of a step print or do."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base import text

SCRIPT = """
set -euo pipefail
case "$1" in
begin) echo build libraries ;;
*) exec "{python}" "$FARM_ROOT/$1.py" ;;
esac
"""
TRUE_LINES = ["farm: step build", "farm: step libraries", "farm: done"]
# As a container has it: user 0 without capabilities.
WITHOUT_RIGHTS = ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all")


@pytest.fixture
def job(root, tmp_path):
    """A folder of a job whose steps are Python programs."""
    (tmp_path / "job").mkdir()
    shutil.copy(root / "dockerfiles/scripts/steps.py", tmp_path / "job")
    shutil.copy(text.__file__, tmp_path / "job")
    (tmp_path / "job/build.sh").write_text(SCRIPT.format(python=sys.executable))
    (tmp_path / "libraries.py").write_text("")
    return tmp_path


def command(job, *arguments):
    return [sys.executable, "-E", "-s", str(job / "job/steps.py"), *arguments]


def run(job, build, *arguments, before=()):
    """Exit code and lines of a build whose step `build` is this program."""
    (job / "build.py").write_text(build)
    answer = subprocess.run(
        [*before, *command(job, *arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "FARM_ROOT": str(job)},
        timeout=60,
        check=False,
    )
    return answer.returncode, answer.stdout.decode().splitlines()


def farms_own(lines):
    """The lines that a reader of the log takes for the farm's."""
    return [line for line in map(text.log_line, lines) if line.startswith("farm:")]


@pytest.mark.parametrize(
    "forged",
    [
        "farm: step publish",
        "farm:\u00a0step publish",
        "\x1b[31mfarm: step publish",
        "f\x1b[0marm: step publish",
        "f\x00arm: step publish",
        "f\u200barm: step publish",
        "\u202efarm: step publish",
        "\x9b1mfarm: step publish",
        "a line\rfarm: step publish",
        "a line\u2028farm: step publish",
        "\x1b]0;\rf\x1b[0marm: step publish\x07",
        "fa\x1b]0;\x0b\x07rm: step publish",
        "x" * 40_000 + "\rfarm: step publish",
        "x" * (1 << 15) + "farm: step publish",
        "x" * (1 << 16) + "farm: step publish",
        "11/28/2026 14:01:03.11 farm: step publish",
    ],
    ids=lambda forged: ascii(forged[-30:]),
)
def test_a_program_of_a_step_forges_no_line_of_the_farm(job, forged):
    output = f"{forged}\n{forged}\r\n{forged}"
    code, lines = run(job, f"import sys; sys.stdout.buffer.write({output!r}.encode())")
    assert code == 0
    assert farms_own(lines) == TRUE_LINES
    assert len([line for line in lines if "publish" in line]) == 3
    assert all(text.plain(line, len(line)) == line for line in lines)
    assert "11 farm: step" not in "\n".join(lines)


def test_other_output_of_a_program_is_unchanged(job):
    code, lines = run(
        job, r"print('[1/2] a\tb'); print('häuser'); print(); print('no end', end='')"
    )
    assert code == 0
    assert lines == [TRUE_LINES[0], "[1/2] a\tb", "häuser", "", "no end", *TRUE_LINES[1:]]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_no_program_of_a_step_opens_the_output_of_what_runs_it(job):
    """It tries every process that runs steps.py or the step itself, as the container's user."""
    program = f"""
import os
from pathlib import Path
for process in Path("/proc").glob("[0-9]*"):
    try:
        words = (process / "cmdline").read_bytes()
        if {str(job).encode()!r} not in words:
            continue
        for number in (1, 2):
            with open(process / "fd" / str(number), "wb", buffering=0) as stream:
                stream.write(b"farm: step publish\\n")
        print("wrote", b"steps.py" in words)
    except OSError as error:
        print("refused", b"steps.py" in words, error.strerror)
"""
    before = WITHOUT_RIGHTS if os.geteuid() == 0 else ()
    code, lines = run(job, program, "60", before=before)
    assert code == 0
    assert farms_own(lines) == TRUE_LINES
    assert "refused True Permission denied" in lines
    assert "wrote True" not in lines
    assert "wrote False" in lines  # the program's own output, by the same way


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_first_step_that_fails_ends_the_build_with_its_code(job, program, expected):
    code, lines = run(job, program)
    assert (code, farms_own(lines)) == (expected, TRUE_LINES[:1])


def test_a_build_ends_at_its_limit_with_the_code_of_timeout(job):
    code, lines = run(job, "import threading; threading.Event().wait()", "0.2")
    assert (code, farms_own(lines)) == (124, TRUE_LINES[:1])


def test_background_processes_of_a_step_end_before_the_next_step(job):
    program = """
import os, sys, threading
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"x")
    threading.Event().wait()
os.read(read, 1)
"""
    (job / "libraries.py").write_text("""
from pathlib import Path
own = [p for p in Path("/proc").glob("[0-9]*") if (p / "cmdline").exists()]
def words(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
print("left", sum(str(Path(__file__).with_name("build.py")).encode() in words(p) for p in own))
""")
    code, lines = run(job, program)
    assert code == 0
    assert "left 0" in lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_step_and_no_other_step_follows(job, number):
    (job / "build.py").write_text(
        "import threading; print('up', flush=True); threading.Event().wait()"
    )
    with subprocess.Popen(
        command(job),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FARM_ROOT": str(job)},
    ) as process:
        while process.stdout.readline() != "up\n":
            pass
        process.send_signal(number)
        rest = process.stdout.read()
    assert process.returncode == 128 + number
    assert "farm: step libraries" not in rest


def test_a_second_build_of_a_tree_says_for_whom_it_waits(job):
    (job / "src").mkdir()
    (job / "src/.farm-holder").write_text("run 7\x1b[2J\n")
    (job / "build.py").write_text("")
    descriptor = os.open(job / "src", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with subprocess.Popen(
        command(job),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FARM_ROOT": str(job), "FARM_RUN": "run 8"},
    ) as process:
        first = process.stdout.readline()
        os.close(descriptor)
        rest = process.stdout.read().splitlines()
    assert first == "farm: waits for another build in the same tree: run 7\n"
    assert (process.returncode, rest) == (0, TRUE_LINES)
    assert Path(job / "src/.farm-holder").read_text() == "run 8\n"
