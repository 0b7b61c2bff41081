"""`farm repair`: in a module of its own, since it takes less time than the imports of the other commands."""

import argparse
import contextlib
import gc
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.repair import RepairOptions, repair
from farm.wheel.tooloptions import ToolOptions

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
        "--tools",
        action="store_true",
        help="put libraries into <name>.libs, as auditwheel and delvewheel do; needs patchelf or delvewheel",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="libraries to leave out, and DLLs of the wheel that are for another machine on purpose",
    )
    parser.add_argument(
        "--opens", action="append", default=[], metavar="PATTERN", help="add libraries that others open by name"
    )
    parser.add_argument("--version", dest="new_version", metavar="VERSION", help="set the version")
    parser.add_argument(
        "--require", action="append", default=[], metavar="REQUIREMENT", help="add a Requires-Dist, such as 'numpy<2'"
    )
    tools = parser.add_argument_group("with --tools, as auditwheel and delvewheel know them")
    tools.add_argument(
        "--namespace-pkg",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package that several wheels share (Windows); those that the wheel shows to be some need not be named",
    )
    tools.add_argument(
        "--no-mangle", action="append", default=[], metavar="DLL", help="keep the name of this DLL (Windows)"
    )
    tools.add_argument(
        "--include", action="append", default=[], metavar="DLL", help="add a DLL that no other names (Windows)"
    )
    tools.add_argument(
        "--custom-patch", action="store_true", help="load code where '# delvewheel: patch' stands (Windows)"
    )
    tools.add_argument("--strip", action="store_true", help="take symbols out of what is changed")
    tools.add_argument("--plat", metavar="TAG", help="refuse a wheel that needs more than this tag gives (Linux)")
    parser.add_argument("-o", "--output", type=Path, default=Path("repaired"), metavar="DIR")


def run(args: argparse.Namespace) -> int:
    """Write the repaired wheel, and say what was done."""
    gc.disable()  # ten thousand members make no cycles, but would be searched for them again and again
    tool = ToolOptions(
        namespaces=tuple(args.namespace_pkg),
        no_mangle=tuple(args.no_mangle),
        include=tuple(args.include),
        custom_patch=args.custom_patch,
        strip=args.strip,
        plat=args.plat,
    )
    if not args.tools and tool != ToolOptions():
        raise UsageError("--namespace-pkg, --no-mangle, --include, --custom-patch, --strip and --plat go with --tools")
    if args.output.exists() and not args.output.is_dir():
        raise UsageError(f"{args.output} is not a folder", hint="give -o the folder for the repaired wheel")
    made = not args.output.exists()
    args.output.mkdir(parents=True, exist_ok=True)
    options = RepairOptions(
        lib_dirs=args.lib_dir,
        into=args.into,
        exclude=args.exclude,
        version=args.new_version,
        requires=args.require,
        opens=args.opens,
        tool=tool,
    )
    try:
        result = repair(args.wheel, args.output, options)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # somebody put something into it
                args.output.rmdir()
        raise
    if args.json:
        import json

        print(json.dumps(result.to_json(), indent=2))
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
    show.say(str(result.wheel))
    gc.freeze()  # nor is there anything to be found at the end
    return 0
