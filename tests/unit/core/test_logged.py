"""logged.py: what a program prints comes into the log, and what it leaves running holds nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.base import causes, text

LEAVES = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=open(sys.argv[1]))
print("left", left.pid)
"""


@pytest.fixture
def logged(root, tmp_path):
    """Runs words by logged.py: exit code, what it says itself, the log."""
    log = tmp_path / "build.log"
    log.write_bytes(b"step build\n")
    shutil.copy(root / "dockerfiles/scripts/logged.py", tmp_path)
    shutil.copy(text.__file__, tmp_path)

    def run(*words, target=log):
        command = [sys.executable, tmp_path / "logged.py", *words]
        given = {"env": {**os.environ, "FARM_LOG": str(target)}, "timeout": 60}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
        return done.returncode, done.stdout + done.stderr, log.read_bytes()

    return run


def test_the_log_grows_by_what_is_printed_and_the_code_is_the_programs(logged):
    words = ("-c", "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)")
    assert logged(sys.executable, "-u", *words) == (7, "", b"step build\none\ntwo\n")
    big = ("-c", "print('a line\\n' * 300_000, end='')")
    assert logged(sys.executable, *big) == (
        0,
        "",
        b"step build\none\ntwo\n" + b"a line\n" * 300_000,
    )


@pytest.mark.parametrize(
    "forged",
    [
        b"11/28/2026 14:01:04.11 farm: step libraries",
        b"14:03 f\x00arm: step libraries",
        b"14:03 \x1b[1mfarm: step libraries",
        b"cl.exe: \xfc\r14:03 farm: step libraries",
        b"\r14:03 farm: step libraries",
    ],
)
@pytest.mark.parametrize("fill", [0, 70_000])
def test_no_program_writes_a_line_that_looks_like_the_farms(logged, forged, fill):
    program = f"""
import sys
for end in (b"\\n", b"\\r\\n", b""):
    sys.stdout.buffer.write(b"x" * {fill} + {forged!r} + end)
"""
    _, _, log = logged(sys.executable, "-c", program)
    lines = causes.printable_lines(log)
    assert not [line for line in lines if causes.OWN_LINE.match(line)]
    assert len([line for line in lines if line.endswith("step libraries")]) == 3


def test_a_line_in_the_systems_own_encoding_is_readable(logged):
    _, _, log = logged(sys.executable, "-c", r"import os; os.write(1, b'f\xfcr x.cpp\r\n')")
    assert log.decode().splitlines()[-1] == "für x.cpp"


def test_words_reach_the_program_as_they_are(logged):
    words = ("a b", 'say "x"', "back\\slash\\", "git reset && git clean", "")
    code, _, log = logged(sys.executable, "-c", "import sys; print(sys.argv[1:])", *words)
    assert (code, log.splitlines()[-1]) == (0, repr(list(words)).encode())


def test_a_build_ends_when_its_time_is_over(logged, monkeypatch):
    monkeypatch.setenv("FARM_SHOW", "ninja")
    monkeypatch.setenv("FARM_MINUTES", "300")
    monkeypatch.setenv("FARM_BEGAN", "1000")  # seconds since 1970
    code, output, log = logged(sys.executable, "-c", "import threading; threading.Event().wait()")
    assert (code, "farm: step" in output) == (75, True)
    assert log.startswith(b"step build")


@pytest.mark.parametrize("show", ["all", ""])
def test_the_time_limit_applies_only_to_the_build_step(logged, monkeypatch, show):
    monkeypatch.setenv("FARM_SHOW", show)
    monkeypatch.setenv("FARM_MINUTES", "300")
    monkeypatch.setenv("FARM_BEGAN", "1000")
    assert logged(sys.executable, "-c", "print()")[0] == 0


def test_background_processes_are_not_waited_for(logged, tmp_path):
    """It has the program's output, as a compiler's helper has, until this test closes what it
    reads.
    """
    end = tmp_path / "end"
    os.mkfifo(end)
    keep = os.open(end, os.O_RDWR)
    try:
        code, output, log = logged(sys.executable, "-c", LEAVES, str(end))
    finally:
        os.close(keep)
    assert (code, output, b"left " in log) == (0, "", True)


def test_a_silent_program_shows_its_step(root, tmp_path):
    """It waits until the word was read."""
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    start = "import sys, logged; logged.EVERY_S = 0.01; sys.exit(logged.main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        start,
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1])",
        str(waits),
    ]
    scripts = f"{root / 'dockerfiles/scripts'}:{Path(text.__file__).parent}"
    given = {"PYTHONPATH": scripts, "FARM_STEP": "source", "FARM_LOG": str(tmp_path / "log")}
    with subprocess.Popen(
        command, env={**os.environ, **given}, stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        assert line
        os.close(os.open(waits, os.O_WRONLY))
        process.stdout.read()
    assert (process.returncode, line.partition(" farm: ")[2]) == (0, "step source, 0 min\n")


def test_where_there_is_no_log_nothing_is_started(logged, tmp_path):
    made = tmp_path / "made"
    code, output, _ = logged(
        sys.executable, "-c", f"open({str(made)!r}, 'w')", target=tmp_path / "away/build.log"
    )
    assert (code, "was not started" in output, made.exists()) == (9, True, False)
    code, output, _ = logged(tmp_path / "no program")
    assert (code, "no program was not started" in output) == (9, True)


def test_a_full_disk_is_reported_once_and_the_program_continues(logged):
    code, output, _ = logged(
        sys.executable, "-uc", "print(1); print(2); raise SystemExit(3)", target="/dev/full"
    )
    assert (code, output.count("is the disk full?")) == (3, 1)
