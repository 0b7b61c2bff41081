"""CPU time of `farm index check` and `reconcile` on large indexes in a folder: `python tests/bench/index_size.py`.

Wheels are empty files, so that their hashing takes no time. `first`: no page is there yet; `again`: all are right.
"""

import resource
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from farm.index.check import check  # noqa: E402
from farm.index.reconcile import reconcile  # noqa: E402
from tests.integration.index.test_linear import fill  # noqa: E402

SIZES = ((1000, 1), (2000, 1), (5000, 1), (20000, 100))
"""Wheels of one project, and the groups over which they are spread."""


def seconds(work: Callable[[], object]) -> float:
    """User and system time of this process and its threads."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    table = Table(title="CPU seconds")
    for column in ("wheels", "groups", "reconcile, first", "reconcile, again", "check"):
        table.add_column(column, justify="right")
    for wheels, groups in SIZES:
        with tempfile.TemporaryDirectory(prefix="farm-size-") as folder:
            store = fill(Path(folder) / "index", wheels, groups)
            times = [seconds(work) for work in (lambda: reconcile(store), lambda: reconcile(store))]  # noqa: B023
            times.append(seconds(lambda: check(store)))  # noqa: B023
        table.add_row(str(wheels), str(groups), *(f"{time:.1f}" for time in times))
        Console(stderr=True).print(wheels, groups, *(f"{time:.1f}" for time in times))
    Console().print(table)


if __name__ == "__main__":
    main()
