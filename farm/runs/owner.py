"""Which process owns a run, and whether it is dead: a pid alone is given out again after a while."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Process:
    """One process for good: `start` tells two holders of a pid apart, `boot` two boots of the machine.

    `space` is the pid namespace: within another one (a container) the same pid is somebody else. A field that this
    system does not tell is empty.
    """

    pid: int
    start: str
    boot: str
    space: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def _start(pid: int) -> str:
    """When the process started, in the system's own words; empty where there is no such process, or a zombie.

    Raises:
        OSError: this system has neither /proc nor ps.
    """
    if sys.platform == "win32":
        return _windows_start(pid)
    if Path("/proc/self/stat").exists():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return ""
        fields = stat.rpartition(")")[2].split()  # the name in brackets may hold anything; proc(5): then field 3
        return "" if fields[0] in "ZX" else fields[19]  # state, starttime (field 22)
    done = subprocess.run(
        ["ps", "-p", str(pid), "-o", "lstart="], capture_output=True, text=True, check=False, timeout=10
    )
    return done.stdout.strip()


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _QUERY, _STILL_ACTIVE = 0x1000, 259  # PROCESS_QUERY_LIMITED_INFORMATION; the exit code of who has not ended

    def _windows_start(pid: int) -> str:
        """The time of creation in steps of 100 ns; no two processes share it, of this boot or of another."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = wintypes.HANDLE
        handle = wintypes.HANDLE(kernel.OpenProcess(_QUERY, False, pid))
        if not handle:
            if ctypes.get_last_error() == 87:  # ERROR_INVALID_PARAMETER: no such process
                return ""
            raise ctypes.WinError(ctypes.get_last_error())
        try:
            times, code = (wintypes.FILETIME * 4)(), wintypes.DWORD()
            references = [ctypes.byref(times, n * ctypes.sizeof(wintypes.FILETIME)) for n in range(4)]
            if not kernel.GetProcessTimes(handle, *references) or not kernel.GetExitCodeProcess(
                handle, ctypes.byref(code)
            ):
                raise ctypes.WinError(ctypes.get_last_error())
        finally:
            kernel.CloseHandle(handle)
        created = times[0].dwHighDateTime << 32 | times[0].dwLowDateTime
        return str(created) if code.value == _STILL_ACTIVE else ""


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if sys.platform != "win32" and path.exists() else ""


def _space() -> str:
    if sys.platform == "win32":
        return ""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def this_process() -> Process:
    """The process that calls."""
    pid = os.getpid()
    try:
        start = _start(pid)
    except OSError:
        start = ""
    return Process(pid, start, _boot(), _space())


def is_dead(process: Process) -> bool:
    """True only if it is certain: after a reboot, or when its pid is free or somebody else's.

    The machine is taken to be the same one: SQLite's WAL does not work between machines.
    """
    if process.boot != _boot():
        return True
    if process.space != _space() or not process.start:
        return False
    try:
        return _start(process.pid) != process.start
    except OSError:
        return False
