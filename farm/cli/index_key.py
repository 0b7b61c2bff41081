"""`farm index key new | init | rotate | revoke | renew`, `farm index sign`: the keys that sign the index."""

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
    new = command(below, "new", "make a key pair: FILE, which is secret, and FILE.pub", run_new)
    new.add_argument("file", type=Path, metavar="FILE")
    init = command(below, "init", "start a signed index: a root key that says which keys may publish", run_init)
    init.add_argument("public", type=Path, nargs="+", metavar="ONLINE.pub", help="keys of publishers")
    rotate = command(below, "rotate", "let another key publish as well, or replace the root key", run_change)
    rotate.add_argument("public", type=Path, nargs="*", metavar="ONLINE.pub", help="a further publisher's key")
    rotate.add_argument("--new-root-key", type=Path, metavar="FILE", help="the private root key from now on")
    revoke = command(below, "revoke", "let a publisher's key count no more", run_change)
    revoke.add_argument("revoked", type=Path, metavar="ONLINE.pub")
    revoke.add_argument("--reason", required=True, help="shown to users")
    renew = command(below, "renew", "let the root count for another year", run_change)
    for changing in (init, rotate, revoke, renew):
        add_index(changing)
        changing.add_argument("--root-key", type=Path, required=True, metavar="FILE", help="the private root key")
    sign = command(
        commands, "sign", "sign all pages again as they are, so that their signatures do not expire", run_sign
    )
    add_index(sign)
    add_signing_key(sign)


def run_new(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.signing import load_public, new_key

    public = new_key(args.file)
    keyid = load_public(public).keyid
    if args.json:
        print(json.dumps({"private": str(args.file), "public": str(public), "keyid": keyid}, indent=2))
    else:
        show.say(f"key {keyid[:16]}: {args.file} is secret, {public} is public")
        show.say(f"a publisher's key is named in ci/farm.yaml (signing_key: {args.file}); keep a root key offline")
    return 0


def run_init(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.errors import PublishRefusedError
    from farm.index.keys import remember_online, start
    from farm.index.signing import load_public, load_signer

    store, root, online = store_of(args), load_signer(args.root_key), [load_public(path) for path in args.public]
    if not start(store, root, online):
        raise PublishRefusedError(
            "this index has a root key already", hint="farm index key rotate changes who may publish"
        )
    remember_online(store)
    if args.json:
        print(json.dumps({"root": root.keyid, "online": [key.keyid for key in online]}, indent=2))
    else:
        show.say(f"root key {root.keyid[:16]}: give its .pub to users, and keep the private file offline")
        show.say(f"may publish: {', '.join(key.keyid[:16] for key in online)}")
    return 0


def run_change(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.keys import change, remember_online
    from farm.index.signing import load_public, load_signer

    store = store_of(args)
    revoked, successor = getattr(args, "revoked", None), getattr(args, "new_root_key", None)
    number = change(
        store,
        load_signer(args.root_key),
        add=[load_public(path) for path in getattr(args, "public", None) or ()],
        revoke=load_public(revoked) if revoked else None,
        reason=getattr(args, "reason", ""),
        successor=load_signer(successor) if successor else None,
    )
    remember_online(store)
    if args.json:
        print(json.dumps({"root": number}, indent=2))
    else:
        show.say(f"root {number} counts from now on")
        if args.key_command in {"rotate", "revoke"}:
            show.say("next, with a key that may publish in ci/farm.yaml: farm index check, then farm index reconcile")
    return 0


def run_sign(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.roles import renew

    renewed = renew(store_of(args), _signer(args))
    if args.json:
        print(json.dumps({"signed": renewed}, indent=2))
    else:
        show.say(f"{len(renewed)} signatures renewed")
    return 0


def _signer(args: argparse.Namespace) -> "Signer":
    from farm.errors import UsageError

    signer = signer_of(args)
    if signer is None:
        raise UsageError("no key signs this", hint="--signing-key FILE, or signing_key in ci/farm.yaml")
    return signer
