"""`farm submit`: build, repair, verify, publish, install and smoke-test, one variant or many."""

import argparse
from pathlib import Path

from farm.cli.options import add_detach, add_engine, add_selectors, add_verbosity

AGAIN = -2
"""Stands for `--rebuild` without a number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser, required=False, several=True)
    parser.add_argument(
        "--all", action="store_true", help="every build of --channel for --platform, or those of --package"
    )
    # `--rebuild` alone is a word of this command; `--rebuild N` is the option of every command, for the version.
    (rebuild,) = (action for action in parser._actions if "--rebuild" in action.option_strings)
    rebuild.nargs, rebuild.const = "?", AGAIN
    rebuild.help = "build even if this plan's wheel is published; N: rebuild number, appended to the version as .N"
    parser.add_argument("--no-publish", action="store_true", help="stop after verify")
    parser.add_argument("--no-smoke", action="store_true", help="stop after publish")
    add_engine(parser)
    add_detach(parser)
    add_verbosity(parser)
    parser.add_argument(
        "--from-bundle",
        type=Path,
        metavar="DIR",
        help="build nothing: take the wheel that an offline bundle's `run --out DIR` built on another machine",
    )


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.cli.execution import carry_out, hand_over, print_outcomes
    from farm.cli.selection import plans_of
    from farm.run.backends import check_engine, engine_for, engine_kind
    from farm.run.journal import Until
    from farm.run.release import find_published, use_published
    from farm.run.run import create_detached, request_for
    from farm.run.workspace import Watcher, Workspace

    rebuild, args.rebuild = args.rebuild == AGAIN, None if args.rebuild == AGAIN else args.rebuild
    project, settings, plans = plans_of(args)
    workspace = Workspace(project, settings, Watcher())
    until: Until = "verify" if args.no_publish else "publish" if args.no_smoke else "smoke"
    several = len(plans) > 1 or args.all
    kind = engine_kind(engine_for(plans[0], args.on))
    # An engine with several runners always builds through the dispatcher, which chooses among them.
    queued = several or args.detach or kind.queued(workspace)
    if args.from_bundle and (queued or not kind.traits.in_container):
        raise UsageError(
            "--from-bundle takes the wheel of one variant: with no other engine, and not into the background",
            hint="name one --variant, and leave out --on and --detach",
        )
    wanted = []
    for plan in plans:
        on = engine_for(plan, args.on)
        # Only where something is to be published: with --no-publish the wheel itself is wanted.
        if until != "verify" and not rebuild and not args.from_bundle:
            check_engine(workspace, on, plan)
            record = find_published(workspace, plan)
            if record is not None and not several:
                return print_outcomes(args, use_published(workspace, plan, record, test=until == "smoke"))
            if record is not None:
                continue
        wanted.append((plan, request_for(plan, until=until, on=on, priority=args.priority, rebuild=rebuild)))
    if not queued:
        return carry_out(args, project, settings, plans[0], until, pieces=args.from_bundle, rebuild=rebuild)
    if len(wanted) < len(plans):
        show.note(f"{len(plans) - len(wanted)} of {len(plans)} are published already")
    return hand_over(args, workspace, create_detached(workspace, wanted), several=several)
