"""How long it takes to plan and render every build of the eight branches, each once, in one process. Goal: 0.8 s.

The catalogue, the channels and the templates are read within that time, as the first build does. Processor time is
beside the clock's, which is worth little while others use the machine.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farm.plan.build import resolve
from farm.plan.matrix import Build, load_matrix
from farm.plan.render import render
from farm.plan.selectors import Selectors

ROOT = Path(__file__).parents[2]
GOAL_S = 0.8


def builds() -> Iterator[Build]:
    matrix = load_matrix(ROOT)
    for name in matrix.channels:
        if name == "main" or name.startswith("pytorch-"):
            yield from matrix.builds(name)


def selectors(build: Build) -> Selectors:
    options = {"cuda": (build.cuda, "bench")} if build.cuda else {}
    return Selectors(build.variant, build.package, build.platform, build.channel, options)


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main() -> None:
    marks = [_now()]
    plans = [resolve(ROOT, selectors(build)) for build in builds()]
    marks.append(_now())
    for plan in plans:
        render(ROOT, plan)
    marks.append(_now())
    table = Table(title=f"planning and rendering every build of the eight branches ({len(plans)}; goal {GOAL_S} s)")
    for column in ("time", "plan s", "render s", "total s", "share of the goal"):
        table.add_column(column, justify="left" if column == "time" else "right")
    for which, name in enumerate(("clock", "processor")):
        first, second, third = (mark[which] for mark in marks)
        total = third - first
        table.add_row(name, f"{second - first:.2f}", f"{third - second:.2f}", f"{total:.2f}", f"{total / GOAL_S:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
