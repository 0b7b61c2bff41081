"""`farm doctor`: is this machine fit? Every finding with what to do."""

import argparse
import json
from pathlib import Path

from farm.cli import show
from farm.detect.choose import choose
from farm.detect.readings import OTHER, Readings, take
from farm.doctor.examine import examine
from farm.doctor.site import ThisSite
from farm.errors import FarmError
from farm.options import Choice
from farm.plan import Plan, Selectors, resolve
from farm.settings import find_project
from farm.variant import Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", metavar="GPU-CPU-PYTHON", help="fit for this build (default: what the machine is)")
    parser.add_argument("--cuda", metavar="X.Y", help="the CUDA toolkit to judge (default: the channel's)")
    parser.add_argument("--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 if nothing is missing, else 4."""
    site = ThisSite()
    readings = take(site)
    plan = _plan(args, readings)
    findings = examine(site, readings, plan)
    if args.json:
        what = {"variant": plan.variant, "digest": plan.digest, "version": plan.version} if plan else None
        told = [finding.model_dump() for finding in findings]
        data = {"build": what, "findings": told, "readings": readings.model_dump(mode="json", by_alias=True)}
        print(json.dumps(data, indent=2))
    else:
        show.say(
            f"for {plan.package} {plan.version}" if plan else "for no build in particular: name one with --variant"
        )
        show.table("", ("check", "", "seen", "what to do"), [(f.check, f.state, f.seen, f.todo) for f in findings])
    return 4 if any(finding.state == "missing" for finding in findings) else 0


def _plan(args: argparse.Namespace, readings: Readings) -> Plan | None:
    """The build that was named, or the one for this machine; None where there is no project or no such build."""
    system = readings.os.system
    name = args.variant or choose(readings).variant
    if system == OTHER or name is None:
        return None
    try:
        project = find_project(args.project or Path.cwd())
        options = {"cuda": Choice(args.cuda, "--cuda")} if args.cuda else {}
        return resolve(project, Selectors(Variant.parse(name), platform=system, channel=args.channel, options=options))
    except FarmError:
        if args.variant:
            raise  # what was asked for by name must be possible
        return None
