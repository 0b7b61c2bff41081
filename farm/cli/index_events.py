"""`farm index yank | unyank | quarantine`: what happens to a wheel after it was published."""

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, add_signing_key, command, signer_of, store_of

if TYPE_CHECKING:
    from farm.cli.index_options import Commands
    from farm.index.events import Kind


def add(commands: "Commands") -> None:
    text = "have installers skip a wheel unless its very version is asked for (PEP 592)"
    _add(commands, "yank", text).add_argument("--reason", required=True, help="shown to whoever installs it anyway")
    _add(commands, "unyank", "take a yank back").add_argument("--reason", default="", help="kept in the event")
    text = "withhold the links to a wheel, or to all wheels of a project (PEP 792), or offer them again"
    parser = _add(commands, "quarantine", text)
    parser.add_argument("--reason", required=True, help="kept in the event, and shown on a project's page")
    parser.add_argument("--lift", action="store_true", help="offer the links again")


def _add(commands: "Commands", kind: "Kind", text: str) -> argparse.ArgumentParser:
    parser = command(commands, kind, text, partial(run, kind))
    parser.add_argument("target", metavar="WHEEL", help="the wheel's file name; quarantine: or a project's name")
    add_index(parser)
    add_signing_key(parser)
    return parser


def run(kind: "Kind", args: argparse.Namespace) -> int:
    """Add the event, show it on all pages, and sign these."""
    from farm.cli import show
    from farm.index.events import record_event

    happened: Kind = "release" if getattr(args, "lift", False) else kind
    shown = record_event(store_of(args), args.target, happened, args.reason, signer=signer_of(args))
    if args.json:
        print(json.dumps({"pages": sorted(shown)}, indent=2))
    else:
        for key in sorted(shown):
            show.say(f"shown: {key}")
    return 0
