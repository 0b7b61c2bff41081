"""`farm build`: a plan, up to the wheel before repair."""

import argparse
from pathlib import Path

from farm.cli.options import add_on, add_verbosity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN.json", help="what `farm plan --json` printed")
    add_on(parser)
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    from farm.cli.execution import carry_out
    from farm.cli.project import project_of
    from farm.plan.file import Plan

    project, settings = project_of(args)
    return carry_out(args, project, settings, Plan.read(args.plan), "build")
