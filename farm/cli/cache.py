"""`farm cache report`: what the compiler cache did for the builds of this project."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["report"], help="hits and misses; gpu, cpu, python: what the objects depend on"
    )
    parser.add_argument("run", nargs="*", metavar="RUN", help="runs by their ids (default: all that have counts)")


def run(args: argparse.Namespace) -> int:
    """Hits by language and axis, of the runs that are named or of all."""
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.cli.project import project_of
    from farm.run.journal.cache import FILE, Line, lines, read_counts, total

    project, settings = project_of(args)
    folder = project / settings.artifacts / "runs"
    names: Sequence[str] = args.run or sorted(path.parents[1].name for path in folder.glob(f"*/{FILE}"))
    rows = []
    for name in names:
        # `.name`: what someone types is the name of a folder, not a path out of it.
        path = folder / Path(name).name / FILE
        if not path.is_file():
            raise UsageError(
                f"run {name} has no compiler cache statistics",
                hint="a run gets them when its build ends, if its recipe uses a compiler cache",
            )
        rows += read_counts(path)
    found = lines(rows)
    if args.json:
        documents = [{**line.model_dump(), "hits": round(line.hits, 4)} for line in found]
        print(json.dumps({"runs": list(names), "lines": documents}, indent=2))
        return 0

    def cells(line: Line) -> tuple[str, ...]:
        numbers = (line.compiles, line.direct, line.preprocessed, line.miss, line.other)
        return (line.language, line.axis, *map(str, numbers), f"{line.hits:.1%}")

    columns = ("language", "axis", "compiles", "hits, direct", "hits, preprocessed", "misses", "not cached", "hits")
    show.table(f"the compiler cache in {len(names)} runs", columns, [cells(line) for line in (*found, total(rows))])
    return 0
