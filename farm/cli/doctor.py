"""`farm doctor`: check whether this machine can build and use wheels."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.errors import FarmError
from farm.base.project import PROJECT_FILES, find_project
from farm.cli import show
from farm.machine.detect import choose
from farm.machine.doctor import BuildMachine, check_project, run_checks
from farm.machine.readings import OTHER, Readings, collect
from farm.plan.channel import Build
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant

if TYPE_CHECKING:
    pass


def run_doctor(args: argparse.Namespace) -> int:
    """Print the findings; 0 if nothing is missing, else 4."""
    machine = BuildMachine()
    readings = collect(machine)
    project = find_project(args.project or Path.cwd())
    is_named = args.variant or args.package or args.cuda or args.channel
    # Who has a project with a configuration of its own builds.
    build = (
        args.build or bool(is_named) or any((project / file).is_file() for file in PROJECT_FILES)
    )
    plan = _plan(args, project, readings) if build else None
    findings = run_checks(machine, readings, plan, build=build)
    if build:
        findings = [*check_project(project), *findings]
    if args.json:
        if plan:
            build_json = {"variant": plan.variant, "digest": plan.digest, "version": plan.version}
        else:
            build_json = None
        findings_json = [finding.model_dump() for finding in findings]
        facts = readings.model_dump(mode="json", by_alias=True)
        show.json_document({"build": build_json, "findings": findings_json, "readings": facts})
    else:
        title = "to install and use wheels (`farm doctor --build`: to build them):"
        if build:
            if plan:
                what_for = f"{plan.package} {plan.version}"
            else:
                what_for = "wheels (--variant names a certain build)"
            title = f"to build {what_for}:"
        rows = [(f.check, f.state, f.seen, f.todo) for f in findings]
        show.table(title, ("check", "", "found", "what to do"), rows)
    return 4 if any(finding.state == "missing" for finding in findings) else 0


def _own_build(project: Path, channel: str | None) -> Build | None:
    """The first build of a project's own first channel, or of `channel`; None where torch is what
    is built.
    """
    matrix = load_matrix(project)
    channels = [matrix.channel(name) for name in ([channel] if channel else matrix.own())]
    if not channels or any("torch" in candidate.packages for candidate in channels):
        return None
    return next(iter(channels[0].builds), None)


def _plan(args: argparse.Namespace, project: Path, readings: Readings) -> Plan | None:
    """The build that was named, or the one for this machine; None where there is no such build."""
    system = readings.os.system
    name = args.variant or choose(readings).variant
    if system == OTHER or name is None:
        return None
    try:
        options = {"cuda": Choice(args.cuda, "--cuda")} if args.cuda else {}
        own_build = None if args.package else _own_build(project, args.channel)
        if args.variant or own_build is None:
            variant = Variant.parse(name)
        else:
            variant = own_build.variant
        package = own_build.package if own_build else args.package or "torch"
        return resolve(
            project,
            BuildRequest(variant, package, platform=system, channel=args.channel, options=options),
        )
    except FarmError:
        if args.variant or args.package or args.cuda or args.channel:
            raise  # what was asked for by name must be possible
        return None
