"""`farm verify`: in a module of its own, since the other commands' imports take as long as a small wheel."""

import argparse
import json

from farm.cli.selected import plan_of
from farm.pipeline.check import refusal
from farm.wheel.policy import Waiver, parse_waiver
from farm.wheel.verify import verify


def waivers_of(args: argparse.Namespace) -> list[Waiver]:
    """What `--waive` accepts."""
    return [parse_waiver(text) for text in args.waive]


def cmd_verify(args: argparse.Namespace) -> int:
    """Check a wheel against its variant, and say what was found."""
    _, _, plan = plan_of(args)
    report = verify(args.wheel, plan.verify, waivers=waivers_of(args))
    if args.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        from farm.cli import show

        rows = [(c.id, c.status.replace("_", " "), c.note) for c in report.checks]
        show.table(report.wheel, ("check", "status", "seen"), rows)
        for finding in report.findings:
            if finding.waived is not None:
                show.say(f"waived: {finding.where}: {finding.what} ({finding.waived})")
        if not report.passed:
            raise refusal(report)
    return 0 if report.passed else 6
