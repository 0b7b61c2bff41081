"""Runs a program and appends what it prints to the file that FARM_LOG names. Ends with the program's exit code.

Usage: logged.py PROGRAM [ARGUMENT...]. Ends with 9, and starts nothing, where the log cannot be opened.

Not cmd's own `>>`: all that the program starts would hold the log open, and a compiler's helpers (mspdbsrv, vctip) go
on after it. cmd opens a log for itself alone: while another has it, cmd starts no program that is to write there, and
keeps the exit code of the program before.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path


class Log:
    """The log: one that cannot be written any more does not stop the build."""

    def __init__(self, path: str) -> None:
        self.stream = Path(path).open("ab", buffering=0)  # noqa: SIM115 - closed when this program ends
        self.broken = False

    def write(self, text: bytes) -> None:
        try:
            self.stream.write(text)
        except OSError as error:
            if not self.broken:
                print(f"logged.py: {self.stream.name}: {error}; is the disk full?", file=sys.stderr, flush=True)
            self.broken = True


def copy(source: int, log: Log, end: bytes) -> None:
    """Writes what comes through a pipe into the log until `end` comes."""
    held = b""
    while True:
        held += os.read(source, 1 << 16)
        text, found, _ = held.partition(end)
        if found:
            log.write(text)
            return
        # What may be the beginning of the end waits for the rest.
        keep = next((size for size in range(len(end) - 1, 0, -1) if held.endswith(end[:size])), 0)
        ready = len(held) - keep
        log.write(held[:ready])
        held = held[ready:]


def main(words: list[str]) -> int:
    """The program's exit code, negative as cmd shows it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the program too, which then ends
    end = os.urandom(16)
    try:
        log = Log(os.environ["FARM_LOG"])
        source, sink = os.pipe()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    except OSError as error:
        print(f"logged.py: {words[0]} was not started: {error}", file=sys.stderr)
        return 9
    copier = threading.Thread(target=copy, args=(source, log, end))
    copier.start()
    code = process.wait()
    # What it left running holds the pipe as well, maybe for hours: the pipe's end is not waited for.
    os.write(sink, end)
    copier.join()
    return code if code < 1 << 31 else code - (1 << 32)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
