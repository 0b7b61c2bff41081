"""`farm index key new | init | rotate | revoke | renew`: the keys that sign the index."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from farm.cli.index_options import add_dry_run, add_index, add_single_writer, opened_to_change

COMMANDS: Mapping[str, str] = {
    "new": "make a key pair: FILE, which is secret, and FILE.pub",
    "init": "start a signed index: a root key that says which keys may publish",
    "rotate": "let another key publish as well, or replace the root key",
    "revoke": "end the right of a publisher's key to sign",
    "renew": "extend the root for another year",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="key_command", required=True, metavar="COMMAND")
    made = {}
    for name, text in COMMANDS.items():
        made[name] = below.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made[name].add_argument("--json", action="store_true", help="print one JSON document on stdout")
    made["new"].add_argument("file", type=Path, metavar="FILE", help="where the secret key goes; it must not exist")
    made["init"].add_argument("public", type=Path, nargs="+", metavar="ONLINE.pub", help="keys of publishers")
    made["rotate"].add_argument(
        "public", type=Path, nargs="*", metavar="ONLINE.pub", help="the public key of a further publisher"
    )
    made["rotate"].add_argument("--new-root-key", type=Path, metavar="FILE", help="the private root key from now on")
    made["revoke"].add_argument("revoked", type=Path, metavar="ONLINE.pub", help="the publisher's public key")
    made["revoke"].add_argument("--reason", required=True, help="shown to users")
    for name in ("init", "rotate", "revoke", "renew"):
        made[name].add_argument("--root-key", type=Path, required=True, metavar="FILE", help="the private root key")
        add_index(made[name])
        add_single_writer(made[name])
        add_dry_run(made[name])


def run(args: argparse.Namespace) -> int:
    runs: Mapping[str, Callable[[argparse.Namespace], int]] = {"new": _new, "init": _init}
    return runs.get(args.key_command, _change)(args)


def _new(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.signing import load_public, new_key

    public = new_key(args.file)
    keyid = load_public(public).keyid
    if args.json:
        show.json_document({"private": str(args.file), "public": str(public), "keyid": keyid})
    else:
        show.say(f"key {keyid[:16]}: {args.file} is secret, {public} is public")
        show.say(f"a publisher's key is named in ci/farm.yaml (signing_key: {args.file}); keep a root key offline")
    return 0


def _init(args: argparse.Namespace) -> int:
    from farm.base.errors import PublishRefusedError
    from farm.cli import show
    from farm.index.keys import remember_online, start
    from farm.index.signing import load_public, load_signer

    store, _catalogue = opened_to_change(args)
    root, online = load_signer(args.root_key), [load_public(path) for path in args.public]
    if not start(store, root, online):
        raise PublishRefusedError(
            "this index has a root key already", hint="farm index key rotate changes who may publish"
        )
    remember_online(store)
    if args.json:
        show.json_document({"root": root.keyid, "online": [key.keyid for key in online]})
    else:
        show.say(f"root key {root.keyid[:16]}: give its .pub to users, and keep the private file offline")
        show.say(
            f"{'would be allowed to' if args.dry_run else 'may'} publish: {', '.join(key.keyid[:16] for key in online)}"
        )
    return 0


def _change(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.keys import change, remember_online
    from farm.index.signing import load_public, load_signer

    store, _catalogue = opened_to_change(args)
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
        show.json_document({"root": number})
    else:
        show.say(f"root {number} {'would count' if args.dry_run else 'counts'} from now on")
        if args.key_command in {"rotate", "revoke"}:
            show.say("next, with a key that may publish in ci/farm.yaml: farm index check, then farm index reconcile")
    return 0
