"""`farm cancel`: stop a run."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="an id or its beginning")


def run(args: argparse.Namespace) -> int:
    from farm.cli.runs import cmd_cancel

    return cmd_cancel(args)
