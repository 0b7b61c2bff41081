"""`farm index quarantine`: the links to a wheel or a project are withheld, or offered again."""

import argparse

from farm.cli.index_options import add_event, add_writing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="WHEEL|PROJECT", help="a wheel's file name, or the name of a project")
    parser.add_argument("--reason", required=True, help="kept in the event, and shown on a project's page")
    parser.add_argument("--lift", action="store_true", help="offer the links again")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    return add_event(args, "release" if args.lift else "quarantine")
