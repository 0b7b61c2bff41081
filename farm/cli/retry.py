"""`farm retry`: the plan of a run that has ended, as a new run."""

import argparse

from farm.cli.options import add_detach


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="an id or its beginning")
    add_detach(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli.runs import cmd_retry

    return cmd_retry(args)
