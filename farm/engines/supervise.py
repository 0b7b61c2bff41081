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

from farm.base.processes import Tree, end_wanted, leave, limit_cpus, started
from farm.base.retries import retry_while_open
from farm.engines.base import Cause

POLL_S = 0.1
LOOK_S = 2
GRACE_S = 30
EXIT_CODES = {
    Cause.TIME_LIMIT: 124,  # as `timeout` gives it
    Cause.OUT_OF_MEMORY: 128 + 9,  # SIGKILL, as a shell gives it
    Cause.CANCELLED: 128 + signal.SIGTERM,
    Cause.NOT_STARTED: 127,
}


def supervise(folder: Path) -> None:
    """Run the job in `folder` and write how it ended."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    wanted = end_wanted(folder)
    # With the time of its start: another process may have the same number later.
    _write(folder / "pid", {"pid": os.getpid(), "start": started(os.getpid())})
    limit_cpus(job["cpus"])
    cause: Cause | None = None
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
            _write_end(folder, EXIT_CODES[Cause.NOT_STARTED], Cause.NOT_STARTED, str(error))
            return
        deadline = time.monotonic() + job["timeout_s"]
        looked = time.monotonic()
        while tree.poll() is None and cause is None:
            if wanted():
                cause = Cause.CANCELLED
            elif time.monotonic() > deadline:
                cause = Cause.TIME_LIMIT
            elif time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                if tree.exceeded():
                    cause = Cause.OUT_OF_MEMORY
            time.sleep(POLL_S)
        # It may have ended between two looks: what is left of the tree can still be over the limit.
        if cause is None and tree.poll() and tree.exceeded():
            cause = Cause.OUT_OF_MEMORY
        # What takes all memory gets no time to end by itself.
        tree.end(GRACE_S if cause in (Cause.CANCELLED, Cause.TIME_LIMIT) else 0.0)
    code = tree.poll()
    assert code is not None
    if cause is not None:
        code = EXIT_CODES[cause]
    # Popen gives -N for a command that signal N ended, a shell 128 + N.
    _write_end(folder, 128 - code if code < 0 else code, cause, _limit(cause, job))


def _limit(cause: Cause | None, job: dict[str, Any]) -> str | None:
    """The limit that the job met."""
    if cause is Cause.TIME_LIMIT:
        return f"{job['timeout_s']} s"
    return f"{job['memory']} bytes" if cause is Cause.OUT_OF_MEMORY else None


def _write_end(folder: Path, code: int, cause: Cause | None, detail: str | None) -> None:
    _write(folder / "exit.json", {"code": code, "cause": cause.name if cause else None, "detail": detail})


def _write(path: Path, data: dict[str, Any]) -> None:
    # The engine reads these files at any moment: it finds the whole file or none.
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    retry_while_open(part.replace, path)


if __name__ == "__main__":
    leave()
    supervise(Path(sys.argv[1]))
