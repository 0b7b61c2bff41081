"""How long the main job takes: `make bench`. Needs a Docker engine.

Runs the main job twice in a project of its own and prints the second run, where the image is present, step by step;
the farm's own share is all but image, compile and pip. Also the start of the command. Goals: 90 s, 3 s, 0.15 s.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
NOT_OURS = ("image", "build", "install")
STARTS = 20


def farm(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(project), *arguments]
    environ = {**os.environ, "CI": "true"}
    return subprocess.run(command, cwd=ROOT, env=environ, check=True, stdout=subprocess.PIPE, text=True).stdout


def timed_run(project: Path) -> tuple[float, dict[str, float]]:
    start = time.perf_counter()
    said = json.loads(farm(project, "submit", "--variant", "sm35-avx-py311", "--package", "canary", "--json"))
    whole = time.perf_counter() - start
    return whole, {step["step"]: step["seconds"] for step in said["steps"]}


def start_times() -> list[float]:
    command = [str(Path(sys.executable).with_name("farm")), "--version"]
    seconds = []
    for _ in range(STARTS):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="farm-bench-") as folder:
        project = Path(folder)
        for name in ("ci", "dockerfiles"):
            shutil.copytree(ROOT / name, project / name)
        timed_run(project)
        whole, steps = timed_run(project)
    own = whole - sum(steps[name] for name in NOT_OURS)
    started = statistics.median(start_times())
    table = Table(title="the main job, second run, image present")
    for column in ("what", "seconds", "of the whole", "goal", "share of the goal"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, seconds in steps.items():
        table.add_row(name, f"{seconds:.2f}", f"{seconds / whole:.0%}", "", "")
    for name, seconds, goal in (
        ("whole", whole, 90.0),
        ("the farm's own share", own, 3.0),
        ("farm --version", started, 0.15),
    ):
        table.add_row(name, f"{seconds:.2f}", f"{seconds / whole:.0%}", f"{goal:g}", f"{seconds / goal:.0%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
