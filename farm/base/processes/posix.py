"""Processes on Linux and macOS. What is below a job is found in /proc: macOS has none, there only its own session."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import contextlib
import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from farm.base.errors import NoRunnerError
from farm.base.processes import enter

assert sys.platform != "win32"  # also tells mypy, where it reads with --platform win32

POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = ("PATH", "TMPDIR", "TZ")
"""Of this process's environment, what a job may see: the rest may hold credentials."""
APART: dict[str, Any] = {"start_new_session": True}


def check(*, tree: bool) -> None:
    """Refuses what cannot be done here.

    Raises:
        NoRunnerError: A root filesystem is to be entered, and this machine allows it neither to root nor to users.
    """
    refused = enter.refusal() if tree else None
    if refused:
        raise NoRunnerError(refused[0], hint=refused[1])


def machine() -> tuple[float, int]:
    """The CPUs that this process may use, and this machine's memory in bytes."""
    cpus = float(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else float(os.cpu_count() or 1)
    return cpus, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def environment(home: str, *, tree: bool) -> dict[str, str]:
    """The environment of a job: parts of this process's; nothing of it in a root filesystem of its own (`tree`)."""
    own = {} if tree else {name: os.environ[name] for name in KEPT if name in os.environ}
    # In English, and sorted as in a container: what a tool says is read for the cause of its failure.
    return {**own, "LC_ALL": "C.UTF-8", "PATH": own.get("PATH", PATH), "HOME": home}


def started(pid: int) -> str:
    """When a process started, in the system's own words; empty when there is none, or a zombie.

    In ticks since boot (proc(5), field 22), or what ps says where there is no /proc.

    Raises:
        OSError: It cannot be read: this system has neither /proc nor ps, or does not let us look.
    """
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        fields = text.rpartition(")")[2].split()  # the name in brackets may hold anything
        return "" if fields[0] in "ZX" else fields[19]
    command = ["ps", "-p", str(pid), "-o", "state=", "-o", "lstart="]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    state, _, since = done.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else since.strip()


def ask_to_end(pid: int, _folder: Path) -> None:
    """Tells the supervisor `pid` of the job in `folder` that its job is to end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)  # one that was stopped hears nothing until it goes on


def end_marked(mark: str, patience_s: float) -> bool:
    """Ends the processes that carry a mark (NAME=VALUE) in their environment; False when some do not end."""
    wanted = mark.encode()
    for _ in range(int(patience_s / POLL_S)):
        left = []
        # The environment with which each was started: children inherit it, and a later change does not show there.
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in entry.read_bytes().split(b"\0"):
                    left.append(int(entry.parent.name))
        alive = [pid for pid in left if started(pid)]
        if not alive:
            return True
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    return False


def read(path: Path) -> str:
    """The text of a file that another process has just given its name."""
    return path.read_text(encoding="utf-8")


def replace(part: Path, path: Path) -> None:
    """Gives a file its name, in place of what had it."""
    part.replace(path)


def remove(folder: Path) -> None:
    """Removes a folder with all that is in it; one that is not there is fine."""
    shutil.rmtree(folder, ignore_errors=True)


def is_plain(status: os.stat_result) -> bool:
    """True if a file's own status (lstat) is that of a file or folder, and not of a link or a device."""
    return stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)


# --- for the supervisor


def leave() -> None:
    """No one's child from here on: the one who started it may end, or go on without looking after it."""
    if os.fork():
        os._exit(0)
    os.setsid()


def settle(cpus: float) -> None:
    """Orphans of the job come to this process, not to init, and it uses so many CPUs; its children with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        allowed = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, allowed[: max(1, int(cpus))])


def end_wanted(_folder: Path) -> Callable[[], bool]:
    """Listens from now on; the answer says whether someone asked for the end of the job in `folder`."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's: it says cancel
    return lambda: bool(asked)


class Tree:
    """A process and everything below this one."""

    def __init__(
        self,
        command: list[str],
        *,
        environment: dict[str, str],
        folder: str,
        chroot: bool,
        log: IO[bytes],
        memory: int,
    ) -> None:
        """Starts `command` in `folder`, which is its root where `chroot` says so; output goes to `log`.

        Raises:
            OSError, subprocess.SubprocessError: It cannot be started.
        """
        self._memory = memory
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=None if chroot else folder,
            start_new_session=True,
            preexec_fn=_inside(folder) if chroot else None,  # noqa: PLW1509 no threads here
        )

    def poll(self) -> int | None:
        """The exit code of the process, negative for a signal; None while it runs."""
        return self._process.poll()

    def exceeded(self) -> bool:
        """True if the tree holds more memory than it may."""
        return _resident(_descendants(os.getpid())) > self._memory

    def end(self, grace_s: float) -> None:
        """Ends all of it: politely, then for good."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + wait_s
            while True:
                # Looked up anew each time: a process that was told to end may still start others.
                alive = [pid for pid in _descendants(os.getpid()) if started(pid)]
                if self._process.poll() is None and self._process.pid not in alive:
                    alive.append(self._process.pid)
                for pid in alive:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                self._reap()
                if not alive:
                    return
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_S)
        self._process.wait()

    def _reap(self) -> None:
        """Collects orphans that became ours; the job's own process is left to Popen."""
        if self._process.poll() is None:
            return
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _inside(root: str) -> Callable[[], None]:
    def inside() -> None:
        try:
            # The rest of the toolchain is read-only: a resumed build finds it as it was unpacked.
            enter.enter(Path(root), [(Path(root, name), name) for name in ("farm", "tmp")])
        except OSError as error:  # Popen passes no text on; this is the job's log
            os.write(2, f"{root} cannot be entered: {error.strerror or error}\n".encode())
            raise

    return inside


def _descendants(pid: int) -> list[int]:
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


def _resident(pids: list[int]) -> int:
    """Bytes of memory that processes hold, shared pages counted for each (proc(5), statm)."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page
        except (OSError, IndexError):
            continue
    return total
