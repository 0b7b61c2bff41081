"""`farm index key new | rotate | revoke`: the keys that sign the index."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, add_signing_key, command, signer_of, store_of

if TYPE_CHECKING:
    from farm.cli.index_options import Commands
    from farm.index.signing import Signer


def add(commands: "Commands") -> None:
    text = "make, add and revoke the keys that sign the index"
    parser = commands.add_parser("key", help=text, description=text[0].upper() + text[1:] + ".")
    below = parser.add_subparsers(dest="key_command", required=True, metavar="COMMAND")
    new = command(below, "new", "make a key pair: FILE, which is secret, and FILE.pub, which is for users", run_new)
    new.add_argument("file", type=Path, metavar="FILE")
    rotate = command(below, "rotate", "say, signed with the present key, that another key counts as well", run_rotate)
    rotate.add_argument("public", type=Path, metavar="NEW.pub")
    revoke = command(below, "revoke", "say, signed with a key that counts, that another one counts no more", run_revoke)
    revoke.add_argument("public", type=Path, metavar="OLD.pub")
    revoke.add_argument("--reason", required=True, help="shown to users")
    for changing in (rotate, revoke):
        add_index(changing)
        add_signing_key(changing)


def run_new(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.signing import load_public, new_key

    public = new_key(args.file)
    keyid = load_public(public).keyid
    if args.json:
        print(json.dumps({"private": str(args.file), "public": str(public), "keyid": keyid}, indent=2))
    else:
        show.say(f"key {keyid[:16]}: {args.file} is secret, {public} is for users")
        show.say(f"name it in ci/farm.yaml: signing_key: {args.file}")
    return 0


def run_rotate(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.signing import load_public
    from farm.index.trust import add_key

    keyid = load_public(args.public).keyid
    number = add_key(store_of(args), _signer(args), args.public.read_bytes())
    if args.json:
        print(json.dumps({"event": number, "keyid": keyid}, indent=2))
    else:
        show.say(f"key {keyid[:16]} counts from now on")
        show.say("next: name its private file in ci/farm.yaml, then: farm index reconcile")
    return 0


def run_revoke(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.signing import load_public
    from farm.index.trust import revoke_key

    keyid = load_public(args.public).keyid
    number = revoke_key(store_of(args), _signer(args), keyid, args.reason)
    if args.json:
        print(json.dumps({"event": number, "keyid": keyid}, indent=2))
    else:
        show.say(f"key {keyid[:16]} counts no more; farm index reconcile signs with another what it had signed")
    return 0


def _signer(args: argparse.Namespace) -> "Signer":
    from farm.errors import UsageError

    signer = signer_of(args)
    if signer is None:
        raise UsageError("no key signs this", hint="--signing-key FILE, or signing_key in ci/farm.yaml")
    return signer
