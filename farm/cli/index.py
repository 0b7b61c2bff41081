"""`farm index …`: the hosted index. One module a subcommand, one line each here."""

import argparse
from typing import TYPE_CHECKING

from farm.cli import (
    index_check,
    index_dependencies,
    index_events,
    index_key,
    index_probe,
    index_reconcile,
    index_serve,
    index_variant,
    index_verify,
)

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add(commands: "Commands") -> None:
    """Registers `farm index` and what is below it."""
    text = "look after the index: check it, rebuild it, yank, quarantine, serve, sign, verify"
    parser = commands.add_parser("index", help=text, description=text[0].upper() + text[1:] + ".")
    below = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    index_probe.add(below)
    index_check.add(below)
    index_reconcile.add(below)
    index_events.add(below)
    index_dependencies.add(below)
    index_serve.add(below)
    index_variant.add(below)
    index_verify.add(below)
    index_key.add(below)


def cmd_index(args: argparse.Namespace) -> int:
    """Carry out the subcommand that was parsed; returns the exit code."""
    return int(args.index_run(args))
