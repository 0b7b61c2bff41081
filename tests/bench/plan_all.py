"""How long it takes to plan and render every build of the eight branches, each once, in one process. Goal: 1 s.

The catalogue, the channels and the templates are read within that time, as the first build does.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from farm.matrix import Build, load_matrix
from farm.plan import Selectors, resolve
from farm.render import render

ROOT = Path(__file__).parents[2]
GOAL_S = 1.0


def builds() -> Iterator[Build]:
    matrix = load_matrix(ROOT)
    for name in matrix.channels:
        if not name.startswith("kepler"):
            yield from matrix.builds(name)


def selectors(build: Build) -> Selectors:
    options = {"cuda": (build.cuda, "bench")} if build.cuda else {}
    return Selectors(build.variant, build.package, build.platform, build.channel, options)


def main() -> None:
    start = time.perf_counter()
    plans = [resolve(ROOT, selectors(build)) for build in builds()]
    planned = time.perf_counter()
    for plan in plans:
        render(ROOT, plan)
    end = time.perf_counter()
    total = end - start
    table = Table(title="planning and rendering every build of the eight branches")
    for column in ("builds", "plan s", "render s", "total s", "goal s", "share of the goal"):
        table.add_column(column, justify="right")
    seconds = [f"{value:.2f}" for value in (planned - start, end - planned, total, GOAL_S)]
    table.add_row(str(len(plans)), *seconds, f"{total / GOAL_S:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
