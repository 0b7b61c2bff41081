"""The process that carries out a run, told apart from others, and whether it still lives."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from farm.base.processes import started


@dataclass(frozen=True)
class Process:
    """One process for good: `start` tells two holders of a pid apart, `boot` two boots, `space` two
    pid namespaces.

    Within another one (a container) the same pid is someone else. A field that this system does not
    tell is empty.
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


def _boot() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    if sys.platform != "win32" and path.exists():
        return path.read_text(encoding="ascii").strip()
    return ""


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
        start = started(pid)
    except OSError:
        start = ""
    return Process(pid, start, _boot(), _space())


NOBODY = Process(0, "", "", "")
"""The owner of a run that was handed over and that no dispatcher has taken yet; it counts as dead.
"""


def is_dead(process: Process) -> bool:
    """True only if it is certain: after a reboot, or when its pid is free or someone else's, on
    this same machine.
    """
    if process == NOBODY or process.boot != _boot():
        return True
    # In another container that pid is another process, so nothing can be said; a run that may live
    # is never taken.
    if process.space != _space() or not process.start:
        return False
    try:
        # `started` gives an empty text where no such process lives: that is no process's start.
        return started(process.pid) != process.start
    except OSError:
        return False
