"""`farm index dependencies`: pages of links to what the wheels need, so that --index-url alone is enough."""

import argparse
import json
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, add_signing_key, command, signer_of, store_of

if TYPE_CHECKING:
    from farm.cli.index_options import Commands


def add(commands: "Commands") -> None:
    text = "write pages of links to what the wheels need, in the versions that fit them"
    parser = command(commands, "dependencies", text, run)
    parser.add_argument(
        "--from", dest="source", required=True, metavar="URL", help="the simple API that the links lead to"
    )
    parser.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    add_index(parser)
    add_signing_key(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.dependencies import link_dependencies
    from farm.index.listing import Listing
    from farm.index.roles import sign_pages

    store, signer = store_of(args), signer_of(args)
    Listing(store, signer)  # refuses another key
    written = link_dependencies(store, args.source, group=args.group)
    if signer is not None:
        sign_pages(store, signer, written)
    if args.json:
        print(json.dumps({"pages": sorted(written)}, indent=2))
    else:
        show.say(f"{len(written)} pages")
    return 0
