"""The build that the command line selects, for the commands that ask for one."""

import argparse
import os
from pathlib import Path
from typing import Any, cast

from farm.cli.project import project_of
from farm.errors import UsageError
from farm.matrix import load_matrix
from farm.matrix.shape import Platform
from farm.plan import OPTIONS, Plan, Selectors, environment_options, resolve
from farm.settings import Settings
from farm.variant import Variant


def selectors_of(args: argparse.Namespace, project: Path, settings: Settings) -> Selectors:
    """Overrides by rank: the file, then the environment, then the command line.

    In the place of a variant may stand an alias of the matrix: it names the package, channel and CUDA as well.
    """
    unknown = set(settings.options) - set(OPTIONS)
    if unknown:
        raise UsageError(f"ci/farm.yaml: unknown option {sorted(unknown)[0]!r}", hint=f"known: {', '.join(OPTIONS)}")
    options: dict[str, tuple[Any, str]] = {name: (value, "ci/farm.yaml") for name, value in settings.options.items()}
    options |= environment_options(os.environ)
    options |= {name: (value, f"--{name}") for name in OPTIONS if (value := getattr(args, name)) is not None}
    if "python" in args.variant:
        build = load_matrix(project).named(args.variant, args.channel)
        if build.cuda and args.cuda is None:
            options["cuda"] = (build.cuda, f"alias {args.variant}")
        return Selectors(build.variant, build.package, cast("Platform", build.platform), build.channel, options)
    return Selectors(
        variant=Variant.parse(args.variant),
        package=args.package,
        platform=args.platform,
        channel=args.channel,
        options=options,
    )


def plan_of(args: argparse.Namespace) -> tuple[Path, Settings, Plan]:
    """The same, and the resolved build."""
    project, settings = project_of(args)
    return project, settings, resolve(project, selectors_of(args, project, settings))
