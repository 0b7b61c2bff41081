"""Processes of this machine: how a job and its supervisor are started, found, limited and ended.

The processes of a job carry a mark in their environment, which their children inherit. By it they
are found, also after their supervisor was killed. Linux shows it in /proc, where the standard
library is enough: a machine that is cut off has nothing else. macOS and Windows are asked by
psutil. The Windows parts ran under Wine 8, never on Windows.
"""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import contextlib
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from farm.base.errors import NoRunnerError

POLL_S = 0.1
KILL_S = 10.0
MARK = "FARM_JOB"  # the variable that marks the processes of a job; its value is the job's handle
CANCEL = "cancel"
"""The file in a job's folder that asks for its end: processes of Windows without a console get no
signals.
"""
KILL = getattr(
    signal, "SIGKILL", signal.SIGTERM
)  # on Windows os.kill ends a process at once, whatever the signal

if sys.platform == "linux":

    def started(pid: int) -> str:
        """When a process started, in the system's own words; empty when there is none, or a zombie
        (proc(5)).
        """
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        fields = text.rpartition(")")[2].split()  # the name in brackets may hold anything
        is_zombie = fields[0] in "ZX"
        if is_zombie:
            return ""
        return fields[19]

    def marked(handle: str) -> list[int]:
        """The processes of a job."""
        mark = f"{MARK}={handle}".encode()
        pids = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    pids.append(int(entry.parent.name))
        return [pid for pid in pids if started(pid)]

    def memory_of(pid: int) -> int:
        """Bytes of memory that a process holds, shared pages included; 0 when it has ended."""
        with contextlib.suppress(OSError, IndexError):
            pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return 0

    def machine() -> tuple[float, int]:
        """The CPUs that this process may use, and this machine's memory in bytes."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return float(len(os.sched_getaffinity(0))), memory

    def limit_cpus(cpus: float) -> None:
        """This process uses so many CPUs, its children with it."""
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: max(1, int(cpus))])

else:
    import psutil

    def started(pid: int) -> str:
        """When a process started, in the system's own words; empty when there is none, or a
        zombie.
        """
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return ""
            return str(process.create_time())
        except psutil.NoSuchProcess:
            return ""
        except psutil.Error as error:
            raise PermissionError(f"process {pid} cannot be looked at: {error}") from error

    def marked(handle: str) -> list[int]:
        """The processes of a job."""
        pids = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # of another user, or it has ended
                if process.environ().get(MARK) == handle:
                    pids.append(process.pid)
        return pids

    def memory_of(pid: int) -> int:
        """Bytes of memory that the system gave to a process; 0 when it has ended."""
        with contextlib.suppress(psutil.Error):
            memory = psutil.Process(pid).memory_info()
            return int(getattr(memory, "pagefile", memory.rss))
        return 0

    def _affinity() -> list[int]:
        """The CPUs of this process; macOS has no such setting."""
        process = psutil.Process()
        if hasattr(process, "cpu_affinity"):
            return process.cpu_affinity()
        return list(range(os.cpu_count() or 1))

    def machine() -> tuple[float, int]:
        """The CPUs that this process may use, and this machine's memory in bytes."""
        return float(len(_affinity())), int(psutil.virtual_memory().total)

    def limit_cpus(cpus: float) -> None:
        """This process uses so many CPUs, its children with it."""
        process = psutil.Process()
        if hasattr(process, "cpu_affinity"):
            process.cpu_affinity(_affinity()[: max(1, int(cpus))])


if sys.platform == "win32":
    APART: dict[str, Any] = {
        "creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    }
    """Arguments of Popen for a process that outlives this one. Not DETACHED_PROCESS, with which
    each compiler would open a window of its own: here they share a hidden console.
    """
    LEFT = "--left"
    REMOVE_S = 10.0
    KEPT = (
        "PATH",
        "PATHEXT",
        "SystemRoot",
        "SystemDrive",
        "windir",
        "ComSpec",
        "OS",
        "NUMBER_OF_PROCESSORS",
        "PROCESSOR_ARCHITECTURE",
        "PROCESSOR_IDENTIFIER",
        "ProgramData",
        "ProgramFiles",
        "ProgramFiles(x86)",
        "ProgramW6432",
        "CommonProgramFiles",
        "CommonProgramFiles(x86)",
        "CommonProgramW6432",
        "TZ",
    )

    def environment(home: str, *, tree: bool) -> dict[str, str]:  # noqa: ARG001 there is none here
        """The environment of a job: parts of this process's, with a profile and temporary files
        below `home`.

        The rest may hold credentials; nor does it see this user's profile, where pip and git keep
        theirs.
        """
        inherited = {name: os.environ[name] for name in KEPT if name in os.environ}
        root = inherited.get("SystemRoot", r"C:\Windows")
        # cmd.exe, tar.exe and curl.exe are found here; a service's PATH need not have it.
        needed = [
            rf"{root}\System32",
            root,
            rf"{root}\System32\Wbem",
            rf"{root}\System32\WindowsPowerShell\v1.0",
        ]
        entries = list(filter(None, [inherited.get("PATH")]))
        present = {entry.rstrip("\\").lower() for entry in inherited.get("PATH", "").split(";")}
        for entry in needed:
            if entry.lower() not in present:
                entries.append(entry)
        inherited["PATH"] = ";".join(entries)
        folders = {
            "HOME": home,
            "USERPROFILE": home,
            "APPDATA": rf"{home}\AppData\Roaming",
            "LOCALAPPDATA": rf"{home}\AppData\Local",
            "TEMP": rf"{home}\Temp",
            "TMP": rf"{home}\Temp",
        }
        for name in ("APPDATA", "LOCALAPPDATA", "TEMP"):
            Path(folders[name]).mkdir(parents=True, exist_ok=True)
        return inherited | folders

    def remove(folder: Path) -> None:
        """Removes a folder with all that is in it; one that is not there is fine.

        A file that someone holds open cannot be removed: it is tried again for some seconds, and
        stays then.
        """
        deadline = time.monotonic() + REMOVE_S
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists() or time.monotonic() > deadline:
                return
            for path in folder.rglob("*"):  # read-only files, as git's objects are
                with contextlib.suppress(OSError):
                    path.chmod(stat.S_IWRITE)
            time.sleep(POLL_S)

    def leave() -> None:
        """No one's child from here on: starts this program again, apart from this console and job
        object, and ends.
        """
        if sys.argv[-1] == LEFT:
            return
        command = [sys.executable, *sys.orig_argv[1:], LEFT]
        for flag in (subprocess.CREATE_BREAKAWAY_FROM_JOB, 0):
            flags = APART["creationflags"] | flag
            # A job object that does not let go of its processes refuses the first: this one ends
            # with it.
            with contextlib.suppress(PermissionError):
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stdout,
                    stderr=sys.stdout,
                    creationflags=flags,
                )
                os._exit(0)
        os._exit(1)

    def start(
        command: list[str], *, environment: dict[str, str], folder: str, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a job's command in `folder`; OSError: there is no such program."""
        # By the job's own PATH, not by that of this process; Windows would also look beside this
        # Python.
        program = shutil.which(command[0], path=environment["PATH"])
        if program is None:
            raise FileNotFoundError(errno.ENOENT, "no such program", command[0])
        more.pop("chroot")  # `check` refused it
        return subprocess.Popen([program, *command[1:]], env=environment, cwd=folder, **more)

else:
    APART: dict[str, Any] = {"start_new_session": True}
    PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    KEPT = ("PATH", "TMPDIR", "TZ")

    def environment(home: str, *, tree: bool) -> dict[str, str]:
        """The environment of a job: parts of this process's, whose rest may hold credentials.

        `tree`: it has a root file system of its own, where nothing of them holds.
        """
        if tree:
            inherited = {}
        else:
            inherited = {name: os.environ[name] for name in KEPT if name in os.environ}
        # In English, and sorted as in a container: what a tool says is read for the cause of its
        # failure.
        return {**inherited, "LC_ALL": "C.UTF-8", "PATH": inherited.get("PATH", PATH), "HOME": home}

    def remove(folder: Path) -> None:
        """Removes a folder with all that is in it; one that is not there is fine."""
        shutil.rmtree(folder, ignore_errors=True)

    def leave() -> None:
        """No one's child from here on: the one who started it may end, or go on without looking
        after it.
        """
        if os.fork():
            os._exit(0)
        os.setsid()

    def start(
        command: list[str], *, environment: dict[str, str], folder: str, chroot: bool, **more: Any
    ) -> subprocess.Popen[bytes]:
        """Starts a job's command in `folder`, with `chroot` its root; OSError or SubprocessError:
        it cannot be.
        """
        if chroot:
            more["preexec_fn"] = lambda: _enter(Path(folder))
        else:
            more["cwd"] = folder
        return subprocess.Popen(command, env=environment, start_new_session=True, **more)

    def _enter(root: Path) -> None:
        from farm.base import enter  # noqa: PLC0415 for Linux alone

        try:
            # The rest of the toolchain is read-only: a resumed build finds it as it was unpacked.
            enter.enter(root, [(root / name, name) for name in ("farm", "tmp")])
        except OSError as error:  # Popen passes no text on; this is the job's log
            os.write(2, f"{root} cannot be entered: {error.strerror or error}\n".encode())
            raise


def check(*, tree: bool) -> None:
    """NoRunnerError where a root file system is to be entered (`tree`) and this machine does not
    allow it.
    """
    if not tree:
        return
    if sys.platform == "linux":
        from farm.base import enter  # noqa: PLC0415 for Linux alone

        if refused := enter.refusal():
            raise NoRunnerError(refused[0], hint=refused[1])
    else:
        raise NoRunnerError(
            "the toolchain of an offline bundle can only be entered on Linux", hint="use Linux"
        )


def is_plain(status: os.stat_result) -> bool:
    """True if a file's own status (lstat) is that of a file or folder, and not of a link, a
    junction or a device.
    """
    # Junctions are no links to Python 3.11, but they lead elsewhere as well: the attribute shows
    # both.
    link = getattr(status, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_REPARSE_POINT
    return not link and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def request_end(pid: int, folder: Path) -> None:
    """Tells the supervisor `pid` of the job in `folder` that its job is to end."""
    (folder / CANCEL).touch()
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)  # one that was stopped looks at nothing until it goes on


def end_requested(folder: Path) -> Callable[[], bool]:
    """Listens from now on; the answer says whether someone asked for the end of the job in
    `folder`.
    """
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the controller's: it says cancel
    return lambda: bool(signals) or (folder / CANCEL).exists()


def end_marked(handle: str, number: int, patience_s: float) -> bool:
    """Sends a signal to the processes of a job until there are none; False when some do not end in
    time.
    """
    deadline = time.monotonic() + patience_s
    # Looked up anew each time: a process that was told to end may still start others.
    while alive := marked(handle):
        if time.monotonic() > deadline:
            return False
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(POLL_S)
    return True


def memory_of_job(handle: str) -> int:
    """Bytes of memory that the processes of a job hold together."""
    return sum(map(memory_of, marked(handle)))


def end(process: subprocess.Popen[bytes], handle: str, grace_s: float) -> int:
    """Ends a job: politely where there is a grace and Windows is not the system, then for good; its
    exit code.
    """
    if not (grace_s and end_marked(handle, signal.SIGTERM, grace_s)):
        end_marked(handle, KILL, KILL_S)
    return process.wait()
