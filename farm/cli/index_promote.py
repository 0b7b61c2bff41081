"""`farm index promote`: lists wheels in a further group."""

import argparse

from farm.cli.index_options import add_wheels, add_writing, print_wheels, signer_of, wheels_of, writable_store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_wheels(parser)
    parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import promote

    wheels = wheels_of(args)
    promote(writable_store_of(args), wheels, args.to, signer=signer_of(args))
    return print_wheels(args, wheels, f"listed in {args.to}")
