"""`farm index …`: the hosted index. Subcommands are in modules `index_NAME` of `farm.cli`."""

import argparse
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

COMMANDS: Mapping[str, tuple[str, str]] = {
    "check": (
        "pages",
        "read the whole index as a client does, hash every wheel, and report what is broken or unfinished",
    ),
    "reconcile": ("pages", "write every page anew from the records and events"),
    "yank": ("wheels", "have installers skip wheels unless their exact version is asked for (PEP 592)"),
    "unyank": ("wheels", "take a yank back"),
    "remove": ("wheels", "delete wheels for good; their names stay taken (a yank can be undone)"),
    "promote": ("wheels", "list wheels in a further group, without copying them"),
    "variant": (
        "wheels",
        "put a labelled copy of a wheel into whl/variant/, where uv's preview of wheel variants finds it",
    ),
    "verify": ("keys", "compare an index with what its owner signed, and name pages that are not signed"),
    "sign": ("keys", "sign all pages and wheels as they are (TUF)"),
    "keys": ("keys", "say which keys may sign the index, and no others, for a year"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        one = below.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        _module(name).add_arguments(name, one)


def run(args: argparse.Namespace) -> int:
    code: int = _module(args.index_command).run(args)
    return code


def _module(name: str) -> ModuleType:
    return import_module(f"farm.cli.index_{COMMANDS[name][0]}")
