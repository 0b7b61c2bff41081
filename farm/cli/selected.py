"""The build that the command line selects, for the commands that ask for one."""

import argparse
import os
from pathlib import Path

from farm.cli.project import project_of
from farm.plan.build import resolve
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.options import Choice, from_arguments, from_environment, from_file
from farm.plan.selectors import Selectors
from farm.plan.settings import Settings
from farm.plan.variant import Variant


def selectors_of(args: argparse.Namespace, project: Path, settings: Settings) -> Selectors:
    """Overrides by rank: the file, then the environment, then the command line.

    In the place of a variant may stand an alias of the matrix: it names the package, channel and CUDA as well.
    """
    # The right-hand side of `|` wins: the file, then the environment, then the command line.
    options = (
        from_file(settings.options, "ci/farm.yaml")
        | from_environment(os.environ)
        | from_arguments(vars(args), getattr(args, "words", ()))
    )
    # `main/pytorch-python313-cuda12_8-sm80-avx512`: every alias says `python`, and no variant does (`py313`).
    if "python" in args.variant.rpartition("-")[0]:
        build = load_matrix(project).named(args.variant, args.channel)
        if build.cuda and args.cuda is None:
            options["cuda"] = Choice(build.cuda, f"alias {args.variant}")
        return Selectors(build.variant, build.package, build.platform, build.channel, options)
    return Selectors(
        variant=Variant.parse(args.variant),
        package=args.package or _package_of(args.wheel),
        platform=args.platform,
        channel=args.channel,
        options=options,
    )


def _package_of(wheel: Path | None) -> str:
    from farm.base.errors import VerificationFailedError
    from farm.wheel.metadata import parse_wheel_name

    try:
        return parse_wheel_name(wheel.name).name if wheel else "torch"
    except VerificationFailedError:  # the check of names says what is wrong with it
        return "torch"


def plan_of(args: argparse.Namespace) -> tuple[Path, Settings, Plan]:
    """Project, settings and the resolved build."""
    project, settings = project_of(args)
    return project, settings, resolve(project, selectors_of(args, project, settings))
