"""Ends the swarm that a killed run of these tests left: `python -m tests.e2e.dispatch.leftovers`.

Its names and addresses are there once on a machine, so they are found by name: daemons, mounts,
links, rules.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(tempfile.gettempdir(), "farm-e2e-swarm")
LOCK = Path(tempfile.gettempdir(), "farm-e2e-swarm.lock")
"""Held for as long as a run has its swarm."""
NUMBERS = (1, 2, 3)
STORE_PORT = 5061
BRIDGE_NAME = "farmbr0"
BRIDGE = ["FORWARD", "-i", BRIDGE_NAME, "-o", BRIDGE_NAME, "-j", "ACCEPT"]
CLOSED = [
    "INPUT",
    "-p",
    "tcp",
    "--dport",
    str(STORE_PORT),
    "-j",
    "REJECT",
    "--reject-with",
    "tcp-reset",
]


@contextlib.contextmanager
def alone(*, waits: bool) -> Iterator[bool]:
    """Whether no other run has a swarm now; one that waits always gets it."""
    with LOCK.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def clean() -> None:
    for _ in range(3):  # what is killed may just have started something
        if not _kill():
            break
        time.sleep(0.5)
    for line in reversed(Path("/proc/mounts").read_text().splitlines()):
        target = line.split()[1]
        if target.startswith(f"{FOLDER}/"):
            subprocess.run(["umount", "-l", target], capture_output=True, check=False)
    commands = [["iptables", "-D", *BRIDGE], ["iptables", "-D", *CLOSED]]
    commands += [["ip", "link", "del", f"farmv{number}"] for number in NUMBERS]
    commands += [["ip", "netns", "del", f"farm{number}"] for number in NUMBERS]
    commands += [["ip", "link", "del", BRIDGE_NAME]]
    for command in commands:
        if shutil.which(command[0]):
            subprocess.run(command, capture_output=True, check=False)
    shutil.rmtree(FOLDER, ignore_errors=True)


def _kill() -> int:
    """Kills what has the folder in its command line: containerd and containers outlive their
    daemon.
    """
    mark, count = f"{FOLDER}/".encode(), 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                count += 1
    return count


def main() -> None:
    if os.geteuid() != 0:
        return  # nobody else could make a swarm, or end one
    with alone(waits=False) as free:
        if free:
            clean()
        else:
            print(f"another run has its swarm in {FOLDER} now: it stays", flush=True)


if __name__ == "__main__":
    main()
