"""Unix programs for Windows ones under Wine: `git.exe` and `curl.exe` that are this machine's git
and curl.

What is real: the programs. What is not: that they are Windows' builds of them.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.wine.windows_python import GCC, PARTS, TIMEOUT_S, windows_path


class Relay:
    """Runs what relay.c asks for. `exe` is the program to copy under each name; `commands` are
    those so far.

    `environment` is added to the programs' own. What was started ends with `kill`, as on a machine
    that loses power.
    """

    def __init__(self, place: Path, c: Path) -> None:
        self.place, self.c = place, c
        self.exe = place / "relay.exe"
        self.environment: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.turn = threading.Lock()
        macro = windows_path(place).replace("\\", "\\\\") + "\\\\"
        command = [
            GCC,
            "-municode",
            "-O1",
            "-static",
            f'-DPLACE=L"{macro}"',
            "-o",
            str(self.exe),
            str(PARTS / "relay.c"),
        ]
        subprocess.run(command, check=True, timeout=TIMEOUT_S)

    def _unix(self, word: str) -> str:
        found = re.match(r"([CZcz]):[\\/]?", word)
        if not found:
            return word
        root = self.c if found[1] in "Cc" else Path("/")
        return str(root / word[found.end() :].replace("\\", "/"))

    def _start(self, request: Path) -> None:
        head, _, body = request.read_bytes().partition(b"\0\0")
        folder, name, *words = head.decode().split("\0")
        request.unlink()
        command = [name.lower().removesuffix(".exe"), *map(self._unix, words)]
        self.commands.append(command)
        made = {kind: request.with_suffix(f".{kind}") for kind in ("out", "err", "in")}
        made["in"].write_bytes(body)
        with (
            made["in"].open("rb") as source,
            made["out"].open("wb") as out,
            made["err"].open("wb") as err,
        ):
            self.running[request.stem] = subprocess.Popen(
                command,
                cwd=self._unix(folder),
                env={**os.environ, "LC_ALL": "C.UTF-8", **self.environment},
                stdin=source,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def serve(self, end: threading.Event) -> None:
        while not end.wait(0.02):
            with self.turn:
                self._look()

    def _look(self) -> None:
        for request in self.place.glob("*.request"):
            self._start(request)
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                new = self.place / f"{name}.answer"
                new.write_text(str(process.returncode))
                new.replace(self.place / f"{name}.done")

    def kill(self) -> None:
        with self.turn:
            for request in self.place.glob("*.request"):  # asked for, and not begun
                request.unlink()
            for process in self.running.values():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self.running.clear()


@contextmanager
def relay(place: Path, c: Path) -> Iterator[Relay]:
    """A relay that runs, with its files in `place`; `c` is the folder of Wine's disk."""
    made, end = Relay(place, c), threading.Event()
    thread = threading.Thread(target=made.serve, args=(end,))
    thread.start()
    try:
        yield made
    finally:
        end.set()
        thread.join()
        made.kill()


def kill_all(mark: Mapping[str, str], seconds: float = TIMEOUT_S) -> None:
    """Kills every process whose environment has these variables: a build and all that it started.

    What is started while the processes are looked through can be missed, so they are until none is
    left.
    """
    wanted = {f"{name}={value}".encode() for name, value in mark.items()}
    end = time.monotonic() + seconds
    while _killed(wanted):
        assert time.monotonic() < end, f"not killed within {seconds} s"
        time.sleep(0.02)


def _killed(wanted: set[bytes]) -> bool:
    """Whether one was there; one that is just replaced by another program has no environment yet,
    and counts as one.
    """
    found = False
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
            if wanted <= set(environment.split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)
                found = True
            elif not environment:
                found = found or _begins(path.parent)
        except OSError:
            continue
    return found


def _begins(process: Path) -> bool:
    """Whether it has no arguments either, but memory, which a kernel's thread or a dead process has
    not.
    """
    return not (process / "cmdline").read_bytes() and b"VmRSS" in (process / "status").read_bytes()


def ended(process: subprocess.Popen[bytes], seconds: float = TIMEOUT_S) -> None:
    """Waits for a process that was killed, not for the end of its pipe.

    A process that dies while it hands the pipe to Wine's server leaves it there, until the server
    ends.
    """
    process.wait(seconds)
    if process.stdout:
        process.stdout.close()
