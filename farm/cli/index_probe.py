"""`farm index probe`: does a store keep the conditions that publishing rests on?"""

import argparse
from dataclasses import asdict

from farm.base.errors import PublishRefusedError
from farm.cli.index_options import add_index, add_single_writer, store_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_index(parser)
    add_single_writer(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was tried and seen; 7 when the store is refused."""
    from farm.cli import show
    from farm.index.probe import accept, examine

    store = store_of(args)
    findings = examine(store, traits=True)
    try:
        accept(store, findings, single_writer=args.single_writer)
        refused = None
    except PublishRefusedError as error:
        refused = error
    if args.json:
        summary = {"store": store.url(""), "proved": refused is None, **asdict(store.traits)}
        show.json_document({**summary, "findings": [asdict(finding) for finding in findings]})
    else:
        rows = [("yes" if each.good else "NO" if each.needed else "no", each.what, each.seen) for each in findings]
        show.table(store.url(""), ("", "tried", "seen"), rows)
        if refused is None:
            one = "only one writer at a time may publish here"
            show.say(one if store.traits.reads_first else "fit to publish into")
    if refused is not None:
        show.explain(refused)
        return refused.exit_code
    return 0
