"""A real build of PyTorch, killed at several points: `python tests/bench/kills.py [--variant V] [--steps N]`.

Runs `farm submit --channel debian-1.13.1` in a project of its own, and kills the controller, the container, or both,
first before anything is compiled, then after each N objects. Every time the same command is given again. Prints what
ninja had done at each kill, and which objects were compiled twice. The build is not carried to its end. Needs a Docker
engine; makes the image and fetches the sources first. `tests/e2e/docker/test_resume.py` does the same with a small
package, to its end.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from farm.engines.docker import connect  # noqa: E402

STEP = re.compile(r"^\[(\d+)/(\d+)\] Building \w+ object (\S+)", re.MULTILINE)
POINTS = ("controller", "both", "container", "asked", "both", "controller")
WAIT_S = 1800


def submit(project: Path, variant: str, log: Path) -> "subprocess.Popen[bytes]":
    words = ["submit", "--channel", "debian-1.13.1", "--variant", variant, "--no-publish"]
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(project), *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CI": "true"}
    with log.open("ab") as stream:
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=stream, stderr=stream, start_new_session=True)


class Build:
    """One `farm submit`, and the container that it builds in."""

    def __init__(self, client: Any, project: Path, variant: str, log: Path, before: set[str]) -> None:
        self.client, self.log, self.before = client, log, before
        self.process = submit(project, variant, log)
        self.container: Any = None
        self._until(self._has_container)

    def steps(self) -> list[tuple[str, str, str]]:
        """Of this container so far: ninja's number and total, the object."""
        return STEP.findall(self.container.logs().decode(errors="replace"))

    def reach(self, count: int) -> None:
        self._until(lambda: len(self.steps()) >= count)

    def _has_container(self) -> bool:
        found = self.client.containers.list(filters={"label": "farm.kind=build"})
        self.container = next((one for one in found if one.id not in self.before), None)
        return self.container is not None

    def _until(self, there: Callable[[], bool]) -> None:
        for _ in range(WAIT_S):
            if there():
                return
            if self.process.poll() is not None:
                said = self.log.read_text(errors="replace")[-3000:]
                sys.exit(f"farm submit ended with {self.process.returncode}:\n{said}")
            time.sleep(1)
        sys.exit(f"nothing came in {WAIT_S} s")

    def kill(self, what: str) -> list[tuple[str, str, str]]:
        """Kills it, or asks it to end; gives what had been compiled."""
        steps = self.steps()
        if what == "asked":  # the controller takes the container away
            self.process.send_signal(signal.SIGTERM)
        if what in ("controller", "both"):
            self.process.kill()
        if what in ("container", "both"):
            self.container.kill()
            steps = self.steps() if what == "both" else steps
        self.process.wait(timeout=WAIT_S)
        return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--variant", default="cpu-avx-py311")
    parser.add_argument("--steps", type=int, default=20, help="objects between two kills")
    args = parser.parse_args()
    client = connect()
    before = {container.id for container in client.containers.list(all=True)}
    table = Table(title=f"torch 1.13.1 {args.variant}: killed and gone on")
    for column in ("killed", "objects in this container", "ninja said", "s since the command"):
        table.add_column(column, justify="left" if column == "killed" else "right")
    with tempfile.TemporaryDirectory(prefix="farm-kills-") as name:
        project, log = Path(name) / "project", Path(name) / "log"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)
        compiled: dict[str, list[str]] = {}  # by container
        for number, what in enumerate(POINTS):
            start = time.monotonic()
            build = Build(client, project, args.variant, log, before)
            handle = build.container.id
            if number:
                build.reach(len(compiled.get(handle, ())) + args.steps)
            steps = build.kill(what)
            compiled[handle] = [step[2] for step in steps]
            said = f"{steps[-1][0]} of {steps[-1][1]}" if steps else "-"
            table.add_row(what, str(len(steps)), said, f"{time.monotonic() - start:.0f}")
            print(f"{what}: {said}", file=sys.stderr, flush=True)
        for container in client.containers.list(all=True, filters={"label": "farm.kind=build"}):
            if container.id not in before:
                container.remove(force=True)
    Console(width=100).print(table)
    count = Counter(name for names in compiled.values() for name in names)
    twice = [name for name, times in count.items() if times > 1]
    print(f"{len(count)} objects compiled in {len(compiled)} containers, {len(twice)} of them twice: {twice[:5]}")


if __name__ == "__main__":
    main()
