"""`farm index dependencies`: pages of links to what the wheels need, so that --index-url alone is enough."""

import argparse

from farm.cli.index_options import add_writing, changing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="source", metavar="URL", help="the simple API that the links lead to (default: pip's index)"
    )
    parser.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.index.dependencies import link_dependencies
    from farm.index.listing import Listing
    from farm.index.roles import sign_pages
    from farm.run.sources import pip_index

    store, signer = changing(args)
    Listing(store, signer)  # refuses another key
    written = link_dependencies(store, args.source or pip_index(), group=args.group)
    if signer is not None:
        sign_pages(store, signer, written)
    if args.json:
        show.json_document({"pages": sorted(written)})
    else:
        show.say(f"{len(written)} pages {'would be ' if args.dry_run else ''}written")
    return 0
