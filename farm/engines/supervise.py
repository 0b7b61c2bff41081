"""Runs the command of one job to its end, whatever becomes of the farm that started it.

    python -m farm.engines.supervise FOLDER

Reads `job.json` in FOLDER and leaves there `pid`, `log` and, at the end, `exit.json`. It needs the standard library
alone: a machine that is cut off has nothing else.
"""

from __future__ import annotations  # also for the Python 3.9 of such a machine

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from farm.processes import Tree, end_wanted, leave, replace, settle, started

POLL_S = 0.1
LOOK_S = 2
GRACE_S = 30
TIMED_OUT, KILLED = 124, 137
"""Exit codes, as `timeout` and a shell give them."""


def supervise(folder: Path) -> None:
    """Run the job in `folder` and write how it ended."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    wanted = end_wanted(folder)
    _write(folder / "pid", {"pid": os.getpid(), "start": started(os.getpid())})
    settle(job["cpus"])
    why: list[str] = []
    with (folder / "log").open("ab", buffering=0) as log:
        try:
            tree = Tree(
                job["command"],
                environment=job["environment"],
                folder=job["root"],
                chroot=job["chroot"],
                log=log,
                memory=job["memory"],
            )
        except (OSError, subprocess.SubprocessError) as error:
            _write(folder / "exit.json", {"code": 127, "why": f"cannot be started: {error}"})
            return
        deadline = time.monotonic() + job["timeout_s"]
        looked = time.monotonic()
        while tree.poll() is None and not why:
            if wanted():
                why.append("cancelled")
            elif time.monotonic() > deadline:
                why.append(f"killed at its time limit of {job['timeout_s']} s")
            elif time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                if tree.exceeded():
                    why.append(_too_much(job))
            time.sleep(POLL_S)
        if not why and tree.poll() and tree.exceeded():
            why.append(_too_much(job))
        tree.end(GRACE_S if why and "memory" not in why[0] else 0.0)
    code = tree.poll()
    assert code is not None
    if why:
        code = {"cancelled": 128 + signal.SIGTERM}.get(why[0], TIMED_OUT if "time limit" in why[0] else KILLED)
    _write(folder / "exit.json", {"code": 128 - code if code < 0 else code, "why": why[0] if why else None})


def _too_much(job: dict[str, Any]) -> str:
    return f"out of memory: killed above the job's limit of {job['memory']} bytes"


def _write(path: Path, data: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    replace(part, path)


if __name__ == "__main__":
    leave()
    supervise(Path(sys.argv[1]))
