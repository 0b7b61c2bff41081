"""`farm index check`: read the index like a client, report what is broken or unfinished."""

import argparse
from dataclasses import asdict

from farm.cli.index_options import add_index, add_signing_key, add_single_writer, signer_over, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    add_signing_key(parser)
    add_single_writer(parser)
    parser.add_argument("--fix", action="store_true", help="rebuild the pages from the records first (reconcile)")


def run(args: argparse.Namespace) -> int:
    """Print the problems; 6 when a client can trip over one, 1 when work is unfinished, 0 otherwise."""
    from farm.cli import show
    from farm.index.catalogue import check_there
    from farm.index.check import check
    from farm.index.probe import proved_catalogue
    from farm.index.reconcile import reconcile

    store = store_of(args)
    check_there(store)
    if args.fix:
        catalogue = proved_catalogue(store, single_writer=args.single_writer)
        # Before the check, which then reports what pages alone could not mend.
        reconcile(store, signer_over(args, catalogue))
    problems = check(store)
    broken = sum(problem.broken for problem in problems)
    if args.json:
        show.json_document([asdict(problem) for problem in problems])
    else:
        rows = [("broken" if p.broken else "unfinished", p.key, p.what) for p in problems]
        if rows:
            show.table("", ("", "object", "what"), rows)
        show.say(f"{broken} broken, {len(problems) - broken} unfinished")
        if problems:
            left = "these need their bytes, their records or the key: docs/wheel-index.md says what to do"
            show.say(left if args.fix else "farm index check --fix rebuilds pages from the records")
    return 6 if broken else 1 if problems else 0
