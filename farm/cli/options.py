"""Options that several commands share. Nothing heavy is imported here: `farm --version` is quick."""

import argparse
from pathlib import Path

from farm.engines import NAMES
from farm.plan.options import OPTIONS
from farm.platforms.facts import DEFAULT, PLATFORMS


def add_selectors(
    parser: argparse.ArgumentParser, *, required: bool = True, of_wheel: bool = False, several: bool = False
) -> None:
    """Options that select builds. `of_wheel`: the command has `args.wheel`, whose name says the package.

    `several`: `--variant` may be given several times and be a pattern.
    """
    group = parser.add_argument_group("selectors")
    what = "for example sm35-avx-py311, or an alias that `farm matrix --format names` prints"
    if several:
        what += "; a pattern such as 'sm3*-avx*-py311'; may be repeated"
    group.add_argument(
        "--variant",
        required=required,
        metavar="GPU-CPU-PYTHON",
        help=what,
        action="append" if several else "store",
        default=[] if several else None,
    )
    if several:
        group.add_argument("--package", help="what to build (default: torch; with --all: each)")
    elif of_wheel:
        group.add_argument("--package", help="what was built (default: as the wheel is named, else torch)")
    else:
        group.add_argument("--package", default="torch", help="what to build (default: torch)")
    group.add_argument("--platform", default=DEFAULT, choices=list(PLATFORMS))
    group.add_argument("--channel", help="a pinned stack of ci/matrix.yaml (default: the first that fits)")
    over = parser.add_argument_group("overrides", "also as FARM_CUDA=…, or under options: in ci/farm.yaml")
    for option in OPTIONS.values():
        # None where neither form is given: so `--no-ptx` can overrule a `ptx: true` of ci/farm.yaml.
        if option.kind is bool:
            over.add_argument(option.flag, action=argparse.BooleanOptionalAction, help=option.help)
        else:
            over.add_argument(option.flag, type=option.kind, metavar=option.placeholder, help=option.help)


def add_dependencies(parser: argparse.ArgumentParser) -> None:
    """The wheels that a wheel leaves libraries to."""
    parser.add_argument(
        "--dependency",
        action="append",
        default=[],
        type=Path,
        metavar="WHEEL|DIR",
        help="a wheel that this one requires, or a folder of wheels, to resolve imports; may be repeated",
    )


def add_waivers(parser: argparse.ArgumentParser) -> None:
    """Findings that are accepted, each with its reason."""
    parser.add_argument(
        "--waive",
        action="append",
        default=[],
        metavar="CHECK:PATTERN=REASON",
        help="accept what this check finds in members that match the pattern; the reason is recorded; may be repeated",
    )


def add_on(parser: argparse.ArgumentParser) -> None:
    """Where to build."""
    parser.add_argument(
        "--on",
        metavar="ENGINE",
        help="; ".join(f"{name}: {where}" for name, (where, _) in NAMES.items()) + " (docs/dispatch.md)",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where to build, and when."""
    add_on(parser)
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="runs with a higher priority start first (default: 0)"
    )


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Less or more on standard error, for `farm.cli.progress.watching`: of every command with steps."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress: only the result and errors")
    group.add_argument("-v", "--verbose", action="store_true", help="print the output of every step as it comes")


def add_detach(parser: argparse.ArgumentParser) -> None:
    """Not to wait for the end."""
    parser.add_argument("--detach", action="store_true", help="print the run's id and leave it to the dispatcher")
