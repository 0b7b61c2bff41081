"""`farm publish`: verify a wheel and put it into the index."""

import argparse
from pathlib import Path

from farm.cli.index_options import add_allow, add_single_writer, policy_of
from farm.cli.options import add_dependencies, add_selectors, add_verbosity, add_waivers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    add_selectors(parser, of_wheel=True)
    add_waivers(parser)
    add_dependencies(parser)
    parser.add_argument("--index", metavar="URL", help="a folder or s3://bucket/prefix (default: ci/farm.yaml)")
    parser.add_argument(
        "--inputs", type=Path, metavar="FILE", help="built/inputs.json of the run that built it, for the provenance"
    )
    add_single_writer(parser)
    add_allow(parser)
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    import os

    from farm.cli import show
    from farm.cli.selected import plan_of
    from farm.cli.verify import waivers_of
    from farm.cli.watchers import watching
    from farm.run.build_inputs import BuildInputs, actions, read
    from farm.run.check import refusal, summary
    from farm.run.release import pip_line, pip_source, publish_wheel
    from farm.run.report import Outcomes
    from farm.run.workspace import Workspace
    from farm.wheel.verify import verify

    project, settings, plan = plan_of(args)
    if args.index:
        settings = settings.named(args.index)
    with watching(args) as watcher:
        workspace, outcomes = Workspace(project, settings, watcher), Outcomes()
        with outcomes.timed("verify", watcher) as step:
            # Whatever verified it before: this very file is what goes into the index.
            report = verify(args.wheel, plan.verify, waivers=waivers_of(args), dependencies=args.dependency)
            if not report.passed:
                raise refusal(report)
            step.result = summary(report)
        given = read(args.inputs) if args.inputs else BuildInputs()
        # The workflow that publishes belongs to the wheel's origin as well, whoever built it.
        given = given.model_copy(update={"actions": given.actions | actions(os.environ, project)})
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
                single_writer=args.single_writer,
            )
            step.result = result.wheel_url
    source = pip_source(workspace, plan.parsed_variant.group)
    line = pip_line(f"{plan.package}=={plan.version}", source)
    if args.json:
        show.json_document({"changed": result.changed, "wheel": result.wheel_url, "pip": line})
    else:
        if not args.quiet:
            show.say("published" if result.changed else "already there: nothing to do")
        show.say(line)
    return 0
