"""Runs the command of one job to its end, whatever becomes of the farm that started it.

    python supervise.py FOLDER

Reads `job.json` in FOLDER and leaves there `pid`, `log` and, at the end, `exit.json`. It is run as a script, in a
session of its own, and needs the standard library alone: a machine that is cut off has nothing else.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.1
GRACE_S = 30
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TIMED_OUT, KILLED = 124, 137
"""Exit codes, as `timeout` and a shell give them."""


def started(pid: int) -> str:
    """When a process started, in ticks since boot (proc(5), field 22); empty when there is none, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name in brackets may hold anything
    return "" if fields[0] in "ZX" else fields[19]


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, deepest last; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, at = [pid], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found[1:]


def resident(pids: list[int]) -> int:
    """Bytes of memory that processes hold, shared pages counted for each (proc(5), statm)."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page
        except (OSError, IndexError):
            continue
    return total


def end_tree(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Ends a process and everything below this one: politely, then for good."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + wait_s
        while True:
            alive = [pid for pid in descendants(os.getpid()) if started(pid)]
            if process.poll() is None and process.pid not in alive:
                alive.append(process.pid)
            for pid in alive:
                try:
                    os.kill(pid, number)
                except OSError:
                    continue
            _reap(process)
            if not alive:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)


def _reap(process: "subprocess.Popen[bytes]") -> None:
    """Collects orphans that became ours; the job's own process is left to Popen."""
    if process.poll() is None:
        return
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def supervise(folder: Path) -> None:
    """Run the job in `folder` and write how it ended."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    _write(folder / "pid", {"pid": os.getpid(), "start": started(os.getpid())})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the build come to us, not to init
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[: max(1, int(job["cpus"]))])
    why: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: why.append("cancelled"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's: it says cancel
    with (folder / "log").open("ab", buffering=0) as log:
        try:
            process = subprocess.Popen(
                job["command"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=job["environment"],
                cwd=None if job["chroot"] else job["root"],
                start_new_session=True,
                preexec_fn=_enter(job["root"]) if job["chroot"] else None,  # noqa: PLW1509 no threads here
            )
        except (OSError, subprocess.SubprocessError) as error:
            _write(folder / "exit.json", {"code": 127, "why": f"cannot be started: {error}"})
            return
        _watch(process, job, why)
    code = process.returncode
    if why:
        code = {"cancelled": 128 + signal.SIGTERM}.get(why[0], TIMED_OUT if "time limit" in why[0] else KILLED)
    _write(folder / "exit.json", {"code": 128 - code if code < 0 else code, "why": why[0] if why else None})


def _enter(root: str) -> Callable[[], None]:
    def enter() -> None:
        os.chroot(root)
        os.chdir("/")

    return enter


def _watch(process: "subprocess.Popen[bytes]", job: dict[str, Any], why: list[str]) -> None:
    """Waits for the end of the job and of everything that it started; `why` is told what ended it early."""
    deadline = time.monotonic() + job["timeout_s"]
    looked = time.monotonic()
    while process.poll() is None and not why:
        if time.monotonic() > deadline:
            why.append(f"killed at its time limit of {job['timeout_s']} s")
        if time.monotonic() - looked > 2:
            looked = time.monotonic()
            if resident(descendants(os.getpid())) > job["memory"]:
                why.append(f"out of memory: killed above the job's limit of {job['memory']} bytes")
        time.sleep(POLL_S)
    end_tree(process, GRACE_S if why and "memory" not in why[0] else 0.0)
    process.wait()


def _write(path: Path, data: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data), encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    if os.fork():  # nobody's child: the one who started it may end, or go on without looking after it
        os._exit(0)
    os.setsid()
    supervise(Path(sys.argv[1]))
