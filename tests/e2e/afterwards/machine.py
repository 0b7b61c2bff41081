"""What the end-to-end tests must leave as it was: `machine.py FILE` writes the machine's state as
JSON.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

MARK = "FARM_E2E_RUN"
"""`tests/e2e/run` gives its own id in this variable to everything that it starts."""
FOLDERS = ("/etc", "/opt", "/run", "/srv", "/usr/local", "/var/lib")
# Docker's own state, the package manager's, sshd's, the shared memory of whoever runs, and lists
# that others renew.
OTHERS = re.compile(
    r"^(/run/(docker|containerd|lock|user|udev|systemd|sshd)|/var/lib/(docker|containerd|apt|dpkg|systemd)|/etc/(mtab|resolv\.conf))(/|$)"
)
KEPT_IMAGES = re.compile(r"^farm/")
"""Base and toolchain images stay as the next run's cache (CONTRIBUTING.md)."""
KEPT_VOLUMES = re.compile(r"^farm-ccache")
USED_UP = re.compile(r"^farm-tree-")
"""The tree of an interrupted build: whoever builds the same plan goes on from it and removes it."""
KEPT_AT_HOME = (".cache", ".npm")
"""Downloads, kept for the next run; npm has its own place for them."""
SHARED_AT_HOME = (".config", ".local", ".local/share", ".local/state")
"""Where programs have a folder each: they are there on a machine that is used, and what is new in
them counts.
"""


def state() -> dict[str, list[str]]:
    """Names of what is there, by kind. What a name alone does not tell (a file's content) is part
    of it.
    """
    return {
        "network links": _names("/sys/class/net"),
        "addresses": _lines("ip", "-o", "addr", "show", pattern=r"^\d+: (\S+ +inet \S+)"),
        "network namespaces": _names("/run/netns"),
        "firewall rules": _lines("iptables", "-S", pattern=r"(.*)"),
        "mounts": sorted(
            {
                place
                for line in Path("/proc/mounts").read_text().splitlines()
                if not OTHERS.match(place := line.split()[1])
            }
        ),
        "images": [
            name
            for name in _docker("images", "{{.Repository}}:{{.Tag}} {{.ID}}")
            if not KEPT_IMAGES.match(name)
        ],
        "volumes": [
            name for name in _docker("volume ls", "{{.Name}}") if not KEPT_VOLUMES.match(name)
        ],
        "containers": _docker("ps -a", "{{.ID}} {{.Names}}"),
        "networks": _docker("network ls", "{{.ID}} {{.Name}}"),
        "processes": sorted(_processes()),
        "files": sorted(_files()),
    }


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """A line for each thing that is new or gone."""
    found = []
    for kind, names in before.items():
        found += [f"{kind}: new: {name}" for name in sorted(set(after[kind]) - set(names))]
        gone = sorted(set(names) - set(after[kind]))
        found += [
            f"{kind}: gone: {name}" for name in gone if kind != "volumes" or not USED_UP.match(name)
        ]
    return found


def _names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []


def _lines(*command: str, pattern: str) -> list[str]:
    if not shutil.which(command[0]):
        return []
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return sorted(
        match[1] for line in done.stdout.splitlines() if (match := re.match(pattern, line))
    )


def _docker(command: str, form: str) -> list[str]:
    return _lines("docker", *command.split(), "--format", form, pattern=r"(.*)")


def _processes() -> Iterator[str]:
    """Those of this run that are no ancestors of this process; without a run, none."""
    run = os.environ.get(MARK)
    if not run:
        return
    ours = set(_ancestors(os.getpid()))
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment, command = (
                (entry / "environ").read_bytes(),
                (entry / "cmdline").read_bytes(),
            )
        except OSError:
            continue
        if f"{MARK}={run}".encode() in environment.split(b"\0") and int(entry.name) not in ours:
            yield f"{entry.name} {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}"


def _ancestors(pid: int) -> Iterable[int]:
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _files() -> Iterator[str]:
    for top in FOLDERS:
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if not OTHERS.match(f"{folder}/{name}")]
            if folder.count("/") > 4:  # deep enough for what a test might leave
                folders.clear()
            yield folder
            for name in names:
                path = Path(folder, name)
                if OTHERS.match(str(path)) or not path.exists():
                    continue
                status = path.lstat()
                yield (
                    f"{path} {status.st_size} {status.st_mtime_ns}" if top == "/etc" else str(path)
                )
    # Written to by a test whose jobs of the host engine could meet another group's: fixture
    # own_machine_lock.
    for path in Path(tempfile.gettempdir()).glob("torch-farm-*.lock"):
        yield f"{path} {path.lstat().st_mtime_ns}"
    home = Path.home()
    for folder in (home, *(home / name for name in SHARED_AT_HOME)):
        if folder.is_dir():
            yield from (str(path) for path in folder.iterdir() if path.name not in KEPT_AT_HOME)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(state(), indent=1))
