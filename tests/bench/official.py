"""A wheel beside the official one: the same operations by turns in one run, and the ratio of their
times.

    python tests/bench/official.py --ours ENV/bin/python --official ENV/bin/python --threads 1 16
    [--json FILE] python tests/bench/official.py --ours ENV/bin/python --official ENV/bin/python
    --device cuda [--json FILE]

Both environments have a torch and numpy; the official wheel comes from the Python index. Of the
rounds the fastest counts: other work on the machine makes an operation slower, never faster. The
operations are in `official_child.py`.
"""

import argparse
import json
import math
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("official_child.py")
SIDES = ("ours", "official")
SLOW, MARGIN, CHILD_LIMIT = 0.9, 1.05, 300
Run = dict[str, Any]


def once(python: Path, threads: int, device: str) -> Run:
    """What one process measured; what it wrote before a crash or its limit counts."""
    env = os.environ if device == "cuda" else os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    run: Run = {"version": "?", "device": "?", "seconds": {}, "errors": {}, "memory": {}}
    with tempfile.TemporaryFile("w+") as output:
        try:
            command = [str(python), str(CHILD), str(threads), device]
            done = subprocess.run(command, stdout=output, env=env, timeout=CHILD_LIMIT, check=False)
            end = f"exit code {done.returncode}" if done.returncode else None
        except subprocess.TimeoutExpired:
            end = f"over {CHILD_LIMIT} s"
        output.seek(0)
        rows = [
            json.loads(line) for line in output if line.startswith("{") and line.endswith("}\n")
        ]
    for row in rows:
        if "version" in row:
            run |= row
        elif "memory" in row:
            run["memory"][row["memory"]] = row["bytes"]
        elif "error" in row:
            run["errors"][row["name"]] = row["error"]
        else:
            run["seconds"][row["name"]] = row["seconds"]
    if end:
        run["errors"]["the process"] = f"{end} after {rows[-1] if rows else 'nothing'}"
    return run


def together(runs: list[Run]) -> Run:
    """The fastest time and the most memory of each name, and every error."""
    whole: Run = runs[0] | {"seconds": {}, "errors": {}, "memory": {}}
    for key, better in (("seconds", min), ("memory", max), ("errors", min)):
        for run in runs:
            for name, value in run[key].items():
                whole[key][name] = better(value, whole[key].get(name, value))
    return whole


def ratios(first: Run, second: Run, key: str) -> dict[str, float]:
    """The second's values over the first's, of what both have."""
    return {
        name: second[key][name] / value for name, value in first[key].items() if name in second[key]
    }


def table(ours: Run, official: Run, key: str, unit: str, size: float) -> dict[str, float]:
    by_name = ratios(ours, official, key)
    print(f"{key:45} {'ours ' + unit:>11} {'official ' + unit:>12} {'ratio':>6}")
    for name, ratio in by_name.items():
        print(
            f"{name:45} {ours[key][name] / size:11.3f} {official[key][name] / size:12.3f} "
            f"{ratio:6.2f}"
        )
    return by_name


def mean(values: list[float]) -> float:
    """The geometric one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def compare(ours: Run, official: Run) -> Run:
    """Prints both side by side and returns what the file keeps of them."""
    speeds = table(ours, official, "seconds", "ms", 1e-3)
    fuzzed = {name for name in speeds if name.startswith("fuzzed ")}
    means = {
        kind: round(mean([speeds[name] for name in names]), 3)
        for kind, names in (("all", speeds), ("fuzzed", fuzzed), ("others", speeds.keys() - fuzzed))
        if names
    }
    slow = {
        name: round(speed, 3)
        for name, speed in sorted(speeds.items(), key=lambda row: row[1])
        if speed < SLOW
    }
    print(f"geometric means of {len(speeds)} speeds: {means}; below {SLOW}: {len(slow)}")
    for name, speed in slow.items():
        print(f"  {speed:.2f} {name}")
    table(ours, official, "memory", "MB", 1e6)
    sides = {"ours": ours, "official": official}
    for side, run in sides.items():
        for name, error in run["errors"].items():
            print(f"error, {side}: {name}: {error}")
    print()
    times = {side: run["seconds"] for side, run in sides.items()}
    rest = {
        key: {side: run[key] for side, run in sides.items()}
        for key in ("version", "device", "memory", "errors")
    }
    return times | {"geometric mean": means, f"below {SLOW}": slow} | rest


def show_slower_with_more(kept: dict[int, Run]) -> None:
    """The operations that more threads make slower, beside what they do to the official wheel."""
    few, many = min(kept), max(kept)
    more = {side: ratios(kept[few], kept[many], side) for side in SIDES}
    print(f"slower with {many} threads than with {few}, by more than {MARGIN - 1:.0%}:")
    for name, ratio in more["ours"].items():
        if ratio > MARGIN:
            print(
                f"{name:45} {ratio:6.2f} times as long; official "
                f"{more['official'].get(name, math.nan):6.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours", type=Path, required=True, help="the Python that has the wheel")
    parser.add_argument(
        "--official", type=Path, required=True, help="the Python that has the official wheel"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the times to this file")
    args = parser.parse_args()
    kept: dict[int, Run] = {}
    for threads in args.threads:
        runs: dict[str, list[Run]] = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            for side, measured in runs.items():
                measured.append(once(getattr(args, side), threads, args.device))
        ours, official = (together(measured) for measured in runs.values())
        print(
            f"{threads} threads, {ours['device']}: ours {ours['version']}, official "
            f"{official['version']}"
        )
        kept[threads] = compare(ours, official)
        if args.json:
            args.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if len(kept) > 1:
        show_slower_with_more(kept)


if __name__ == "__main__":
    main()
