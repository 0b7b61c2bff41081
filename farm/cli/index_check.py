"""`farm index check`: walk the index like a client, report every promise that is not kept."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, command, store_of

if TYPE_CHECKING:
    from farm.cli.index_options import Commands


def add(commands: "Commands") -> None:
    text = "walk the index like a client, read and hash all of it, report every broken promise"
    add_index(command(commands, "check", text, run))


def run(args: argparse.Namespace) -> int:
    """Print the problems; 6 when a client can trip over one, 0 otherwise."""
    from farm.cli import show
    from farm.index.check import check

    problems = check(store_of(args))
    broken = sum(problem.broken for problem in problems)
    if args.json:
        print(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        rows = [("broken" if p.broken else "unfinished", p.key, p.what) for p in problems]
        if rows:
            show.table("", ("", "object", "what"), rows)
        show.say(f"{broken} broken, {len(problems) - broken} unfinished")
        if problems:
            show.say("farm index reconcile rebuilds pages from the records")
    return 6 if broken else 0
