"""`farm patches`: what the declared changes of a recipe do to a source tree."""

import argparse
from dataclasses import replace
from pathlib import Path

from farm.base.errors import BuildFailedError, UsageError
from farm.base.project import find_project
from farm.cli import show
from farm.plan.patches import PatchError, compiler_name, facts_here, plan_patches, write
from farm.plan.recipe import patches, use_project
from farm.platforms.facts import PLATFORMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the source tree")
    parser.add_argument("--package", default="torch", help="package whose patches are checked (default: torch)")
    parser.add_argument("--apply", action="store_true", help="write the changes (default: a dry run)")
    parser.add_argument("--system", choices=list(PLATFORMS), help="system to build on (default: this machine's)")
    parser.add_argument(
        "--setuptools", type=int, metavar="MAJOR", help="setuptools of the build (default: the one here)"
    )
    parser.add_argument("--cmake", type=int, metavar="MAJOR", help="CMake of the build (default: the one here)")
    parser.add_argument("--compiler", metavar="NAME", help="compiler: cl, gcc, clang-cl, icx (default: CC)")


def run(args: argparse.Namespace) -> int:
    """Show each patch with its reason and diff; write only with --apply."""
    use_project(find_project(args.project or Path.cwd()))
    if not args.source.is_dir():
        raise UsageError(f"{args.source}: no such folder", hint="give the root of the source tree")
    given = {name: value for name in ("system", "setuptools", "cmake") if (value := getattr(args, name)) is not None}
    if args.compiler:
        given["compiler"] = compiler_name(args.compiler)
    facts = replace(facts_here(), **given)
    try:
        outcomes = plan_patches(args.source, patches(args.package), facts)
    except PatchError as error:
        hint = f"is this the source of {args.package}? correct the patch in farm/recipes/{args.package}/patches.yaml"
        raise BuildFailedError(str(error), hint=hint) from error
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be read: {error.strerror}") from error
    if args.apply:
        write(args.source, outcomes)
    if args.json:
        documents = [{"name": o.name, "state": o.state, "why": o.why, "diff": o.diff()} for o in outcomes]
        show.json_document({"applied": args.apply, "facts": facts.__dict__, "patches": documents})
        return 0
    for outcome in outcomes:
        for line in outcome.diff().splitlines():
            show.say(line)
    rows = [(o.name, "applied" if args.apply and o.state == "needed" else o.state, o.why) for o in outcomes]
    show.table("", ("patch", "state", "why"), rows)
    return 0
