"""`farm index promote`: lists wheels in a further group."""

import argparse

from farm.cli.index_options import add_wheels, add_writing, changing, print_wheels, wheels_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wheels(parser)
    parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import promote

    wheels = wheels_of(args)
    store, signer = changing(args)
    promote(store, wheels, args.to, signer=signer)
    return print_wheels(args, wheels, f"listed in {args.to}")
