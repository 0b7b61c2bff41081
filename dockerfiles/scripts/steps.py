"""Runs the steps of build.sh one after another, and writes `farm: step NAME` before each.

Usage: steps.py [SECONDS], in a container with SECONDS. `build.sh begin` prints the names of the
steps, `build.sh NAME` carries one out. Ends with the exit code of the step that failed, with 124
after SECONDS.

A step runs programs of others. What they print comes through a pipe, and a line that looks like one
of the farm is marked as a quotation. In a container this is process 1, so that no other process
there has the log, and Linux does not open its output by /proc/1/fd (prctl(2), PR_SET_DUMPABLE),
unless who asks has rights over all processes.

Standard library alone, for Python 3.9; `text.py` is `farm.base.text`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from text import quoted_line

PR_SET_DUMPABLE = 4  # linux/prctl.h
TIMED_OUT = 124  # as timeout(1) of coreutils
GRACE_S = 30.0  # between SIGTERM and SIGKILL
LONGEST = 1 << 15  # bytes of a line; a longer one becomes several
HOLDER = ".farm-holder"


def keep_private() -> None:
    """Refuse this process's output, memory and environment to other processes of its user.

    Raises:
        OSError: the system refuses it.
    """
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(
        PR_SET_DUMPABLE, 0, 0, 0, 0
    ):
        raise OSError(ctypes.get_errno(), "PR_SET_DUMPABLE cannot be set")


def write(text: str) -> None:
    """Write a line into the log."""
    data = memoryview(f"{text}\n".encode())
    while data:
        data = data[os.write(1, data) :]


class Output:
    """What a step prints: read from a pipe, written line by line."""

    def __init__(self) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self.ended = False
        self._tail = b""

    def copy(self) -> bool:
        """Write the lines that are there by now; return False at the end of the pipe."""
        while not self.ended:
            try:
                piece = os.read(self.source, 1 << 16)
            except BlockingIOError:
                return True
            if not piece:
                self.flush()
                self.ended = True
                break
            *lines, self._tail = (self._tail + piece).split(b"\n")
            for line in lines:
                self._write(line)
            while len(self._tail) > LONGEST:
                self._write(self._tail[:LONGEST])
                self._tail = self._tail[LONGEST:]
        return False

    def flush(self) -> None:
        """Write a last line that has no end."""
        if self._tail:
            self._write(self._tail)
            self._tail = b""

    def _write(self, line: bytes) -> None:
        write(quoted_line(line))


class Runner:
    """Runs one step at a time, reaps every process, and passes signals on."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._child = 0  # the step's process and its group
        self._code: int | None = None
        self._stopped_by = 0
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_end, False)
        self._selector.register(self._wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def run(self, command: list[str], output: Output) -> int:
        """Run a command to its end and return its exit code, 128 + N where signal N ended it."""
        if self._stopped_by:
            return 128 + self._stopped_by
        self._code = None
        process = subprocess.Popen(
            command, stdout=output.sink, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._child = process.pid
        os.close(output.sink)
        self._selector.register(output.source, selectors.EVENT_READ, output)
        code = self._wait()
        # What the step left running can change nothing of the next one.
        self._signal(signal.SIGKILL)
        output.copy()
        output.flush()
        process.returncode = code  # reaped here, not by Popen
        if self._stopped_by:
            return 128 + self._stopped_by
        return code

    def _wait(self) -> int:
        timed_out = False
        deadline = self._deadline
        while self._code is None:
            timeout = max(0.0, deadline - time.monotonic())
            for key, _ in self._selector.select(None if timeout == float("inf") else timeout):
                if key.data is None:
                    self._reap()
                elif not key.data.copy():
                    self._selector.unregister(key.fd)
                    os.close(key.fd)
            if self._code is None and time.monotonic() >= deadline:
                self._signal(signal.SIGKILL if timed_out else signal.SIGTERM)
                timed_out = True
                deadline = time.monotonic() + GRACE_S
        if timed_out:
            return TIMED_OUT
        return self._code

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 12)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._child:
                    code = os.waitstatus_to_exitcode(status)
                    self._code = 128 - code if code < 0 else code

    def _signal(self, number: int) -> None:
        if self._child:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, number)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped_by = number
        if self._code is None:
            self._signal(number)


def lock(tree: Path) -> int:
    """Wait until no other build uses a tree, and have it until this process ends.

    Returns:
        A descriptor, which holds the lock.
    """
    tree.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(tree, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with contextlib.suppress(OSError):
            holder = (tree / HOLDER).read_bytes()[:400]
            write(f"farm: waits for another build in the same tree: {quoted_line(holder)}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    (tree / HOLDER).write_text(f"{os.environ.get('FARM_RUN', 'a run')}\n", encoding="utf-8")
    return descriptor


def main(arguments: list[str]) -> int:
    """Run the steps, and return the exit code."""
    seconds = float("inf")
    if arguments:
        # In a container. On a machine itself what ends a job finds its processes by their
        # environment, and the log is a file of the same user anyway.
        keep_private()
        seconds = float(arguments[0])
    runner = Runner(time.monotonic() + seconds)
    script = str(Path(__file__).with_name("build.sh"))
    lock(Path(os.environ.get("FARM_ROOT", "/farm"), "src"))
    beginning = subprocess.run(["bash", script, "begin"], stdout=subprocess.PIPE, check=False)
    if beginning.returncode != 0:
        return beginning.returncode
    for name in beginning.stdout.decode().split():
        write(f"farm: step {name}")
        code = runner.run(["bash", script, name], Output())
        if code != 0:
            return code
    write("farm: done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
