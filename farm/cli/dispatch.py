"""`farm dispatch`: the scheduler in the foreground."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(args: argparse.Namespace) -> int:
    from farm.cli.runs import cmd_dispatch

    return cmd_dispatch(args)
