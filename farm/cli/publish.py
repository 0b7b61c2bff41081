"""`farm publish`: put wheels into the index; one that was built for a variant is verified first."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from farm.cli.index import add_allow, add_index, index_url, policy_of
from farm.cli.options import add_dependencies, add_selectors, add_verbosity, add_waivers

if TYPE_CHECKING:
    from farm.index.batch import Batch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheels", nargs="*", type=Path, metavar="WHEEL", help="with --to also folders of wheels")
    text = "publish them in this group as they are, without verifying them for a variant"
    parser.add_argument("--to", metavar="GROUP", help=text)
    text = "publish all wheels of another index, a folder or s3://…; may be repeated"
    parser.add_argument("--from", dest="sources", action="append", default=[], metavar="INDEX", help=text)
    add_selectors(parser, required=False, of_wheel=True)
    add_waivers(parser)
    add_dependencies(parser)
    add_index(parser)
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE", help="built/inputs.json of the run that built it, for the provenance"
    )
    add_allow(parser)
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError

    if args.variant and not args.to and not args.sources and len(args.wheels) == 1:
        args.wheel = args.wheels[0]
        return _verified(args)
    if args.variant or bool(args.sources) is bool(args.wheels) or (args.wheels and not args.to):
        raise UsageError(
            "publish one wheel by its --variant, or wheels and folders --to a group, or all wheels --from an index",
            hint="farm publish WHEEL --variant sm35-avx-py311; farm publish dist/ --to sm35-avx",
        )
    return _as_they_are(args)


def _as_they_are(args: argparse.Namespace) -> int:
    """Print what was published; 7 when wheels were left out."""
    from farm.cli import show
    from farm.index.backends import open_store
    from farm.index.batch import Offer, in_folders, in_index, publish_all
    from farm.index.pages import check_there

    offers, left_out = list[Offer](), dict[str, str]()
    if args.wheels:
        offers, left_out = in_folders(args.wheels, args.to, args.channel)
    for place in args.sources:
        source = open_store(place)
        check_there(source)
        more, without = in_index(source, args.to)
        offers, left_out = offers + more, left_out | without
    # With --json there is one document on stdout, and nothing else.
    say = (lambda _name: None) if args.json or args.quiet else show.say
    done = publish_all(open_store(index_url(args)), offers, policy=policy_of(args), progress=say)
    return _print(args, done, {**left_out, **done.left_out})


def _print(args: argparse.Namespace, done: "Batch", left_out: dict[str, str]) -> int:
    from farm.cli import show

    if args.json:
        show.json_document({"wheels": list(done.wheels), "left_out": left_out})
    else:
        for why in left_out.values():
            show.say(f"left out: {why}")
        show.say(f"{len(done.wheels)} published, {len(left_out)} left out")
    return 7 if left_out else 0


def _verified(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.progress import watching
    from farm.cli.selection import plan_of
    from farm.cli.verify import waivers_of
    from farm.run.inputs import BuildInputs, read_inputs
    from farm.run.release import pip_line, pip_request, publish_wheel, refusal, summary
    from farm.run.workspace import Outcomes, Workspace
    from farm.wheel.verify import verify

    project, settings, plan = plan_of(args)
    if args.index:
        settings = settings.with_index(args.index)
    with watching(args) as watcher:
        workspace, outcomes = Workspace(project, settings, watcher), Outcomes()
        with outcomes.timed("verify", watcher) as step:
            # Whatever verified it before: this very file is what goes into the index.
            report = verify(args.wheel, plan.verify, waivers=waivers_of(args), dependencies=args.dependency)
            if not report.passed:
                raise refusal(report)
            step.result = summary(report)
        given = read_inputs(args.inputs) if args.inputs else BuildInputs()
        with outcomes.timed("publish", watcher) as step:
            mib = args.wheel.stat().st_size >> 20
            result = publish_wheel(
                workspace,
                plan,
                args.wheel,
                report,
                given=given,
                policy=policy_of(args),
                progress=lambda done: watcher.progress(done >> 20, mib) if mib else None,
            )
            step.result = result.wheel_url
    line = pip_line(*pip_request(workspace, plan, args.wheel.name))
    if args.json:
        show.json_document({"changed": result.changed, "wheel": result.wheel_url, "pip": line})
    else:
        if not args.quiet:
            show.say("published" if result.changed else "already there: nothing to do")
        show.say(line)
    return 0
