"""`farm logs`: the build log of a run."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="an id or its beginning (default: the newest run)")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run has ended")


def run(args: argparse.Namespace) -> int:
    from farm.cli.runs import cmd_logs

    return cmd_logs(args)
