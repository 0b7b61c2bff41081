"""Runs verify, inspect and repair on files named on stdin, in a fork for each file with little memory and time.

A line in: the folder of a case, which holds `in/`, `out/`, `tmp/`. A line out: JSON, operation to [outcome, text].
"""

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import iced_x86  # noqa: F401 (what is loaded before the fork does not count)

from farm.base.errors import FarmError
from farm.wheel.inspect import inspect
from farm.wheel.policy import Policy
from farm.wheel.repair import repair
from farm.wheel.tags import policies
from farm.wheel.vendor import RepairOptions
from farm.wheel.verify import verify

MEMORY = 256 << 20
SECONDS = 20
POLICY = Policy(name="canary", version="1.0", python="cp311", platform="linux_x86_64", sass=(35,), cpu="avx")


def attempt(run: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    try:
        return run()
    except FarmError as error:
        return type(error).__name__, str(error)
    except BaseException as error:
        return "CRASH", repr(error)[:500]


def operations(wheel: Path, out: Path) -> dict[str, Callable[[], tuple[str, str]]]:
    def verified() -> tuple[str, str]:
        report = verify(wheel, POLICY)
        return "passed" if report.passed else "failed", "\n".join(f.what for f in report.findings)

    def inspected() -> tuple[str, str]:
        return "ok", json.dumps(inspect(wheel).to_json())[:1000]

    def repaired() -> tuple[str, str]:
        result = repair(wheel, out, RepairOptions(into="canary/lib"))
        return "ok", result.wheel.name

    return {"verify": verified, "inspect": inspected, "repair": repaired}


def limited(case: Path, runs: dict[str, Callable[[], tuple[str, str]]]) -> dict[str, tuple[str, str]]:
    """The outcomes of `runs` in one fork that may take `MEMORY` bytes and `SECONDS` of CPU more than it has.

    Memory is what the process can write to (RLIMIT_DATA): address space that a thread's allocator merely reserves,
    64 MB each, and files that are mapped to be read do not count.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.chdir(case)
        tempfile.tempdir = str(case / "tmp")
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        with os.fdopen(write, "w") as answers:
            for name, run in runs.items():
                kind, text = attempt(run)
                print(json.dumps([name, kind, text[:60_000]]), file=answers, flush=True)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        found = {name: (kind, text) for name, kind, text in map(json.loads, lines)}
    _, status = os.waitpid(child, 0)
    how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status}"
    return {name: found.get(name, ("KILLED", how)) for name in runs}


def main() -> None:
    """`python hostile_child.py WHEEL`: a good wheel, so that what the operations import and read first is there."""
    policies()
    with tempfile.TemporaryDirectory() as out:
        for run in operations(Path(sys.argv[1]), Path(out)).values():
            run()
    for line in sys.stdin:
        case = Path(line.strip())
        [wheel] = (case / "in").iterdir()
        print(json.dumps(limited(case, operations(wheel, case / "out"))), flush=True)


if __name__ == "__main__":
    main()
