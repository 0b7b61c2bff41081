"""`farm index sign`: renews the signatures of all pages."""

import argparse

from farm.cli.index_options import add_writing, opened_to_change, signer_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.roles import renew

    signer = signer_of(args)
    if signer is None:
        raise UsageError("no key to sign with", hint="--signing-key FILE, or signing_key in ci/farm.yaml")
    store, _catalogue = opened_to_change(args)
    renewed = renew(store, signer)
    if args.json:
        show.json_document({"signed": renewed})
    else:
        show.say(f"{len(renewed)} signatures {'would be ' if args.dry_run else ''}renewed")
    return 0
