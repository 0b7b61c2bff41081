"""`farm index sign | verify | keys`: signatures, and the keys that make them."""

import argparse
import hashlib
import os
from pathlib import Path

from farm.cli.index_options import add_index, signer_of, store_of


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    {"sign": _add_sign, "verify": _add_verify, "keys": _add_keys}[name](parser)


def run(args: argparse.Namespace) -> int:
    return {"sign": _sign, "verify": _verify, "keys": _keys}[args.index_command](args)


def _add_sign(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    parser.add_argument("--signing-key", metavar="FILE", help="an online key, or env:NAME (default: ci/farm.yaml)")
    text = "sign although this machine's clock and the newest signature disagree"
    parser.add_argument("--trust-clock", action="store_true", help=text)


def _sign(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.sign import sign

    pages, wheels, expires = sign(store_of(args), signer_of(args), trust_clock=args.trust_clock)
    if args.json:
        show.json_document({"pages": pages, "wheels": wheels, "expires": expires.isoformat()})
    else:
        show.say(f"signed {pages} pages and {wheels} wheels; that counts until {expires:%Y-%m-%d}")
    return 0


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the root of the index: https://…, a folder or s3://…")
    text = "the root that you trust, tuf/1.root.json or a later one, as its owner gave it to you"
    parser.add_argument("--root", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("--wheels", action="store_true", help="download and hash the wheels as well")


def _verify(args: argparse.Namespace) -> int:
    """Print what was found; 6 when something is not as signed."""
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.reader import open_reader
    from farm.index.verify import verify_index

    try:
        root = args.root.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the trusted root {args.root}: {error.strerror}") from error
    # As the XDG base directory specification has it; for each trusted root, which an index and its mirrors share.
    seen = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "torch-farm" / "verified"
    state = seen / hashlib.sha256(root).hexdigest()[:32]
    done = verify_index(open_reader(args.url), root, state=state, wheels=args.wheels)
    if args.json:
        show.json_document(done._asdict())
    else:
        for problem in done.problems:
            show.say(problem)
        found = f"{len(done.problems)} problems" if done.problems else "all as signed"
        show.say(f"{found}: {done.pages} pages, {done.wheels} wheels, signed {done.time}")
    return 6 if done.problems else 0


def _add_keys(parser: argparse.ArgumentParser) -> None:
    text = "all public keys that may sign from now on (default: those that may sign now)"
    parser.add_argument("public", type=Path, nargs="*", metavar="ONLINE.pub", help=text)
    parser.add_argument("--root-key", type=Path, required=True, metavar="FILE", help="the private root key")
    parser.add_argument("--new-root-key", type=Path, metavar="FILE", help="the private root key from now on")
    add_index(parser)


def _keys(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.sign import load_public, load_signer, root_key, set_keys

    store = store_of(args)
    successor = load_signer(args.new_root_key) if args.new_root_key else None
    number, data = set_keys(store, load_signer(args.root_key), [load_public(path) for path in args.public], successor)
    digest = hashlib.sha256(data).hexdigest()
    if args.json:
        show.json_document({"root": number, "sha256": digest})
    else:
        if number == 1:
            show.say(f"give {store.url(root_key(1))} to users (sha256 {digest}), and keep the root key offline")
        show.say(f"root {number} counts from now on; next, with a key that may sign: farm index check, farm index sign")
    return 0
