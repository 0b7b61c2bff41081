"""`farm wait`: wait until runs have ended, and end with the highest of their exit codes."""

import argparse

from farm.cli.selection import add_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli.execution import wait_for_ends
    from farm.cli.project import journal_with_a_run
    from farm.cli.selection import runs_of

    with journal_with_a_run(args) as journal:
        named = runs_of(args, journal) if args.run else journal.open_runs()
        return wait_for_ends(args, journal, [run.id for run in named])
