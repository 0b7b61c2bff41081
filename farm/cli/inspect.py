"""`farm inspect`: what is inside a wheel."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "wheel", type=Path, help="a file; with --explain or --why-126 an installed package's folder too"
    )
    parser.add_argument(
        "--cpu", action="store_true", help="CPU features of libraries above 16 MiB too: seconds for each"
    )
    parser.add_argument("--tree", action="store_true", help="each library with what it holds and needs")
    parser.add_argument(
        "--explain",
        metavar="MESSAGE",
        help="what a message of the loader, CUDA or torch means: WinError 126, 127, 193, 1114, 'undefined symbol', "
        "'GLIBC_2.34 not found', 'no kernel image', 'illegal instruction', …; - reads it from the input",
    )
    parser.add_argument(
        "--why-126", action="store_true", help="every DLL that is missing, and the chain that leads to it"
    )


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.contents import print_tree, show_contents
    from farm.cli.explain import explanations_of, message_of, print_explanations, print_missing
    from farm.wheel.explain import why_126
    from farm.wheel.inspect import DECODED, inspect

    if args.explain is not None:
        explanations = explanations_of(args.wheel, message_of(args.explain))
        if args.json:
            show.json_document([each.model_dump(mode="json") for each in explanations])
        else:
            print_explanations(explanations)
        return 0
    if args.why_126:
        found = why_126(args.wheel)
        if args.json:
            show.json_document(found.model_dump(mode="json"))
        else:
            print_missing(found)
        return 6 if found.missing else 0
    contents = inspect(args.wheel, decoded=None if args.cpu else DECODED)
    if args.json:
        show.json_document(contents.to_json())
        return 0
    if args.tree:
        print_tree(contents)
    else:
        show_contents(contents)
    return 0
