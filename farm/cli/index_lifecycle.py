"""`farm index remove | prune | promote | adopt | copy`: what happens to wheels after they were published."""

import argparse
import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from farm.cli.index_options import (
    add_allow,
    add_index,
    add_signing_key,
    command,
    policy_of,
    settings_of,
    signer_of,
    store_of,
)
from farm.text import parse_age

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm.cli.index_options import Commands
    from farm.index.lifecycle import Retention


def add(commands: "Commands") -> None:
    text = "delete wheels for good; their names stay taken (yank or quarantine can be undone)"
    removing = command(commands, "remove", text, run_remove)
    removing.add_argument("wheels", nargs="+", metavar="WHEEL")
    removing.add_argument("--reason", required=True, help="kept in the event")
    text = "remove old wheels by a rule, or by those of ci/farm.yaml (retention)"
    pruning = command(commands, "prune", text, run_prune)
    pruning.add_argument("--keep", type=int, metavar="N", help="the newest N stay, at least 1 (default: ci/farm.yaml)")
    pruning.add_argument(
        "--older-than", type=_age, metavar="AGE", help="published that long ago: 90d, 12w (default: 0d)"
    )
    text = "of each project, pre-releases alone"
    pruning.add_argument("--pre", action="store_true", help=text)
    text = "of each version and tag, wheels that a newer rebuild replaces"
    pruning.add_argument("--rebuilds", action="store_true", help=text)
    pruning.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    promoting = command(commands, "promote", "list wheels in a further group, without copying them", run_promote)
    promoting.add_argument("wheels", nargs="+", metavar="WHEEL")
    promoting.add_argument("--to", required=True, metavar="GROUP", help="sm35-avx for one")
    adopting = command(commands, "adopt", "publish wheels that lie in a folder or in another index", run_adopt)
    adopting.add_argument("source", metavar="FROM", help="a folder, a wheel, or the URL of a simple API")
    adopting.add_argument("--to", required=True, metavar="GROUP", help="sm35-avx for one")
    adopting.add_argument("--package", nargs="+", default=[], metavar="NAME", help="what to take from another index")
    adopting.add_argument("--channel", help="list them in the root of this channel as well")
    add_allow(adopting)
    copying = command(commands, "copy", "copy an index, or what is missing, to another store, and verify it", run_copy)
    copying.add_argument("--to", required=True, metavar="URL", help="a folder or s3://bucket/prefix")
    copying.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    for parser in (removing, pruning, promoting, adopting, copying):
        parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be done")
        add_index(parser)
        add_signing_key(parser)


def run_remove(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import remove

    if not args.dry_run:
        remove(store_of(args), args.wheels, args.reason, signer=signer_of(args))
    return _print(args, args.wheels, "removed")


def run_prune(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import prunable, remove

    store, taken = store_of(args), set[str]()
    for rules, group in _rules(args):
        taken |= set(prunable(store, rules, group=group))
    wheels = sorted(taken)
    if wheels and not args.dry_run:
        remove(store, wheels, "pruned", signer=signer_of(args))
    return _print(args, wheels, "removed")


def _rules(args: argparse.Namespace) -> "Iterator[tuple[Retention, str | None]]":
    """The rule of the command line, else those of ci/farm.yaml, each with its group."""
    from farm.cli import show
    from farm.errors import UsageError
    from farm.index.lifecycle import Retention

    if args.keep is not None:
        yield Retention(args.keep, args.older_than or timedelta(0), args.pre, args.rebuilds), args.group
        return
    if args.older_than is not None or args.pre or args.rebuilds or args.group:
        raise UsageError("a rule says how many stay: --keep N", hint="without options, the rules of ci/farm.yaml count")
    rules = settings_of(args).retention
    if not rules:
        show.say("ci/farm.yaml has no rules (retention): nothing is removed")
    for rule in rules:
        yield Retention(rule.keep, rule.older_than, rule.pre, rule.rebuilds), rule.group


def run_promote(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import promote

    if not args.dry_run:
        promote(store_of(args), args.wheels, args.to, signer=signer_of(args))
    return _print(args, args.wheels, f"listed in {args.to}")


def run_adopt(args: argparse.Namespace) -> int:
    """Print what was taken in; 7 when wheels were left out."""
    from farm.cli import show
    from farm.errors import UsageError
    from farm.index.adopting import adopt, in_folder, in_index

    remote = "://" in args.source
    if remote is not bool(args.package):
        raise UsageError(
            "say what to take from another index: --package NAME"
            if remote
            else "--package is for another index; all wheels of a folder are taken",
            hint="farm index adopt https://…/simple --package torch --to sm35-avx",
        )
    done = adopt(
        store_of(args),
        in_index(args.source, args.package) if remote else in_folder(Path(args.source)),
        group=args.to,
        channel=args.channel,
        signer=signer_of(args),
        policy=policy_of(args),
        dry_run=args.dry_run,
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


def run_copy(args: argparse.Namespace) -> int:
    """Print what was copied; 7 when names stand for other bytes there."""
    from farm.cli import show
    from farm.index.backends import open_store
    from farm.index.copying import copy_index

    done = copy_index(
        store_of(args), open_store(args.to), group=args.group, signer=signer_of(args), dry_run=args.dry_run
    )
    if args.json:
        show.json_document({**done._asdict(), "dry_run": args.dry_run})
    else:
        for name in done.wheels:
            show.say(name)
        for name in done.taken:
            show.say(f"left out: {name} stands for other bytes there")
        show.say(f"{len(done.wheels)} {'would be ' if args.dry_run else ''}copied")
    return 7 if done.taken else 0


def _print(args: argparse.Namespace, wheels: list[str], done: str) -> int:
    from farm.cli import show

    if args.json:
        print(json.dumps({"wheels": wheels, "dry_run": args.dry_run}, indent=2))
    else:
        for wheel in wheels:
            show.say(wheel)
        show.say(f"{len(wheels)} {'would be ' if args.dry_run else ''}{done}")
    return 0


def _age(text: str) -> timedelta:
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
