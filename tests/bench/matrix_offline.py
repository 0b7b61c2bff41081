"""Whole wheels of several variants on one machine without network, with one compiler cache: what the later ones cost.

    python tests/bench/matrix_offline.py DIR --channel debian-2.6.0 ["sm35-avx-py311 --ptx" "B, C, D" ...]
    python3 DIR/matrix.py --jobs 34 --out OUT        there: Python 3.9, nothing else; call again to go on
    python tests/bench/matrix_offline.py --report OUT/matrix.json
    farm submit --variant B … --from-bundle OUT/BUILD

Each argument is a stage: builds that run at the same time, between commas. Give those together that compile nothing
alike: what two compile at once, both pay. The first command writes the offline bundle of the first build, and of each
other one its rendered job: those that the toolchain and the sources of the first serve too. The second builds a stage
after the other in the bundle's toolchain, each wheel in an empty tree, and leaves it in OUT/BUILD; OUT/matrix.json says
of each: CPU seconds of all its processes, wall seconds, what the compiler cache did, size and sha256. The third prints
the table: what all cost, against as many separate builds as costly as the first. The fourth repairs, verifies and
publishes one of them.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
# SM x CPU level x PTX. The first stage compiles each level's C++, the second the rest of the CUDA, the third nothing.
EIGHT = [
    "sm35-avx-py311 --ptx, sm37-avx2-py311 --no-ptx",
    "sm37-avx-py311 --ptx, sm35-avx-py311 --no-ptx, sm35-avx2-py311 --ptx, sm37-avx-py311 --no-ptx",
    "sm37-avx2-py311 --ptx, sm35-avx2-py311 --no-ptx",
]
THERE = Path(__file__).with_name("matrix_there.py")


def farm(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "farm.cli.main", *arguments], cwd=ROOT, check=True)


def name_of(build: str) -> str:
    """A file name: `sm35-avx-py311-no-ptx`."""
    return "".join(character if character.isalnum() else "-" for character in build).replace("---", "-")


def prepare(folder: Path, stages: list[list[str]], selectors: list[str]) -> None:
    """The bundle of the first build, and the rendered job of each."""
    folder.mkdir(parents=True)
    farm("render", "--variant", *shlex.split(stages[0][0]), *selectors, "--bundle", str(folder / "bundle"))
    toolchains = set()
    for build in (build for stage in stages for build in stage):
        context = folder / "context"
        farm("render", "--variant", *shlex.split(build), *selectors, "-o", str(context))
        shutil.copytree(context / "job", folder / "jobs" / name_of(build))
        toolchains.add("".join(path.read_text() for path in sorted((context / "image").rglob("*")) if path.is_file()))
        shutil.rmtree(context)
    if len(toolchains) > 1:
        raise SystemExit("these builds need more than one toolchain image: give those of one CUDA and base alone")
    (folder / "stages.json").write_text(json.dumps([[name_of(build) for build in stage] for stage in stages]))
    shutil.copyfile(THERE, folder / "matrix.py")


def report(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title=f"{len(rows)} whole builds through one compiler cache")
    for column in ("build", "CPU s", "wall s", "of the first", "compiled", "found", "CUDA compiled", "wheel MB"):
        table.add_column(column, justify="left" if column == "build" else "right")
    first = rows[0]["cpu_s"]
    for row in rows:
        done: Counter[tuple[str, bool]] = Counter()
        for each in row["cache"]:
            if each["axis"] != "configure" and each["result"] != "other":
                done[each["language"], each["result"] == "miss"] += each["count"]
        compiled = sum(count for (_, missed), count in done.items() if missed)
        table.add_row(
            row["name"], f"{row['cpu_s']:.0f}", f"{row['wall_s']:.0f}", f"{row['cpu_s'] / first:.1%}", str(compiled),
            str(done.total() - compiled), str(done["CUDA", True]), f"{row['bytes'] / 1e6:.1f}",
        )  # fmt: skip
    console.print(table)
    shared, separate = sum(row["cpu_s"] for row in rows), first * len(rows)
    text = f"{shared / 3600:.2f} core-hours; {len(rows)} builds as costly as the first: {separate / 3600:.2f}"
    console.print(f"{text}. Shared / separate: {shared / separate:.1%}", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, nargs="?", help="made anew: what is carried to the other machine")
    parser.add_argument(
        "stages", nargs="*", help="variant and options of builds, with commas between (default: eight of sm35 and sm37)"
    )
    parser.add_argument("--channel", default="debian-2.6.0")
    parser.add_argument("--package", default="torch")
    parser.add_argument("--report", type=Path, help="matrix.json, as it came back")
    args = parser.parse_intermixed_args()  # options between the folder and the builds
    if args.report:
        report(json.loads(args.report.read_text()), Console(width=140))
    elif args.folder is None:
        parser.error("a folder is needed, or --report")
    else:
        stages = [[build.strip() for build in stage.split(",")] for stage in args.stages or EIGHT]
        prepare(args.folder, stages, ["--channel", args.channel, "--package", args.package])


if __name__ == "__main__":
    main()
