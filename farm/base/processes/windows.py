"""Processes on Windows: a job is a job object, and its supervisor holds the only handle of it.

With JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE the kernel ends every process of a job with the supervisor, however that ends;
so a lost job leaves nothing behind. Sources: Microsoft, "Job Objects", "JOBOBJECT_EXTENDED_LIMIT_INFORMATION",
"JOBOBJECT_ASSOCIATE_COMPLETION_PORT", "Process Creation Flags", winnt.h and jobapi2.h of the Windows SDK.

Run under Wine 8 with python.org's CPython 3.11.9, never on Windows. Wine 8 takes the memory limit of a job object and
does not hold it, so only the look at the processes' memory every two seconds was seen to work.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import wintypes
from pathlib import Path
from typing import IO, Any

from farm.base.errors import NoRunnerError
from farm.base.processes import win32
from farm.base.retries import retry_while_open

assert sys.platform == "win32"  # also tells mypy, which reads this file with --platform win32
POLL_S = 0.1
END_S = 10.0
REMOVE_S = 10.0
CANCEL = "cancel"
"""The file in a job's folder that asks for its end: processes without a console get no signals."""
LEFT = "--left"
APART: dict[str, Any] = {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
"""Not DETACHED_PROCESS, with which each compiler would open a window of its own: here they share a hidden console."""
ASSIGN = win32.PROCESS_TERMINATE | win32.PROCESS_SET_QUOTA
LIMITS = win32.LIMIT_JOB_MEMORY | win32.LIMIT_DIE_ON_UNHANDLED_EXCEPTION | win32.LIMIT_KILL_ON_JOB_CLOSE
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
"""Of this process's environment, what a job may see: the rest may hold credentials. Nor does it see this user's
profile, where pip and git keep theirs."""


def check(*, tree: bool) -> None:
    """Refuses what cannot be done here.

    Raises:
        NoRunnerError: A root filesystem is to be entered: Windows has no chroot.
    """
    if tree:
        raise NoRunnerError(
            "the toolchain of an offline bundle is entered by chroot, which Windows does not have", hint="use Linux"
        )


def _mask() -> int:
    """The CPUs of this process's group that it may use, as bits."""
    mine, whole = ctypes.c_size_t(), ctypes.c_size_t()
    win32.sure(win32.affinity(win32.this(), ctypes.byref(mine), ctypes.byref(whole)))
    return mine.value


def machine() -> tuple[float, int]:
    """The CPUs that this process may use, and this machine's memory in bytes."""
    cpus = os.cpu_count() or 1
    if cpus <= 64:  # above, there are groups of CPUs, and a mask tells one group alone
        cpus = min(cpus, _mask().bit_count() or 1)
    status = win32.MemoryStatus(size=ctypes.sizeof(win32.MemoryStatus))
    win32.sure(win32.memory_status(ctypes.byref(status)))
    return float(cpus), int(status.bytes[0])


def environment(home: str, *, tree: bool) -> dict[str, str]:  # noqa: ARG001 there is none here
    """The environment of a job: parts of this process's, with a profile and temporary files below `home`."""
    own = {name: os.environ[name] for name in KEPT if name in os.environ}
    root = own.get("SystemRoot", r"C:\Windows")
    # cmd.exe, tar.exe and curl.exe are found here; a service's PATH need not have it.
    needed = [rf"{root}\System32", root, rf"{root}\System32\Wbem", rf"{root}\System32\WindowsPowerShell\v1.0"]
    have = {entry.rstrip("\\").lower() for entry in own.get("PATH", "").split(";")}
    own["PATH"] = ";".join([*filter(None, [own.get("PATH")]), *(e for e in needed if e.lower() not in have)])
    made = {"HOME": home, "USERPROFILE": home, "APPDATA": rf"{home}\AppData\Roaming"}
    made |= {"LOCALAPPDATA": rf"{home}\AppData\Local", "TEMP": rf"{home}\Temp", "TMP": rf"{home}\Temp"}
    for name in ("APPDATA", "LOCALAPPDATA", "TEMP"):
        Path(made[name]).mkdir(parents=True, exist_ok=True)
    return own | made


def started(pid: int) -> str:
    """When a process started, in units of 100 ns since 1601; empty when there is none.

    Raises:
        OSError: It cannot be read, as of a process of another user.
    """
    process = win32.open_process(win32.PROCESS_QUERY_LIMITED_INFORMATION, False, pid)
    # OpenProcess gives ERROR_INVALID_PARAMETER for a pid that no one has, ERROR_ACCESS_DENIED for another user's.
    if not process and ctypes.get_last_error() == win32.ERROR_INVALID_PARAMETER:
        return ""  # no one has this pid
    win32.sure(process)
    try:
        code, times = wintypes.DWORD(), [wintypes.FILETIME() for _ in range(4)]
        win32.sure(win32.exit_code(process, ctypes.byref(code)))
        win32.sure(win32.times(process, *map(ctypes.byref, times)))
    finally:
        win32.close(process)
    # One that has ended is there until its last handle is closed.
    alive = code.value == win32.STILL_ACTIVE
    return str(times[0].dwHighDateTime << 32 | times[0].dwLowDateTime) if alive else ""


def ask_to_end(_pid: int, folder: Path) -> None:
    """Tells the supervisor `pid` of the job in `folder` that its job is to end."""
    (folder / CANCEL).touch()


def end_marked(_mark: str, _patience_s: float) -> bool:
    """Nothing is to be done: the kernel ends what a killed supervisor left."""
    return True


def read(path: Path) -> str:
    """The text of a file that another process has just given its name; waits for that one to let go of it."""
    return retry_while_open(path.read_text, encoding="utf-8")


def replace(part: Path, path: Path) -> None:
    """Gives a file its name, in place of what had it; waits for who reads it."""
    retry_while_open(part.replace, path)


def remove(folder: Path) -> None:
    """Removes a folder with all that is in it; one that is not there is fine.

    A file that someone holds open cannot be removed: it is tried again for some seconds, and stays then.
    """
    deadline = time.monotonic() + REMOVE_S
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() or time.monotonic() > deadline:
            return
        with contextlib.suppress(OSError):
            _free(folder)
        time.sleep(POLL_S)


def _free(folder: Path) -> None:
    """Makes read-only files, as git's objects are, such that they can be removed."""
    for path in folder.iterdir():
        status = path.lstat()
        if is_plain(status) and stat.S_ISDIR(status.st_mode):
            _free(path)
        elif is_plain(status):
            path.chmod(stat.S_IWRITE)


def is_plain(status: os.stat_result) -> bool:
    """True if a file's own status (lstat) is that of a file or folder, and not of a link or a junction."""
    # Junctions are no links to Python 3.11, but they lead elsewhere as well: the attribute shows both.
    link = status.st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT
    return not link and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


# --- for the supervisor


def leave() -> None:
    """No one's child from here on: starts this program again, apart from this console and job object, and ends."""
    if sys.argv[-1] == LEFT:
        return
    flags = APART["creationflags"]
    try:
        _again(flags | subprocess.CREATE_BREAKAWAY_FROM_JOB)
    except PermissionError:  # a job object that does not let go of its processes: this one ends with it
        _again(flags)
    os._exit(0)


def _again(flags: int) -> None:
    command = [sys.executable, *sys.orig_argv[1:], LEFT]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stdout, stderr=sys.stdout, creationflags=flags)


def settle(cpus: float) -> None:
    """This process uses so many CPUs, its children with it; within one group of 64 CPUs."""
    mine = _mask()
    allowed = [bit for bit in range(64) if mine >> bit & 1]
    wanted = max(1, int(cpus))
    if wanted < len(allowed):
        win32.sure(win32.set_affinity(win32.this(), sum(1 << bit for bit in allowed[:wanted])))


def end_wanted(folder: Path) -> Callable[[], bool]:
    """The answer says whether someone asked for the end of the job in `folder`."""
    return (folder / CANCEL).exists


class Tree:
    """A process and everything that it starts, in a job object that ends with this process."""

    def __init__(
        self,
        command: list[str],
        *,
        environment: dict[str, str],
        folder: str,
        chroot: bool,  # noqa: ARG002 `check` refused it
        log: IO[bytes],
        memory: int,
    ) -> None:
        """Starts `command` in `folder`; output goes to `log`. It runs when it is in the job object, and not before.

        Raises:
            OSError: It cannot be started.
        """
        # By the job's own PATH, not by that of this process.
        program = shutil.which(command[0], path=environment["PATH"])
        if program is None:  # Windows would also look beside this Python
            raise FileNotFoundError(errno.ENOENT, "no such program", command[0])
        self._memory = memory
        # The order matters: limits, then the port for their messages, then the process, suspended until it is in the
        # job.
        self._job = win32.sure(win32.create_job(None, None))
        limits = win32.ExtendedLimits(job_memory=memory)
        limits.basic.flags = LIMITS
        self._set(win32.CLASS_EXTENDED_LIMITS, limits)
        self._port = win32.sure(win32.create_port(win32.INVALID_HANDLE, None, 0, 1))
        self._set(win32.CLASS_COMPLETION_PORT, win32.Port(None, self._port))
        self._process = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=folder,
            creationflags=win32.CREATE_SUSPENDED,
        )
        try:
            process = win32.sure(win32.open_process(ASSIGN, False, self._process.pid))
            win32.sure(win32.assign(self._job, process))
            win32.close(process)
            _run_threads(self._process.pid)
        except BaseException:
            self._process.kill()
            raise

    def _set(self, kind: int, value: ctypes.Structure) -> None:
        win32.sure(win32.set_job(self._job, kind, ctypes.byref(value), ctypes.sizeof(value)))

    def poll(self) -> int | None:
        """The exit code of the process, None while it runs."""
        return self._process.poll()

    def exceeded(self) -> bool:
        """True if the kernel refused the tree memory at its limit, or it holds more."""
        code, key, overlapped = wintypes.DWORD(), ctypes.c_size_t(), wintypes.LPVOID()
        while win32.next_message(self._port, ctypes.byref(code), ctypes.byref(key), ctypes.byref(overlapped), 0):
            if code.value == win32.MSG_JOB_MEMORY_LIMIT:
                return True
        return sum(map(_committed, self._pids())) > self._memory

    def end(self, _grace_s: float) -> None:
        """Ends all of it, at once: Windows has no polite way for processes without windows.

        Raises:
            OSError: The kernel refuses.
        """
        deadline = time.monotonic() + END_S
        # Again until it is empty: a process may start another one while the job is being ended.
        while self._pids() and time.monotonic() < deadline:
            win32.sure(win32.terminate_job(self._job, 1))
            time.sleep(POLL_S)
        self._process.wait()

    def _pids(self) -> list[int]:
        found = win32.Pids()
        # One that has more processes than are asked for tells these, and fails.
        win32.query_job(self._job, win32.CLASS_PROCESS_IDS, ctypes.byref(found), ctypes.sizeof(found), None)
        return list(found.ids[: found.listed])


def _run_threads(pid: int) -> None:
    """Lets a suspended process run: Popen keeps no handle of its first thread."""
    snapshot = win32.snapshot(win32.TH32CS_SNAPTHREAD, 0)
    if snapshot == win32.INVALID_HANDLE:
        raise ctypes.WinError(ctypes.get_last_error())
    try:
        entry = win32.Thread(size=ctypes.sizeof(win32.Thread))
        found = win32.first_thread(snapshot, ctypes.byref(entry))
        while found:
            # The snapshot has the threads of all processes of the machine.
            if entry.owner == pid:
                thread = win32.sure(win32.open_thread(win32.THREAD_SUSPEND_RESUME, False, entry.id))
                win32.resume(thread)
                win32.close(thread)
            found = win32.next_thread(snapshot, ctypes.byref(entry))
    finally:
        win32.close(snapshot)


def _committed(pid: int) -> int:
    """Bytes of memory that the kernel has promised to a process alone; 0 when it has ended."""
    process = win32.open_process(win32.PROCESS_QUERY_LIMITED_INFORMATION | win32.PROCESS_VM_READ, False, pid)
    if not process:
        return 0
    try:
        memory = win32.Memory(size=ctypes.sizeof(win32.Memory))
        return int(memory.committed) if win32.memory_info(process, ctypes.byref(memory), memory.size) else 0
    finally:
        win32.close(process)
