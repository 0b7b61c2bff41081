"""`farm index unyank`: takes a yank back."""

import argparse

from farm.cli.index_options import add_event, add_writing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="WHEEL", help="the wheel's file name")
    parser.add_argument("--reason", default="", help="kept in the event")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    return add_event(args, "unyank")
