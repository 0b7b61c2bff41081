"""`farm submit`: build, repair, verify, publish, install and smoke-test."""

import argparse
from pathlib import Path

from farm.cli.options import add_detach, add_engine, add_selectors, add_verbosity

AGAIN = -2
"""Stands for `--rebuild` without a number."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser)
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
    from farm.cli.followed import detached, follow
    from farm.cli.selected import plan_of
    from farm.cli.watched import shown, watched
    from farm.run.backends import check_engine, engine_for, engine_kind
    from farm.run.journal import Until
    from farm.run.published import find_published, use_published
    from farm.run.report import Silent
    from farm.run.run import create_detached, request_for
    from farm.run.workspace import Workspace

    forced, args.rebuild = args.rebuild == AGAIN, None if args.rebuild == AGAIN else args.rebuild
    project, settings, plan = plan_of(args)
    workspace = Workspace(project, settings, Silent())
    until: Until = "verify" if args.no_publish else "publish" if args.no_smoke else "smoke"
    on = engine_for(plan, args.on)
    kind = engine_kind(on)
    if args.from_bundle and (args.detach or kind.queued(workspace) or not kind.traits.in_container):
        raise UsageError(
            "--from-bundle builds nothing, so it goes with no other engine and not into the background",
            hint="leave out --on and --detach",
        )
    # Only where something is to be published: with --no-publish the wheel itself is wanted.
    if until != "verify" and not forced and not args.from_bundle:
        check_engine(workspace, on, plan)
        record = find_published(workspace, plan)
        if record is not None:
            return shown(args, use_published(workspace, plan, record, test=until == "smoke"))
    # An engine with several runners always builds through the dispatcher, which chooses among them.
    if not args.detach and not kind.queued(workspace):
        return watched(args, project, settings, plan, until, args.from_bundle)
    made = create_detached(workspace, plan, request_for(plan, until=until, on=on, priority=args.priority))
    return detached(args, workspace, made) if args.detach else follow(args, workspace, made)
