"""The command line of a bundle's `run`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .build import build
from .report import say
from .result import write_pieces
from .toolchain import own_mounts, prepare
from .unpack import unpack


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="run", description="Builds a plan from a bundle, without network or Docker.")
    made.add_argument("--parts", type=Path, action="append", default=[], help="where parts are (default: beside run)")
    made.add_argument("--state", type=Path, help="where to unpack and build (default: /var/tmp/farm-<plan>)")
    made.add_argument("--jobs", type=int, help="compiles at a time (default: the CPUs)")
    made.add_argument("--memory-gb", type=float, help="kill the build above this (default: by the jobs)")
    made.add_argument("--wait-s", type=float, default=540, help="how long to follow the build in this call")
    made.add_argument("--out", type=Path, help="where the log and the pieces of the wheel go")
    made.add_argument("--first-piece", type=int, default=0, help="the first piece to write in this call (default: 0)")
    made.add_argument("--retry", action="store_true", help="build again after a build that failed")
    made.add_argument("--check", action="store_true", help="unpack and try the toolchain, build nothing")
    return made


def main() -> int:
    args = parser().parse_args()
    here = Path(sys.argv[0]).resolve().parent  # of the packed file: the manifest and the parts lie beside it
    manifest = json.loads((here / "manifest.json").read_text(encoding="utf-8"))
    state: Path = args.state or Path("/var/tmp") / f"farm-{manifest['plan'][:12]}"  # noqa: S108 root's, for days
    unpack(manifest, args.parts or [here], state)
    own_mounts()
    prepare(state / "root")
    if args.check:
        return 0
    output = build(manifest, state, args)
    if args.out:
        write_pieces(manifest, output, args.out, args.first_piece)
    else:
        say(f"done: {output}")
    return 0
