"""`farm matrix`: what the channels offer, for people and for workflows."""

import argparse
import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.base.project import find_project
from farm.cli import show
from farm.plan.matrix import Build, Channel, load_matrix, workflow_matrix
from farm.plan.recipe import recipe
from farm.plan.settings import load_github
from farm.platforms.facts import PLATFORMS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--channel", help="list only this channel")
    parser.add_argument("--package", metavar="PATTERN", help="list only matching packages, such as torch*")
    parser.add_argument("--platform", choices=list(PLATFORMS))
    parser.add_argument("--variant", metavar="PATTERN", help="list only matching variants, such as sm35-*-py311")
    parser.add_argument("--format", default="table", choices=["table", "github", "names"])


def run(args: argparse.Namespace) -> int:
    project = find_project(args.project or Path.cwd())
    matrix = load_matrix(project)
    builds = [build for build in matrix.builds(args.channel) if _fits(build, args)]
    if not builds:
        raise UsageError("no build of the matrix fits", hint="farm matrix --format names lists them all")
    # `--format github` and `names` are formats of their own: `--json` changes the table alone.
    form = "json" if args.json and args.format == "table" else args.format
    if form == "names":
        for build in builds:
            print(build.alias if args.channel else f"{build.channel}/{build.alias}")
    elif form == "json":
        show.json_document([_entry(build) for build in builds])
    elif form == "github":
        labels = load_github(project)
        jobs = workflow_matrix(matrix, builds, lambda job, b: labels.runs_on(job, b.variant, b.platform))
        print(json.dumps(jobs, separators=(",", ":")))  # one line: a step output
    else:
        for name, channel in matrix.channels.items():
            if any(build.channel == name for build in builds):
                _grid(channel, [build for build in builds if build.channel == name])
    return 0


def _fits(build: Build, args: argparse.Namespace) -> bool:
    return (
        fnmatchcase(build.package, args.package or "*")
        and fnmatchcase(str(build.variant), args.variant or "*")
        and args.platform in {None, build.platform}
    )


def _entry(build: Build) -> dict[str, Any]:
    return {
        "channel": build.channel,
        "package": build.package,
        "variant": str(build.variant),
        "platform": build.platform,
        "cuda": build.cuda,
        "alias": build.alias,
    }


def _grid(channel: Channel, offered: list[Build]) -> None:
    """A row for each package, platform, GPU and set of Pythons; a column for each CPU level; CUDA in the cells."""
    cells: dict[tuple[str, str, str, str], list[Build]] = {}
    for build in offered:
        cells.setdefault((build.package, build.platform, build.variant.gpu, build.variant.cpu), []).append(build)
    cpus = [cpu for cpu in channel.cpus if any(cpu == one for *_, one in cells)]
    rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for (package, platform, gpu, cpu), builds in cells.items():
        pythons = _join(build.variant.python for build in builds)
        versions = _join(build.cuda or "yes" for build in builds)
        rows.setdefault((package, platform, gpu, pythons), {})[cpu] = versions
    print(f"{channel.name}: {channel.text.summary} ({len(offered)} builds; cells: the CUDA versions)")
    show.table(
        "",
        ("package", "platform", "GPU", "Python", *cpus),
        [(*row, *(found.get(cpu, "-") for cpu in cpus)) for row, found in rows.items()],
    )
    for package in dict.fromkeys(build.package for build in offered if build.variant.sms):
        if not recipe(channel.text.recipes.get(package, package)).is_for_gpus:
            show.say(f"{package} has no code for a GPU: its builds are the same code for each, and as for cpu")
    print()


def _join(words: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(words))
