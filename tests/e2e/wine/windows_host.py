"""The host engine on Windows, as a test on Linux sees it: the engine runs in a Python for Windows
under Wine.

Every call goes to a controller there (windows_parts/controller.py), which can be killed and started
anew. Jobs are Python scripts: Windows has no sh.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path, PureWindowsPath
from typing import Any

from farm.base import errors
from farm.engines import transfer
from farm.engines.base import Capacity, Cause, Job, Observation
from farm.engines.host import HostEngine
from tests.e2e.wine.windows_python import PARTS, WindowsPython, windows_path

ROOT = Path(__file__).parents[3]
SECRET = {"AWS_SECRET_ACCESS_KEY": "secret-for-tests"}
PRELUDE = r"""
import ctypes, os, pathlib, shutil, subprocess, sys, time
root = pathlib.Path(os.environ["FARM_ROOT"])
def say(text, to=sys.stdout):
    to.buffer.write(text.encode() + b"\n")
    to.flush()
"""


def unix_path(text: str) -> Path:
    path = PureWindowsPath(text)
    assert path.drive == "Z:", path
    return Path("/", *path.parts[1:])


class WindowsHost:
    """See `farm.engines.base.Engine`; `python` is the Python for Windows, `root` the engine's
    folder.
    """

    name = "host"
    poll_s = 0.2
    traits = HostEngine.traits

    def __init__(self, python: WindowsPython, root: Path) -> None:
        self.python, self.root = python, root
        environment = {"PYTHONPATH": windows_path(ROOT), **SECRET}
        self.process = python.start(PARTS / "controller.py", root, env=environment, cwd=root.parent)

    def close(self) -> None:
        if self.process.poll() is None:
            with self.process:
                self.process.stdin.close()
                self.process.wait(60)

    def command(self, script: str) -> tuple[str, ...]:
        """The command of a job that runs a Python script."""
        return (windows_path(self.python.exe), "-c", PRELUDE + script)

    def _ask(self, call: str, *arguments: Any) -> Any:
        self.process.stdin.write(json.dumps({"call": call, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"{call}: the controller ended: {self.process.stderr.read()}")
        answer = json.loads(line)
        if "error" in answer:
            raised = getattr(errors, answer["error"], None) or getattr(transfer, answer["error"])
            raise raised(answer["message"], hint=answer["hint"])
        return answer["result"]

    def capacity(self) -> Capacity:
        return Capacity(**self._ask("capacity"))

    def submit(self, job: Job) -> str:
        fields = asdict(job) | {
            "inputs": {target: windows_path(path) for target, path in job.inputs.items()}
        }
        return self._ask("submit", fields)

    def find(self, labels: Mapping[str, str]) -> str | None:
        return self._ask("find", dict(labels))

    def observe(self, handle: str) -> Observation:
        seen = self._ask("observe", handle)
        return Observation(**{**seen, "cause": Cause[seen["cause"]] if seen["cause"] else None})

    def logs(self, handle: str, since: int = 0) -> Iterator[bytes]:
        log = self._ask("open_log", handle, since)
        try:
            while (piece := self._ask("next_piece", log)) is not None:
                yield base64.b64decode(piece)
        finally:
            self._ask("close_log", log)

    def cancel(self, handle: str) -> None:
        self._ask("cancel", handle)

    def collect(self, handle: str, dest: Path, max_bytes: int) -> list[Path]:
        return [
            unix_path(text) for text in self._ask("collect", handle, windows_path(dest), max_bytes)
        ]

    def release(self, handle: str) -> None:
        self._ask("release", handle)

    def discard(self, volume: str) -> None:
        self._ask("discard", volume)

    def alive(self, pid: int) -> bool:
        return self._ask("started", pid) != ""

    def kill(self, pid: int) -> None:
        """Ends one process, as the task manager does."""
        self._ask("kill", pid)

    def die(self) -> None:
        """Kills the controller. Under Wine a job keeps its pipes open: nobody reads them to the
        end.
        """
        with self.process:
            self.process.kill()
