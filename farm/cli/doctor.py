"""`farm doctor`: check whether this machine can build and use wheels."""

import argparse
from pathlib import Path
from typing import Any

from farm.base.errors import ExitCode, FarmError
from farm.base.project import PROJECT_FILES
from farm.cli import show
from farm.cli.selection import folder_of
from farm.machine.detect import choose
from farm.machine.doctor import BuildMachine, Finding, check_project, run_checks
from farm.machine.readings import OTHER, Readings, collect
from farm.plan.channel import Build
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.variant import Variant
from farm.platforms.shape import PlatformName


def run_doctor(args: argparse.Namespace) -> int:
    """Print the findings; 0 if nothing is missing, else 4."""
    machine = BuildMachine()
    readings = collect(machine)
    project = folder_of(args)
    is_named = bool(args.variant or args.package or args.cuda or args.channel)
    # Somebody who has a project with a configuration of its own builds.
    build = args.build or is_named or _has_files(project)
    plan = None
    if build:
        plan = _plan(args, project, readings)
    findings = run_checks(machine, readings, plan, build=build)
    if build:
        findings = [*check_project(project), *findings]
    if args.json:
        _print_document(readings, plan, findings)
    else:
        rows = [(finding.check, finding.state, finding.seen, finding.todo) for finding in findings]
        title = _title(plan, build=build)
        show.table(title, ("check", "", "found", "what to do"), rows)
    for finding in findings:
        if finding.state == "missing":
            return ExitCode.NO_RUNNER
    return 0


def _has_files(project: Path) -> bool:
    return any((project / file).is_file() for file in PROJECT_FILES)


def _print_document(readings: Readings, plan: Plan | None, findings: list[Finding]) -> None:
    document: dict[str, Any] = {
        "build": None,
        "findings": [finding.model_dump() for finding in findings],
        "readings": readings.model_dump(mode="json", by_alias=True),
    }
    if plan:
        document["build"] = show.fields(plan, "variant", "digest", "version")
    show.json_document(document)


def _title(plan: Plan | None, *, build: bool) -> str:
    """What the machine is checked for."""
    if not build:
        return "to install and use wheels (`farm doctor --build`: to build them):"
    if plan is None:
        return "to build wheels (--variant names a certain build):"
    return f"to build {plan.package} {plan.version}:"


def _own_build(project: Path, channel: str | None) -> Build | None:
    """The first build of a project's own first channel, or of `channel`; None where torch is what
    is built.
    """
    matrix = load_matrix(project)
    names = matrix.own()
    if channel:
        names = [channel]
    channels = [matrix.channel(name) for name in names]
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
        request = _request(args, project, name, system)
        return resolve(project, request)
    except FarmError:
        if args.variant or args.package or args.cuda or args.channel:
            raise  # what was asked for by name must be possible
        return None


def _request(
    args: argparse.Namespace, project: Path, name: str, system: PlatformName
) -> BuildRequest:
    """The build of a variant, or of a project's own package; `name`: the variant."""
    options = {}
    if args.cuda:
        options["cuda"] = Choice(args.cuda, "--cuda")
    variant = name
    package = args.package or "torch"
    own_build = None
    if not args.package:
        own_build = _own_build(project, args.channel)
    if own_build:
        package = own_build.package
        if not args.variant:
            variant = str(own_build.variant)
    return BuildRequest(
        Variant.parse(variant), package, platform=system, channel=args.channel, options=options
    )
