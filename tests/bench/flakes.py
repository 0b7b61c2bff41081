"""Are there tests that fail sometimes? `python tests/bench/flakes.py [--runs 20] [--load 20]`, a Markdown table.

What `make test` and `make integration` run, so many times, in a random order each (FARM_TEST_ORDER=SEED repeats one)
with new random inputs (FARM_HYPOTHESIS=random), while so many busy processes keep the machine at that load; then each
folder of tests alone, in its own order. Exit code 1 if any test failed.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
KINDS = ("unit", "golden", "integration")


@dataclass(frozen=True)
class Run:
    """One call of pytest."""

    what: str
    passed: int
    failed: tuple[str, ...]
    seconds: float
    load: float

    def row(self) -> str:
        return f"| {self.what} | {self.passed} | {len(self.failed)} | {self.seconds:.0f} | {self.load:.0f} |"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only count."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def pytest(what: str, *arguments: str, **environment: str) -> Run:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, errors="replace", check=False
    )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    passed = re.search(r"(\d+) passed", done.stdout)
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]!r}"]
    seconds = time.monotonic() - started
    return Run(what, int(passed[1]) if passed else 0, tuple(failed), seconds, os.getloadavg()[0])


def folders() -> list[str]:
    """Each folder with tests of its own."""
    found = {path.parent for kind in KINDS for path in (ROOT / "tests" / kind).rglob("test_*.py")}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--load", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1), help="of pytest-xdist")
    parser.add_argument("--no-folders", action="store_true", help="not each folder alone")
    args = parser.parse_args()
    runs = []
    print("| run | passed | failed | seconds | load at its end |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
    with busy(args.load):
        for number in range(1, args.runs + 1):
            seed = str(number)
            together = ("--dist", "worksteal", "-n", str(args.workers), *(f"tests/{kind}" for kind in KINDS))
            runs.append(pytest(f"all, order {seed}", *together, FARM_TEST_ORDER=seed, FARM_HYPOTHESIS="random"))
            print(runs[-1].row(), flush=True)
    for folder in [] if args.no_folders else folders():
        runs.append(pytest(f"`{folder}` alone", folder))
        print(runs[-1].row(), flush=True)
    failures = [f"- {run.what}: {name}" for run in runs for name in run.failed]
    print("\n" + ("\n".join(failures) if failures else f"0 failures in {len(runs)} runs"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
