"""Reads a large library in a process of its own.

Decoding machine code is Python's own work and holds its lock: in a thread it would keep the others from unpacking and
hashing, and a second library from being decoded at the same time.
"""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

from farm.base.errors import InfrastructureError
from farm.base.text import printable
from farm.wheel.archive import Spooled
from farm.wheel.library import Library, read_library

_ROOT = Path(__file__).parents[2]  # what the other process must find this package by


def read_in_process(path: str, sha256: str, data: Spooled, level: str, *, on_load: bool) -> Library:
    """As `read_library`. POSIX only: the other process inherits the open file.

    Raises:
        InfrastructureError: The other process did not end well, for lack of memory as a rule.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 (slow to import, and not always needed)

    request = json.dumps([data.fd, path, sha256, level, on_load])
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", __name__, request],
        pass_fds=[data.fd],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last_line = printable(done.stderr.decode(errors="replace").strip().rpartition("\n")[2])
        raise InfrastructureError(f"decoding {path!r} in its own process ended with {done.returncode}: {last_line}")
    return TypeAdapter(Library).validate_python(json.loads(done.stdout))


def main(request: str) -> None:
    """Print the facts of a library as JSON; its file is one that the caller has open."""
    fd, path, sha256, level, on_load = json.loads(request)
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
        found = read_library(path, sha256, data, level, on_load=on_load)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
