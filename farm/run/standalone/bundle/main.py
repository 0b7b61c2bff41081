"""The command line of a bundle's `run`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

from farm.base.errors import FarmError
from farm.base.processes import enter, machine

from . import work
from .build import build
from .report import AGAIN, CANNOT, EXIT_CODES, INTERRUPTED, leave, say
from .result import write_pieces
from .unpack import look_for


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="run",
        description="Builds a plan from a bundle, without network, Docker or root, and follows the build to its end.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--parts", type=Path, action="append", default=[], help="where parts are (default: beside run)")
    made.add_argument("--state", type=Path, help="where to unpack and build (default: work-<plan> beside run)")
    made.add_argument("--jobs", type=int, help="compiles at a time (default: the CPUs)")
    made.add_argument("--memory-gb", type=float, help="memory limit of the build (default: from the number of jobs)")
    made.add_argument("--wait-s", type=float, help="how long to follow the build in this call (default: to its end)")
    made.add_argument("--out", type=Path, help="where the log and the pieces of the result go")
    made.add_argument("--retry", action="store_true", help="build again after a build that failed")
    made.add_argument("--check", action="store_true", help="say whether this machine can build it; unpack nothing")
    return made


def main() -> int:
    args = parser().parse_args()
    here = Path(sys.argv[0]).resolve().parent  # of the packed file: the manifest and the parts are beside it
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    refused = enter.refusal()
    if refused:
        leave(CANNOT, *refused)
    folder = work.place(args.state, here, manifest["plan"])
    args.parts = args.parts or [here]
    if args.check:
        return check(manifest, args.parts, folder)
    folder = work.make(folder)
    try:
        output = build(manifest, folder, args)
    except FarmError as error:
        leave(CANNOT, str(error), error.hint)
    except KeyboardInterrupt:
        leave(INTERRUPTED, "interrupted; a build that was started goes on: call again to follow it")
    if args.out:
        write_pieces(manifest, output, args.out)
    else:
        say(f"done: {output}")
    return 0


def check(manifest: dict[str, object], folders: list[Path], folder: Path) -> int:
    """Print what this machine has for the build; 0 where all is there."""
    cpus, memory = machine()
    above = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(above).free
    say(f"{cpus:.0f} CPUs, {memory / 1e9:.1f} GB of memory, {free / 1e9:.0f} GB free for {folder}")
    say("the toolchain can be entered " + ("as root" if os.geteuid() == 0 else "in a user namespace, without root"))
    found, missing = look_for(manifest, folders)
    if missing:
        leave(AGAIN, f"{len(found)} parts are here; missing: {', '.join(missing)}", "copy them here and call again")
    say(f"all {len(found)} parts are here; this machine can build {manifest['name']}")
    return 0
