"""`farm index sign | verify | key new | init | rotate | revoke | renew`: signatures, and the keys that make them."""

import argparse
import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from farm.cli.index_options import add_index, signer_of, store_of

COMMANDS: Mapping[str, str] = {
    "new": "make a key pair: FILE, which is secret, and FILE.pub",
    "init": "start a signed index: a root key that says which keys may sign",
    "rotate": "let another key sign as well, or replace the root key",
    "revoke": "end the right of a key to sign",
    "renew": "extend the root for another year",
}


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    {"sign": _add_sign, "verify": _add_verify, "key": _add_key}[name](parser)


def run(args: argparse.Namespace) -> int:
    return {"sign": _sign, "verify": _verify, "key": _key}[args.index_command](args)


def _add_sign(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    parser.add_argument("--signing-key", type=Path, metavar="FILE", help="an online key (default: ci/farm.yaml)")
    text = "sign although this machine's clock and the newest signature disagree"
    parser.add_argument("--trust-clock", action="store_true", help=text)


def _sign(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.sign import sign

    signer = signer_of(args)
    done = sign(store_of(args), signer, trust_clock=args.trust_clock)
    if args.json:
        show.json_document({"pages": done.pages, "wheels": done.wheels, "expires": done.expires.isoformat()})
    else:
        show.say(f"signed {done.pages} pages and {done.wheels} wheels; that counts until {done.expires:%Y-%m-%d}")
    return 0


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the root of the index: https://…, a folder or s3://…")
    text = "the root that you trust, tuf/1.root.json or a later one, as its owner gave it to you"
    parser.add_argument("--root", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("--wheels", action="store_true", help="download and hash the wheels as well")
    parser.add_argument("--max-age", type=int, metavar="DAYS", help="refuse pages that were signed longer ago")
    text = "where to keep what was seen, so that an older index is refused (default: ~/.local/state/torch-farm)"
    parser.add_argument("--state", type=Path, metavar="DIR", help=text)


def _verify(args: argparse.Namespace) -> int:
    """Print what was found; 6 when something is not as signed."""
    from datetime import timedelta

    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.reader import open_reader
    from farm.index.verify import verify_index

    try:
        root = args.root.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the trusted root {args.root}: {error.strerror}") from error
    age = None if args.max_age is None else timedelta(days=args.max_age)
    state = args.state or _state_of(args.url, root)
    done = verify_index(open_reader(args.url), root, state=state, wheels=args.wheels, max_age=age)
    if args.json:
        show.json_document(asdict(done))
    else:
        for problem in done.problems:
            show.say(problem)
        found = f"{len(done.problems)} problems" if done.problems else "all as signed"
        show.say(f"{found}: {done.pages} pages, {done.wheels} wheels, signed {done.time}")
    return 6 if done.problems else 0


def _state_of(url: str, root: bytes) -> Path:
    """A folder for each index and trusted root, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    # A hash, since a URL is no file name. Without the last slash, which changes nothing.
    name = hashlib.sha256(url.rstrip("/").encode() + root).hexdigest()[:32]
    return Path(base).expanduser() / "torch-farm" / "verified" / name


def _add_key(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(dest="key_command", required=True, metavar="COMMAND")
    made = {}
    for name, text in COMMANDS.items():
        made[name] = below.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        made[name].add_argument("--json", action="store_true", help="print one JSON document on stdout")
    made["new"].add_argument("file", type=Path, metavar="FILE", help="where the secret key goes; it must not exist")
    made["init"].add_argument("public", type=Path, nargs="+", metavar="ONLINE.pub", help="keys that may sign")
    made["rotate"].add_argument(
        "public", type=Path, nargs="*", metavar="ONLINE.pub", help="a further key that may sign"
    )
    made["rotate"].add_argument("--new-root-key", type=Path, metavar="FILE", help="the private root key from now on")
    made["revoke"].add_argument("revoked", type=Path, metavar="ONLINE.pub", help="the public key")
    made["revoke"].add_argument("--reason", required=True, help="shown to users")
    for name in ("init", "rotate", "revoke", "renew"):
        made[name].add_argument("--root-key", type=Path, required=True, metavar="FILE", help="the private root key")
        add_index(made[name])


def _key(args: argparse.Namespace) -> int:
    return {"new": _new, "init": _init}.get(args.key_command, _change)(args)


def _new(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.keys import load_public, new_key

    public = new_key(args.file)
    keyid = load_public(public).keyid
    if args.json:
        show.json_document({"private": str(args.file), "public": str(public), "keyid": keyid})
    else:
        show.say(f"key {keyid[:16]}: {args.file} is secret, {public} is public")
        show.say(f"as a root key: keep {args.file} offline, and name it to farm index key init --root-key")
        show.say(f"as a key that signs: name it in ci/farm.yaml (signing_key: {args.file})")
    return 0


def _init(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.keys import load_public, load_signer, root_key, start
    from farm.index.publish import check_store

    store = store_of(args)
    root, online = load_signer(args.root_key), [load_public(path) for path in args.public]
    check_store(store)
    data = start(store, root, online)
    if args.json:
        show.json_document({"root": root.public_key.keyid, "online": [key.keyid for key in online]})
    else:
        where = store.url(root_key(1))
        show.say(f"give {where} to users (sha256 {hashlib.sha256(data).hexdigest()}), and keep the root key offline")
        show.say(f"may sign: {', '.join(key.keyid[:16] for key in online)}; next: farm index sign")
    return 0


def _change(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.keys import change, load_public, load_signer
    from farm.index.publish import check_store

    store = store_of(args)
    revoked, successor = getattr(args, "revoked", None), getattr(args, "new_root_key", None)
    check_store(store)
    number, changed = change(
        store,
        load_signer(args.root_key),
        add=[load_public(path) for path in getattr(args, "public", None) or ()],
        revoke=load_public(revoked) if revoked else None,
        reason=getattr(args, "reason", ""),
        successor=load_signer(successor) if successor else None,
    )
    if args.json:
        show.json_document({"root": number})
    else:
        show.say(f"root {number} counts from now on" if changed else f"nothing to do: root {number} says so already")
        if args.key_command == "revoke" and changed:
            show.say("next, with a key that may sign: farm index check, then farm index sign")
    return 0
