"""`farm doctor`: is this machine fit to use wheels, or to build them? Every finding with what to do."""

import argparse
from pathlib import Path

from farm.base.errors import FarmError
from farm.base.project import PROJECT_FILES, find_project
from farm.cli import show
from farm.machine.detect import choose
from farm.machine.doctor import Site, examine, examine_project
from farm.machine.readings import OTHER, Readings, take
from farm.plan.build import resolve
from farm.plan.file import Plan
from farm.plan.matrix import Build, load_matrix
from farm.plan.options import Choice
from farm.plan.selectors import Selectors
from farm.plan.variant import Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--build",
        action="store_true",
        help="check what is needed to build wheels, too (default in a project, and with --variant, --package, --cuda "
        "or --channel)",
    )
    parser.add_argument(
        "--variant", metavar="GPU-CPU-PYTHON", help="check for this build (default: for this machine's own wheels)"
    )
    parser.add_argument("--package", help="what is to be built (default: torch, or a project's own)")
    parser.add_argument("--cuda", metavar="X.Y", help="CUDA version to check (default: the channel's)")
    parser.add_argument("--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 if nothing is missing, else 4."""
    site = Site()
    readings = take(site)
    named = args.variant or args.package or args.cuda or args.channel
    build = args.build or bool(named) or _in_project(args)
    plan = _plan(args, readings) if build else None
    findings = examine(site, readings, plan, build=build)
    if build:
        findings = [*examine_project(find_project(args.project or Path.cwd())), *findings]
    if args.json:
        what = {"variant": plan.variant, "digest": plan.digest, "version": plan.version} if plan else None
        found = [finding.model_dump() for finding in findings]
        show.json_document(
            {"build": what, "findings": found, "readings": readings.model_dump(mode="json", by_alias=True)}
        )
    else:
        if plan:
            show.say(f"to build {plan.package} {plan.version}:")
        elif build:
            show.say("to build wheels (--variant names a certain build):")
        else:
            show.say("to install and use wheels (`farm doctor --build`: to build them):")
        show.table("", ("check", "", "found", "what to do"), [(f.check, f.state, f.seen, f.todo) for f in findings])
    return 4 if any(finding.state == "missing" for finding in findings) else 0


def _own_build(project: Path, channel: str | None) -> Build | None:
    """The first build of a project's own first channel, or of `channel`; None where torch is what is built."""
    matrix = load_matrix(project)
    own = [matrix.channel(name) for name in ([channel] if channel else matrix.own())]
    if not own or any("torch" in one.packages for one in own):
        return None
    return next(iter(own[0].builds), None)


def _in_project(args: argparse.Namespace) -> bool:
    """True if there is a project with a configuration of its own: who has one builds."""
    project = find_project(args.project or Path.cwd())
    return any((project / file).is_file() for file in PROJECT_FILES)


def _plan(args: argparse.Namespace, readings: Readings) -> Plan | None:
    """The build that was named, or the one for this machine; None where there is no project or no such build."""
    system = readings.os.system
    name = args.variant or choose(readings).variant
    if system == OTHER or name is None:
        return None
    try:
        project = find_project(args.project or Path.cwd())
        options = {"cuda": Choice(args.cuda, "--cuda")} if args.cuda else {}
        own = None if args.package else _own_build(project, args.channel)
        variant = Variant.parse(name) if args.variant or own is None else own.variant
        package = own.package if own else args.package or "torch"
        return resolve(project, Selectors(variant, package, platform=system, channel=args.channel, options=options))
    except FarmError:
        if args.variant or args.package or args.cuda or args.channel:
            raise  # what was asked for by name must be possible
        return None
