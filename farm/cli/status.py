"""`farm status`: the runs, their steps, and why a run waits."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="an id or its beginning (default: the newest runs)")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="how many runs (default: 20)")
    parser.add_argument("--watch", action="store_true", help="update it until every run has ended")


def run(args: argparse.Namespace) -> int:
    from farm.cli.runs import cmd_status

    return cmd_status(args)
