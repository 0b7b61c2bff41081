"""Are there tests that fail sometimes? `python tests/bench/flakes.py [--runs 20] [--load 20]`, a Markdown table.

The tests of `make test`, so many times, and those of `make integration` (`--integration`, as often), in a random order
each (FARM_TEST_ORDER=SEED repeats one) with new random inputs (FARM_HYPOTHESIS=random), while the machine is kept at
that load; then each folder of tests alone, in its own order. What pytest says of a failure goes to standard error. Exit
code 1 if any test failed.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = ("unit", "golden")  # what `make test` runs
LOOK_S = 5.0


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


def running() -> int:
    """How many threads of this machine run or wait for a CPU now."""
    return int(re.search(r"^procs_running (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)[1])  # type: ignore[index]


@contextlib.contextmanager
def kept_at(load: int) -> Iterator[None]:
    """As many processes that only count as are missing to `load`, beside what else runs here (the tests too)."""
    started: list[subprocess.Popen[bytes]] = []
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            seen: list[int] = []
            while len(seen) < 5 and not over.wait(LOOK_S / 5):
                seen.append(running())
            missing = load - (sorted(seen)[len(seen) // 2] if seen else load)
            for _ in range(missing):
                started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            for _ in range(min(-missing, len(started))):
                end(started.pop())
        while started:
            end(started.pop())

    def end(process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


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
    if failed:
        print(f"== {what}\n{done.stdout[-20000:]}{done.stderr[-2000:]}", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    return Run(what, int(passed[1]) if passed else 0, tuple(failed), seconds, os.getloadavg()[0])


def folders() -> list[str]:
    """Each folder with tests of its own."""
    found = {path.parent for kind in (*TEST, "integration") for path in (ROOT / "tests" / kind).rglob("test_*.py")}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--load", type=int, default=20)
    parser.add_argument("--integration", type=int, help="runs of `make integration` (as many as of `make test`)")
    parser.add_argument("--workers", type=int, default=2 * (os.cpu_count() or 1), help="of pytest-xdist")
    parser.add_argument("--first", type=int, default=1, help="the first order: 3 to go on with a table of two runs")
    parser.add_argument("--no-folders", action="store_true", help="not each folder alone")
    args = parser.parse_args()
    integration = args.runs if args.integration is None else args.integration
    rounds = [*[("make test", TEST)] * args.runs, *[("make integration", ("integration",))] * integration]
    runs = []
    print("| run | passed | failed | seconds | load at its end |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
    with kept_at(args.load):
        for number, (name, kinds) in enumerate(rounds, args.first):
            seed = str(number)
            together = ("--dist", "worksteal", "-n", str(args.workers), *(f"tests/{kind}" for kind in kinds))
            runs.append(pytest(f"`{name}`, order {seed}", *together, FARM_TEST_ORDER=seed, FARM_HYPOTHESIS="random"))
            print(runs[-1].row(), flush=True)
    for folder in [] if args.no_folders else folders():
        runs.append(pytest(f"`{folder}` alone", folder))
        print(runs[-1].row(), flush=True)
    failures = [f"- {run.what}: {name}" for run in runs for name in run.failed]
    print("\n" + ("\n".join(failures) if failures else f"0 failures in {len(runs)} runs"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
