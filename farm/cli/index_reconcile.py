"""`farm index reconcile`: every page again from the records and events."""

import argparse

from farm.cli.index_options import add_writing, changing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was written; 7 when a wheel's bytes are missing."""
    from farm.cli import show
    from farm.index.reconcile import reconcile

    done = reconcile(*changing(args))
    would = "would be " if args.dry_run else ""
    if args.json:
        show.json_document(done._asdict())
    else:
        for key in done.written:
            show.say(f"{would}written: {key}")
        for filename in done.missing:
            show.say(f"left out: {filename} was claimed, and its bytes are not there; publish it again")
        show.say(f"{len(done.written)} pages {would}written, {done.attested} attestations {would}added")
    return 7 if done.missing else 0
