"""`farm index mirrors`: a project's pages name the other indexes that have it."""

import argparse

from farm.cli.index_options import add_event, add_writing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="PROJECT", help="the name of a project")
    text = "the roots of all indexes that have it, this one too: a copy has the same pages (none: it is nowhere else)"
    parser.add_argument("mirrors", metavar="URL", nargs="*", help=text)
    parser.add_argument("--reason", default="", help="kept in the event")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    return add_event(args, "mirrors", mirrors=args.mirrors)
