"""`farm index prune`: removes old wheels by rules."""

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING

from farm.base.text import parse_age
from farm.cli.index_options import add_writing, opened_to_change, print_wheels, settings_of, signer_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farm.index.lifecycle import Retention


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=int, metavar="N", help="how many of the newest stay, at least 1 (default: ci/farm.yaml)"
    )
    parser.add_argument(
        "--older-than", type=_age, metavar="AGE", help="published that long ago: 90d, 12w (default: 0d)"
    )
    text = "of each project, pre-releases alone"
    parser.add_argument("--pre", action="store_true", help=text)
    text = "of each version and tag, wheels that a newer rebuild replaces"
    parser.add_argument("--rebuilds", action="store_true", help=text)
    parser.add_argument("--group", help="one group alone, for example sm35-avx (default: all)")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    from farm.index.lifecycle import prunable, prune

    rules = list(_rules(args))
    wheels: list[str] = []
    if rules:
        store, catalogue = opened_to_change(args)
        # A set: two rules may name the same wheel.
        wheels = sorted({name for rule, group in rules for name in prunable(store, rule, group=group)})
        if wheels:
            wheels = prune(store, wheels, signer=signer_over(args, catalogue))
    return print_wheels(args, wheels, "removed")


def _rules(args: argparse.Namespace) -> "Iterator[tuple[Retention, str | None]]":
    """The rule of the command line, else those of ci/farm.yaml, each with its group."""
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.index.lifecycle import Retention

    if args.keep is not None:
        yield Retention(args.keep, args.older_than or timedelta(0), args.pre, args.rebuilds), args.group
        return
    if args.older_than is not None or args.pre or args.rebuilds or args.group:
        raise UsageError(
            "--keep N is missing: how many versions to keep", hint="without options, the rules of ci/farm.yaml count"
        )
    rules = settings_of(args).retention
    if not rules:
        show.say("ci/farm.yaml has no rules (retention): nothing is removed")
    for rule in rules:
        yield Retention(rule.keep, rule.older_than, rule.pre, rule.rebuilds), rule.group


def _age(text: str) -> timedelta:
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
