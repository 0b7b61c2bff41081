"""`farm verify`: in a module of its own, since the other commands' imports take as long as a small wheel."""

import argparse
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.options import add_dependencies, add_selectors, add_waivers
from farm.wheel.policy import Policy, Waiver, load_policy, parse_waiver
from farm.wheel.verify import verify


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="check against the rules of this YAML file instead of a variant's"
    )
    add_selectors(parser, required=False, of_wheel=True)
    parser.add_argument(
        "--emulate",
        action="store_true",
        help="load its libraries on an emulated CPU of the promised level (qemu)",
    )
    add_waivers(parser)
    add_dependencies(parser)


def waivers_of(args: argparse.Namespace) -> list[Waiver]:
    """The waivers of `--waive`."""
    return [parse_waiver(text) for text in args.waive]


def policy_of(args: argparse.Namespace) -> tuple[Policy, list[Waiver]]:
    """The policy: the variant's, a file's, or without either that of every wheel."""
    waivers = waivers_of(args)
    if args.policy and args.variant:
        raise UsageError("--policy and --variant exclude each other: a variant has a policy of its own")
    if args.policy:
        found = load_policy(args.policy)
        return found.policy(), [*found.waivers, *waivers]
    if args.variant:
        from farm.cli.selection import plan_of

        return plan_of(args)[2].verify, waivers
    return Policy(), waivers


def run(args: argparse.Namespace) -> int:
    """Check a wheel, and print what was found."""
    policy, waivers = policy_of(args)
    report = verify(args.wheel, policy, waivers=waivers, dependencies=args.dependency)
    if args.emulate:
        from farm.smoke.emulation import emulate

        report = emulate(report, args.wheel)
    if args.json:
        show.json_document(report.to_json())
    else:
        rows = [(c.id, c.status.replace("_", " "), c.seen) for c in report.checks]
        show.table(report.wheel, ("check", "status", "seen"), rows)
        for finding in report.findings:
            if finding.waived is not None:
                show.say(f"waived: {finding.text} ({finding.waived})")
        if not report.passed:
            from farm.run.release import refusal

            raise refusal(report)
    return 0 if report.passed else 6
