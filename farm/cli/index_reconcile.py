"""`farm index reconcile`: every page again from the records and events."""

import argparse
import json
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, add_signing_key, command, signer_of, store_of

if TYPE_CHECKING:
    from farm.cli.index_options import Commands


def add(commands: "Commands") -> None:
    text = "rebuild every page from the records and events, and sign everything again when there is a key"
    parser = command(commands, "reconcile", text, run)
    add_index(parser)
    add_signing_key(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was written; 7 when a wheel's bytes are missing."""
    from farm.cli import show
    from farm.index.reconcile import reconcile

    done = reconcile(store_of(args), signer_of(args))
    if args.json:
        print(json.dumps(done._asdict(), indent=2))
    else:
        for key in done.written:
            show.say(f"written: {key}")
        for filename in done.missing:
            show.say(f"left out: {filename} was claimed, and its bytes are not there; publish it again")
        show.say(f"{len(done.written)} pages written, {done.attested} attestations added")
    return 7 if done.missing else 0
