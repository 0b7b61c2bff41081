"""`farm repair`: in a module of its own, since it takes less time than the imports of the other commands."""

import argparse
import contextlib
import gc
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.repair import RepairOptions, repair

_MOST = 5  # lines about RECORD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("wheel", type=Path)
    parser.add_argument(
        "--lib-dir",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="search here for libraries; may be repeated",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--into", metavar="FOLDER", help="put libraries into this folder of the wheel, such as torch/lib"
    )
    where.add_argument(
        "--plan", type=Path, metavar="PLAN.json", help="repair as this plan says: folder, requirements, version and all"
    )
    where.add_argument(
        "--tools",
        action="store_true",
        help="put libraries into <name>.libs, as auditwheel and delvewheel do; needs patchelf or delvewheel",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="libraries not to add",
    )
    parser.add_argument(
        "--opens", action="append", default=[], metavar="PATTERN", help="add libraries that others open by name"
    )
    parser.add_argument("--version", dest="new_version", metavar="VERSION", help="set the version")
    parser.add_argument(
        "--require", action="append", default=[], metavar="REQUIREMENT", help='add a Requires-Dist, such as "numpy<2"'
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("repaired"), metavar="DIR")


def run(args: argparse.Namespace) -> int:
    """Write the repaired wheel, and say what was done."""
    gc.disable()  # ten thousand members make no cycles, but would be searched for them again and again
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"{args.output} is not a folder", hint="give -o the folder for the repaired wheel")
    options = _options(args)
    made = not args.output.exists()
    args.output.mkdir(parents=True, exist_ok=True)
    try:
        result = repair(args.wheel, args.output, options)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # someone put something into it
                args.output.rmdir()
        raise
    from farm.wheel.policy import Policy
    from farm.wheel.verify import verify

    left = [finding.text for finding in verify(result.wheel, Policy()).findings]
    if args.json:
        show.json_document({**result.to_json(), "not_mended": left})
        return 0
    for item in result.vendored:
        show.say(f"added {item.path} from {item.source}")
    for path in result.record_corrected[:_MOST]:
        show.say(f"corrected the hash of {path} in RECORD")
    if len(result.record_corrected) > _MOST:
        show.say(f"and of {len(result.record_corrected) - _MOST} more files (--json names them)")
    if not result.tags:
        from farm.platforms.facts import of_tag, unread

        tags = parse_wheel_name(result.wheel.name).tags
        if reason := unread(tags):
            advice = "; delocate adds it" if any(of_tag(tag.rpartition("-")[2]) for tag in tags) else ""
            show.say(f"{reason}: none was added, and what they need is not known{advice}")
    for text in left:
        show.say(f"not mended: {text}")
    show.say(str(result.wheel))
    gc.freeze()  # nor is there anything to be found at the end
    return 0


def _options(args: argparse.Namespace) -> RepairOptions:
    """Options of the command line, or of the plan."""
    if args.plan is None:
        return RepairOptions(
            lib_dirs=args.lib_dir,
            into=args.into,
            exclude=args.exclude,
            version=args.new_version,
            requires=args.require,
            opens=args.opens,
        )
    given = {"--exclude": args.exclude, "--opens": args.opens, "--version": args.new_version, "--require": args.require}
    if refused := [name for name, value in given.items() if value]:
        raise UsageError(
            f"{refused[0]} beside --plan: the plan has it", hint="leave it out, or use --into in place of --plan"
        )
    from farm.plan.file import Plan
    from farm.run.release import repair_options

    return repair_options(Plan.read(args.plan), args.wheel, args.lib_dir)
