"""`farm index …`: the hosted index. A subcommand is a module `index_NAME` of `farm.cli`, as a command is one."""

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import cast

from farm.cli.main import Command

COMMANDS: Mapping[str, str] = {
    "probe": "check that the store honours conditional writes",
    "check": "read the whole index as a client does, hash every wheel, and report what is broken or unfinished",
    "reconcile": "write every page anew from the records and events, and sign everything again where there is a key",
    "yank": "have installers skip a wheel unless its exact version is asked for (PEP 592)",
    "unyank": "take a yank back",
    "quarantine": "withhold the links to a wheel, or to all wheels of a project (PEP 792), or offer them again",
    "remove": "delete wheels for good; their names stay taken (yank and quarantine can be undone)",
    "prune": "remove old wheels by a rule, or by the rules of ci/farm.yaml (retention)",
    "promote": "list wheels in a further group, without copying them",
    "mirrors": "say which other indexes have the same project: its copies and mirrors (PEP 708)",
    "adopt": "publish wheels that lie in a folder or in another index",
    "copy": "copy an index, or what is missing, to another store: a backup, a mirror or a move",
    "dependencies": "write pages of links to the packages that the wheels need, in versions that fit",
    "variant": "put a labelled copy of a wheel into whl/variant/, where uv's preview of wheel variants finds it",
    "serve": "serve an index that is a folder over HTTP, for this machine alone",
    "verify": "compare an index with what its owner signed: every page, and where every wheel comes from",
    "sign": "sign all pages again as they are, so that their signatures do not expire",
    "key": "make, add and revoke the keys that sign the index",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="index_command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        one = below.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name != "key":  # each of its subcommands has one
            one.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        _module(name).add_arguments(one)


def run(args: argparse.Namespace) -> int:
    return _module(args.index_command).run(args)


def _module(name: str) -> Command:
    return cast(Command, import_module(f"farm.cli.index_{name}"))
