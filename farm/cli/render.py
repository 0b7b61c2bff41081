"""`farm render`: Dockerfile, scripts and plan, or a bundle with all that a build needs."""

import argparse
from pathlib import Path

from farm.cli.options import add_selectors, add_verbosity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_selectors(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder for the rendered files")
    parser.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help="write an offline bundle: everything that the build needs, in parts, for a machine without network",
    )
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli import show
    from farm.cli.progress import watching
    from farm.cli.selection import plan_of
    from farm.plan.render import render
    from farm.run.bundle import bundle
    from farm.run.workspace import Workspace

    if not (args.output or args.bundle):
        raise UsageError("no output is chosen", hint="-o DIR for the rendered files, --bundle DIR for a bundle")
    project, settings, plan = plan_of(args)
    files = render(project, plan).write(args.output) if args.output else []
    if args.bundle:
        with watching(args) as watcher:
            files += bundle(Workspace(project, settings, watcher), plan, args.bundle)
    if args.json:
        show.json_document([str(path) for path in files])
    else:
        for path in files:
            show.say(path)
    return 0
