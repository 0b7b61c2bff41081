"""`farm index remove`: deletes wheels; their names stay taken."""

import argparse

from farm.cli.index_options import add_wheels, add_writing, changing, print_wheels, wheels_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wheels(parser)
    parser.add_argument("--reason", required=True, help="kept in the event")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import remove

    wheels = wheels_of(args)
    store, signer = changing(args)
    remove(store, wheels, args.reason, signer=signer)
    return print_wheels(args, wheels, "removed")
