"""Runs a program and appends what it prints to the file that FARM_LOG names. Ends with the
program's exit code.

Usage: logged.py PROGRAM [ARGUMENT...]. Ends with 9, and starts nothing, where the log cannot be
opened. With FARM_MINUTES and FARM_SHOW=ninja, as for the compilers of a build, the program and all
that it started are ended after so many minutes of the whole build (FARM_BEGAN, in seconds since
1970, when it began), with 75: the next run goes on with what is compiled.

On Windows it has the file that FARM_BUSY names for itself alone meanwhile, by which another build
notices this one. The file goes with this program, however that ends; what the program leaves
running does not have it.

Not cmd's own `>>`: all that the program starts would hold the log open, and a compiler's helpers
(mspdbsrv, vctip) go on after it. cmd opens a log for itself alone: while another has it, cmd starts
no program that is to write there, and keeps the exit code of the program before.
"""

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from text import quoted_line  # farm.base.text

BUSY_S = 10.0
EVERY_S = 60.0
LONGEST = 1 << 15  # bytes of a line; a longer one becomes several
TIME_IS_OVER = 75  # EX_TEMPFAIL of sysexits.h
STEP = re.compile(rb"\[(\d{1,6})/(\d{1,6})\]")


class Progress:
    """What the window says each minute: the step, how long its program runs, Ninja's `[120/6000]`
    and the time left.
    """

    def __init__(self, step: str, now: float) -> None:
        self.step = step
        self.start = now
        self.first = (now, 0)
        self.last: tuple[int, int] | None = None

    def read(self, text: bytes, now: float) -> None:
        """Takes Ninja's lines in. It begins to count again with each part of a build."""
        for done, of in [tuple(map(int, found)) for found in STEP.findall(text)][-1:]:
            if self.last is None or done < self.last[0]:
                self.first = (now, done)
            self.last = (done, of)

    def line(self, now: float) -> str:
        text = f"step {self.step}, {int((now - self.start) / 60)} min"
        if self.last is None:
            return text
        (done, of) = self.last
        (since, before) = self.first
        return f"{text}: [{done}/{of}]{left(of - done, done - before, now - since)}"


def left(steps: int, done: int, seconds: float) -> str:
    """The time for the other steps, if they take as long as those before; empty before the first is
    done.
    """
    if done <= 0:
        return ""
    minutes = int(steps * seconds / done / 60)
    return f", about {minutes // 60} h {minutes % 60} min left"


def say(text: str) -> None:
    """A line in the window, and its title."""
    print(f"{time.strftime('%H:%M')} farm: {text}", flush=True)
    if sys.platform == "win32":
        ctypes.windll.kernel32.SetConsoleTitleW(f"farm {text}")


class Log:
    """The log: one that cannot be written any more does not stop the build."""

    def __init__(self, path: str) -> None:
        self.show = os.environ.get("FARM_SHOW")
        self.progress = Progress(os.environ.get("FARM_STEP", ""), time.monotonic())
        self.stream = Path(path).open("ab", buffering=0)  # noqa: SIM115 - closed when this program ends
        self.broken = False

    def write(self, text: bytes) -> None:
        if self.show == "all":
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        elif self.show:
            self.progress.read(text, time.monotonic())
        try:
            self.stream.write(text)
        except OSError as error:
            if not self.broken:
                print(
                    f"logged.py: {self.stream.name}: {error}; is the disk full?",
                    file=sys.stderr,
                    flush=True,
                )
            self.broken = True


def copy(source: int, log: Log, end: bytes) -> None:
    """Writes what comes through a pipe into the log until `end` comes, by lines: none of them looks
    like one of the farm's own.
    """
    rest = b""
    while True:
        rest += os.read(source, 1 << 16)
        output, at_end, _ = rest.partition(end)
        if at_end:
            log.write(quoted(output))
            return
        ready = rest.rfind(b"\n") + 1
        if len(rest) - ready > LONGEST:
            # A line without end; what may be the beginning of `end` waits for more.
            ready = len(rest) - len(end)
        log.write(quoted(rest[:ready]))
        rest = rest[ready:]


def quoted(output: bytes) -> bytes:
    """Marks the lines of a program that look like lines of the farm."""
    lines = [f"{quoted_line(line)}{os.linesep}".encode() for line in output.split(b"\n")[:-1]]
    last = quoted_line(output.rpartition(b"\n")[2])
    if last:
        lines.append(f"{last}{os.linesep}".encode())
    return b"".join(lines)


def hold(path: str) -> None:
    """Has a file for this program alone until it ends. No other build is there: a virus scanner may
    be, for seconds.

    Raises:
        OSError: Another program has it.
    """
    if sys.platform == "win32":
        create = ctypes.WinDLL("kernel32", use_last_error=True).CreateFileW
        create.restype = ctypes.c_void_p
        none = ctypes.c_void_p(None)
        write = 0x40000000
        always = 2
        goes = 0x04000000  # FILE_FLAG_DELETE_ON_CLOSE
        end = time.monotonic() + BUSY_S
        while (
            create(ctypes.c_wchar_p(path), write, 0, none, always, goes, none)
            == ctypes.c_void_p(-1).value
        ):
            if time.monotonic() > end:
                raise ctypes.WinError(ctypes.get_last_error())
            time.sleep(0.1)


def seconds_left() -> float:
    """Return for how long the program may run."""
    minutes = os.environ.get("FARM_MINUTES", "")
    if not minutes or os.environ.get("FARM_SHOW") != "ninja":
        return float("inf")
    began = float(os.environ.get("FARM_BEGAN") or time.time())
    return began + 60 * float(minutes) - time.time()


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started."""
    if sys.platform == "win32":
        command = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
        subprocess.run(command, check=False, capture_output=True)
    process.kill()
    process.wait()


def main(words: list[str]) -> int:
    """The program's exit code, negative as cmd shows it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the program too, which then ends
    end = os.urandom(16)
    try:
        if busy := os.environ.get("FARM_BUSY"):
            hold(busy)
    except OSError as error:
        print(f"logged.py: {busy}: {error}; does another build run? one at a time", file=sys.stderr)
        return 9
    try:
        log = Log(os.environ["FARM_LOG"])
        source, sink = os.pipe()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
    except OSError as error:
        print(f"logged.py: {words[0]} was not started: {error}", file=sys.stderr)
        return 9
    copier = threading.Thread(target=copy, args=(source, log, end))
    copier.start()
    code = None
    left = seconds_left()
    deadline = time.monotonic() + left
    while code is None:
        try:
            code = process.wait(max(0.0, min(EVERY_S, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            say(log.progress.line(time.monotonic()))
            if time.monotonic() >= deadline:
                end_all(process)
                code = TIME_IS_OVER
    # What it left running holds the pipe as well, maybe for hours: the pipe's end is not waited
    # for.
    os.write(sink, end)
    copier.join()
    return code if code < 1 << 31 else code - (1 << 32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
