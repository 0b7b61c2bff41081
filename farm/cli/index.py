"""`farm index …`: the hosted index. One module a subcommand, one line each here."""

import argparse

from farm.cli import (
    index_check,
    index_dependencies,
    index_events,
    index_key,
    index_lifecycle,
    index_probe,
    index_reconcile,
    index_serve,
    index_variant,
    index_verify,
)

MODULES = (
    index_probe,
    index_check,
    index_reconcile,
    index_events,
    index_dependencies,
    index_serve,
    index_variant,
    index_verify,
    index_key,
    index_lifecycle,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    for module in MODULES:
        module.add(below)


def run(args: argparse.Namespace) -> int:
    return int(args.index_run(args))
