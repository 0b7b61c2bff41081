"""`farm index remove | prune | promote | copy`: what happens to wheels after they were published."""

import argparse
import json
import re
from typing import TYPE_CHECKING

from farm.cli.index_options import add_index, add_signing_key, command, signer_of, store_of

if TYPE_CHECKING:
    from datetime import timedelta

    from farm.cli.index_options import Commands


def add(commands: "Commands") -> None:
    text = "delete wheels for good; their names stay taken (yank or quarantine can be undone)"
    removing = command(commands, "remove", text, run_remove)
    removing.add_argument("wheels", nargs="+", metavar="WHEEL")
    removing.add_argument("--reason", required=True, help="kept in the event")
    pruning = command(commands, "prune", "remove old wheels by rules", run_prune)
    pruning.add_argument("--keep", type=int, required=True, metavar="N", help="the newest N stay, at least 1")
    pruning.add_argument(
        "--older-than", type=_age, default="0d", metavar="AGE", help="published that long ago: 90d, 12w (default: 0d)"
    )
    text = "of each project, pre-releases alone"
    pruning.add_argument("--pre", action="store_true", help=text)
    text = "of each version and tag, wheels that a newer rebuild replaces"
    pruning.add_argument("--rebuilds", action="store_true", help=text)
    pruning.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    promoting = command(commands, "promote", "list wheels in a further group, without copying them", run_promote)
    promoting.add_argument("wheels", nargs="+", metavar="WHEEL")
    promoting.add_argument("--to", required=True, metavar="GROUP", help="sm35-avx for one")
    copying = command(commands, "copy", "copy an index, or what is missing, to another store, and verify it", run_copy)
    copying.add_argument("--to", required=True, metavar="URL", help="a folder or s3://bucket/prefix")
    copying.add_argument("--group", help="one group alone, sm35-avx for one (default: all)")
    for parser in (removing, pruning, promoting, copying):
        parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be done")
        add_index(parser)
        add_signing_key(parser)


def run_remove(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import remove

    if not args.dry_run:
        remove(store_of(args), args.wheels, args.reason, signer=signer_of(args))
    return _print(args, args.wheels, "removed")


def run_prune(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import Retention, prunable, remove

    rules = Retention(args.keep, args.older_than, pre=args.pre, rebuilds=args.rebuilds)
    store = store_of(args)
    wheels = prunable(store, rules, group=args.group)
    if wheels and not args.dry_run:
        remove(store, wheels, "pruned", signer=signer_of(args))
    return _print(args, wheels, "removed")


def run_promote(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import promote

    if not args.dry_run:
        promote(store_of(args), args.wheels, args.to, signer=signer_of(args))
    return _print(args, args.wheels, f"listed in {args.to}")


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


def _age(text: str) -> "timedelta":
    from datetime import timedelta

    found = re.fullmatch(r"([0-9]{1,5})([dw])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"not an age: {text!r}; write 90d or 12w")
    return timedelta(days=int(found[1]) * (7 if found[2] == "w" else 1))
