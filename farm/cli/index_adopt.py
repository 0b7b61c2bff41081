"""`farm index adopt`: publishes wheels that lie elsewhere."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_allow, add_writing, changing, policy_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "folders and wheels, or the URL of a simple API"
    parser.add_argument("sources", nargs="+", metavar="FROM", help=text)
    parser.add_argument("--to", required=True, metavar="GROUP", help="for example sm35-avx")
    parser.add_argument("--package", nargs="+", default=[], metavar="NAME", help="what to take from another index")
    parser.add_argument("--channel", help="list them in the root of this channel as well")
    add_allow(parser)
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    """Print what was taken in; 7 when wheels were left out."""
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.adopting import adopt, in_folder, in_index

    remote = any("://" in source for source in args.sources)
    if remote and len(args.sources) > 1:
        raise UsageError(
            "what to take is one index, or files and folders of this machine",
            hint="run the command once for each index",
        )
    if remote is not bool(args.package):
        raise UsageError(
            "say what to take from another index: --package NAME"
            if remote
            else "--package is for another index; all wheels of a folder are taken",
            hint="farm index adopt https://…/simple --package torch --to sm35-avx",
        )
    store, signer = changing(args)
    done = adopt(
        store,
        in_index(args.sources[0], args.package) if remote else in_folder(*map(Path, args.sources)),
        group=args.to,
        channel=args.channel,
        signer=signer,
        policy=policy_of(args),
        dry_run=args.dry_run,
        # With --json there is one document on stdout, and nothing else.
        progress=lambda name: None if args.json else show.say(name),
    )
    if args.json:
        show.json_document({**done._asdict(), "dry_run": args.dry_run})
    else:
        for name in done.wheels if args.dry_run else ():
            show.say(name)
        for why in done.left_out.values():
            show.say(f"left out: {why}")
        show.say(f"{len(done.wheels)} {'would be ' if args.dry_run else ''}listed in {args.to}")
    return 7 if done.left_out else 0
