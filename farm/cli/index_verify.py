"""`farm index verify`: for users, is the index what its owner signed?"""

import argparse
import hashlib
import os
from dataclasses import asdict
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the root of the index: https://…, a folder or s3://…")
    parser.add_argument(
        "--key", type=Path, action="append", required=True, metavar="PUB", help="a root key to trust; may be repeated"
    )
    parser.add_argument("--wheels", action="store_true", help="download and hash the wheels as well")
    parser.add_argument("--max-age", type=int, metavar="DAYS", help="refuse pages that were signed longer ago")
    text = "where to keep what was seen, so that an older index is refused (default: ~/.local/state/torch-farm)"
    parser.add_argument("--state", type=Path, metavar="DIR", help=text)


def run(args: argparse.Namespace) -> int:
    """Print what was found; 6 when something is not as signed."""
    from datetime import timedelta

    from farm.cli import show
    from farm.index.reader import open_reader
    from farm.index.signing import load_public
    from farm.index.verify import verify_index

    keys = {key.keyid: key for key in map(load_public, args.key)}
    age = None if args.max_age is None else timedelta(days=args.max_age)
    state = args.state or _state_of(args.url)
    done = verify_index(open_reader(args.url), keys, state=state, wheels=args.wheels, max_age=age)
    if args.json:
        show.json_document(asdict(done))
    else:
        for problem in done.problems:
            show.say(problem)
        found = f"{len(done.problems)} problems" if done.problems else "all as signed"
        show.say(f"{found}: {done.pages} pages, {done.wheels} wheels, signed {done.time}")
    return 6 if done.problems else 0


def _state_of(url: str) -> Path:
    """A folder for each index, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    # A hash, since a URL is no file name. Without the last slash, which changes nothing.
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:32]
    return Path(base).expanduser() / "torch-farm" / "verified" / name
