"""`farm cache report`: hits of the compiler cache, by language and by axis; each build leaves `cache.json`."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from farm.base.errors import UsageError
from farm.base.yamlfile import Model, load
from farm.cli import show
from farm.cli.project import workspace_of

FILE = Path("built", "cache.json")
"""Where it is in the folder of a run."""
Result = Literal["direct", "preprocessed", "miss", "other"]


class Row(Model):
    """Compiles with the same result. `axis` is what their objects depend on; `other`: the cache did not look.

    `direct` and `preprocessed` are ccache's words for hits: by the sources, or by what they are preprocessed to.
    """

    language: Literal["C", "C++", "CUDA"]
    axis: Literal["cpu", "gpu", "python", "configure"]
    result: Result
    count: int = Field(ge=0, le=10_000_000)


class Counts(Model):
    """The file; a build machine wrote it, so it is checked."""

    version: Literal[1] = Field(alias="schema")
    rows: Annotated[list[Row], Field(max_length=1000)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["report"], help="hits and misses; gpu, cpu, python: what the objects depend on"
    )
    parser.add_argument("run", nargs="*", metavar="RUN", help="runs by their ids (default: all that have counts)")


def run(args: argparse.Namespace) -> int:
    """Hits by language and axis, of the runs that are named or of all."""
    folder = workspace_of(args).artifacts / "runs"
    names = args.run or sorted(path.parents[1].name for path in folder.glob(f"*/{FILE}"))
    kinds: dict[tuple[str, str], Counter[str]] = {}
    for name in names:
        # `.name`: what someone types is the name of a folder, not a path out of it.
        path = folder / Path(name).name / FILE
        if not path.is_file():
            raise UsageError(
                f"run {name} has no compiler cache statistics",
                hint="a run gets them when its build ends, if its recipe uses a compiler cache",
            )
        for row in load(path, Counts).rows:
            kinds.setdefault((row.language, row.axis), Counter())[row.result] += row.count
    lines = [{"language": kind[0], "axis": kind[1], **counts(kinds[kind])} for kind in sorted(kinds)]
    if args.json:
        show.json_document({"runs": list(names), "lines": lines})
        return 0
    whole = {"language": "all", "axis": "", **counts(sum(kinds.values(), Counter()))}
    columns = ("language", "axis", "compiles", "hits, direct", "hits, preprocessed", "misses", "not cached", "hits")
    rows = [(*(str(value) for value in list(line.values())[:-1]), f"{line['hits']:.1%}") for line in (*lines, whole)]
    show.table(f"the compiler cache in {len(names)} runs", columns, rows)
    return 0


def counts(found: Counter[str]) -> dict[str, float]:
    """Compiles in all, by result, and the share of hits, 0 to 1."""
    compiles = found.total()
    hits = (found["direct"] + found["preprocessed"]) / compiles if compiles else 0.0
    return {"compiles": compiles, **{result: found[result] for result in get_args(Result)}, "hits": round(hits, 4)}
