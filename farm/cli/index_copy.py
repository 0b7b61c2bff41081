"""`farm index copy`: copies an index to another store."""

import argparse

from farm.cli.index_options import add_writing, signer_of, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="URL", help="a folder or s3://bucket/prefix")
    parser.add_argument("--group", help="one group alone, for example sm35-avx (default: all)")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was copied; 7 when names stand for other bytes there."""
    from farm.cli import show
    from farm.index.backends import open_store
    from farm.index.catalogue import check_there
    from farm.index.copying import copy_index
    from farm.index.probe import prove

    source, destination = store_of(args), open_store(args.to)
    check_there(source)
    # Proving a store writes to it.
    if not args.dry_run:
        prove(destination, single_writer=args.single_writer)
    done = copy_index(source, destination, group=args.group, signer=signer_of(args), dry_run=args.dry_run)
    if args.json:
        show.json_document({**done._asdict(), "dry_run": args.dry_run})
    else:
        for name in done.wheels:
            show.say(name)
        for name in done.taken:
            show.say(f"left out: {name} stands for other bytes there")
        show.say(f"{len(done.wheels)} {'would be ' if args.dry_run else ''}copied")
    return 7 if done.taken else 0
