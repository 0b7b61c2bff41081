"""Unix programs for Windows ones under Wine: `git.exe` and `curl.exe` that are this machine's git and curl.

What is real: the programs. What is not: that they are Windows' builds of them.
"""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.wine.windows_python import GCC, PARTS, TIMEOUT_S, windows_path


class Relay:
    """Runs what relay.c asks for. `exe` is the program to copy under each name; `asked` are the commands so far.

    `environment` is added to the programs' own. What was started ends with `kill`, as on a machine that loses power.
    """

    def __init__(self, place: Path, c: Path) -> None:
        self.place, self.c = place, c
        self.exe = place / "relay.exe"
        self.environment: dict[str, str] = {}
        self.asked: list[list[str]] = []
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
        self.asked.append(command)
        made = {kind: request.with_suffix(f".{kind}") for kind in ("out", "err", "in")}
        made["in"].write_bytes(body)
        with made["in"].open("rb") as source, made["out"].open("wb") as out, made["err"].open("wb") as err:
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


def kill_all(mark: Mapping[str, str]) -> None:
    """Kills every process whose environment has these variables: a build and all that it started, at once."""
    wanted = {f"{name}={value}".encode() for name, value in mark.items()}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted <= set(path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue
