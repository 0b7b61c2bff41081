"""Which process owns a run, and whether it is dead: a pid alone is given out again after a while."""

import json
import os
import subprocess
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


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _space() -> str:
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
