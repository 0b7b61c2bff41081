"""A wheel beside the official one of the same release: each operation by turns in one run, and the
ratio of their times.

    python tests/bench/official.py --ours ENV/bin/python --official ENV/bin/python --threads 1 16
    [--tier avx2] [--json FILE]
    python tests/bench/official.py --ours ENV/bin/python --official ENV/bin/python --device cuda

Both environments have a torch and numpy; the official wheel comes from the Python index. A process
of each wheel waits for its turn at each operation, so that both meet the same load; of the rounds
the least counts. With one thread the clock is the process's CPU time, which other work on the
machine hardly changes; with more it is the wall. The operations are in `official_operations.py`.

`--tier` adds a third side: the official wheel held to that CPU tier. An operation that is slow
beside the official wheel and not beside this one lacks the tier, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

CHILD = Path(__file__).with_name("official_child.py")
SLOW, MARGIN = 0.9, 1.05
START_LIMIT_S, OPERATION_LIMIT_S = 300, 120
Row = dict[str, Any]


class Side(NamedTuple):
    """A Python with a torch, and what its environment has beside this one's."""

    name: str
    python: Path
    environment: dict[str, str]


class Child:
    """The process of a side; it is started again after a crash."""

    def __init__(self, side: Side, threads: int, device: str) -> None:
        self.side = side
        # absolute, but not resolved: the Python of an environment is a link
        self.command = [str(side.python.absolute()), str(CHILD), str(threads), device]
        self.environment = os.environ | side.environment
        if device == "cpu":
            self.environment = self.environment | {"CUDA_VISIBLE_DEVICES": ""}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.torch = self.read(START_LIMIT_S)
        if "error" in self.torch:
            raise SystemExit(f"{self.side.name}: {self.torch['error']}")

    def read(self, limit_s: float) -> Row:
        """The next line; an error where the process ends or takes longer than its limit."""
        assert self.process.stdout is not None
        timer = threading.Timer(limit_s, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line.endswith("\n"):
            row: Row = json.loads(line)
            return row
        return {"error": f"the process ended: exit code {self.process.wait()}"}

    def measure(self, name: str, seconds: float) -> Row:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\t{seconds}\n")
        self.process.stdin.flush()
        row = self.read(OPERATION_LIMIT_S)
        if self.process.poll() is not None:
            self.start()
        return row

    def finish(self) -> dict[str, int]:
        """Memory at the end, of the process that is left."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        memory: dict[str, int] = self.read(OPERATION_LIMIT_S).get("memory", {})
        self.process.wait()
        return memory


class Run:
    """Times and errors of all sides with one number of threads."""

    def __init__(self, sides: list[Side], threads: int, device: str) -> None:
        self.clock = "cpu" if device == "cpu" and threads == 1 else "wall"
        self.threads = threads
        self.children = [Child(side, threads, device) for side in sides]
        self.times: dict[str, dict[str, Row]] = {side.name: {} for side in sides}
        self.errors: dict[str, dict[str, str]] = {side.name: {} for side in sides}
        self.memory: dict[str, dict[str, int]] = {}
        self.groups: dict[str, list[str]] = {}

    def measure(
        self, rounds: int, seconds: float, wanted: list[str], save: Callable[[Run], None]
    ) -> None:
        """All operations that the first side has, each by turns; saves after each group."""
        for child in self.children:
            self.errors[child.side.name].update(child.torch["errors"])
        for group, names in self.children[0].torch["groups"].items():
            if wanted and group not in wanted:
                continue
            self.groups[group] = names
            for name in names:
                self.take_turns(name, rounds, seconds)
            save(self)
        self.memory = {child.side.name: child.finish() for child in self.children}
        save(self)

    def take_turns(self, name: str, rounds: int, seconds: float) -> None:
        for _ in range(rounds):
            for child in self.children:
                side = child.side.name
                if name in self.errors[side]:
                    continue
                row = child.measure(name, seconds)
                if "error" in row:
                    self.errors[side][name] = row["error"]
                    continue
                best = self.times[side].setdefault(name, row)
                for clock, value in row.items():
                    best[clock] = min(best[clock], value)

    def ratios(self, side: str) -> dict[str, float]:
        """Speed of ours as a multiple of the side's, of the operations that both have."""
        return {
            name: self.times[side][name][self.clock] / row[self.clock]
            for name, row in self.times["ours"].items()
            if name in self.times[side]
        }

    def means(self, side: str) -> dict[str, float]:
        """Geometric means by group, and of all."""
        ratios = self.ratios(side)
        means = {}
        for group, names in {**self.groups, "all": list(ratios)}.items():
            values = [ratios[name] for name in names if name in ratios]
            if values:
                means[group] = round(math.exp(sum(map(math.log, values)) / len(values)), 3)
        return means

    def slow(self) -> dict[str, float]:
        """The operations that are slower than the official wheel's by more than a tenth."""
        rows = sorted(self.ratios("official").items(), key=lambda row: row[1])
        return {name: round(speed, 3) for name, speed in rows if speed < SLOW}

    def document(self) -> Row:
        """What the file keeps."""
        others = [child.side.name for child in self.children[1:]]
        return {
            "torch": {child.side.name: child.torch["version"] for child in self.children},
            "device": {child.side.name: child.torch["device"] for child in self.children},
            "import, s": {child.side.name: child.torch["import_s"] for child in self.children},
            "clock": self.clock,
            "load": os.getloadavg()[0],
            "geometric means": {side: self.means(side) for side in others},
            f"below {SLOW}": self.slow(),
            "groups": self.groups,
            "times": self.times,
            "memory": self.memory,
            "errors": self.errors,
        }


def show(run: Run) -> None:
    """Prints the table of one run."""
    others = [child.side.name for child in run.children[1:]]
    for child in run.children:
        print(f"{child.side.name}: {child.torch['version']}, {child.torch['device']}")
    print(
        f"{run.threads} threads; times in ms by the {run.clock} clock, then ours' speed beside each"
    )
    print(f"{'':42} {'ours':>10}" + "".join(f"{side:>24}" for side in others))
    speeds = {side: run.ratios(side) for side in others}
    for group, names in run.groups.items():
        print(f"{group}: " + ", ".join(f"{run.means(side).get(group)}" for side in others))
        for name in names:
            if name not in run.times["ours"]:
                continue
            line = f"  {name:40} {run.times['ours'][name][run.clock] * 1e3:10.3f}"
            for side in others:
                if name in speeds[side]:
                    time_ms = run.times[side][name][run.clock] * 1e3
                    line += f"{time_ms:16.3f} {speeds[side][name]:7.2f}"
            print(line)
    for side in others:
        print(f"geometric means, {side}: {run.means(side)}")
    print(f"below {SLOW}: {run.slow()}")
    print(f"memory in bytes: {run.memory}")
    for side, errors in run.errors.items():
        for name, error in errors.items():
            print(f"error, {side}: {name}: {error}")
    print()


def show_slower_with_more(runs: list[Run]) -> None:
    """The operations that more threads make slower, beside what they do to the official wheel."""
    few, many = runs[0], runs[-1]
    print(f"slower with {many.threads} threads than with {few.threads}, of wall time:")
    for name, row in many.times["ours"].items():
        before = few.times["ours"].get(name)
        if before is None or row["wall"] < MARGIN * before["wall"]:
            continue
        other = math.nan
        if name in many.times["official"] and name in few.times["official"]:
            other = many.times["official"][name]["wall"] / few.times["official"][name]["wall"]
        print(f"{name:42} {row['wall'] / before['wall']:6.2f} times as long; official {other:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours", type=Path, required=True, help="the Python that has the wheel")
    parser.add_argument(
        "--official", type=Path, required=True, help="the Python that has the official wheel"
    )
    parser.add_argument("--tier", help="the official wheel held to this tier as well: avx2")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=0.1, help="of an operation's turn (default: %(default)s)"
    )
    parser.add_argument("--group", action="append", default=[], help="this group alone; repeatable")
    parser.add_argument("--json", type=Path, help="write the times to this file")
    args = parser.parse_args()
    sides = [Side("ours", args.ours, {}), Side("official", args.official, {})]
    if args.tier:
        held = {"ATEN_CPU_CAPABILITY": args.tier}
        sides.append(Side(f"official, {args.tier}", args.official, held))
    documents: dict[int, Row] = {}

    def save(run: Run) -> None:
        if args.json:
            documents[run.threads] = run.document()
            args.json.write_text(json.dumps(documents, indent=1) + "\n", encoding="utf-8")

    runs = []
    for threads in args.threads:
        run = Run(sides, threads, args.device)
        run.measure(args.rounds, args.seconds, args.group, save)
        show(run)
        runs.append(run)
    versions = {child.torch["version"].partition("+")[0] for child in runs[0].children}
    if len(versions) > 1:
        print(f"these are different releases, so the ratios say little: {sorted(versions)}")
    if len(runs) > 1:
        show_slower_with_more(runs)


if __name__ == "__main__":
    main()
