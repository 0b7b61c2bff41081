"""`farm matrix`: what the channels offer, for people and for workflows."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from farm.cli import show
from farm.matrix import Build, Channel, load_matrix
from farm.matrix.workflow import workflow_matrix
from farm.settings import find_project, load_github_labels


def cmd_matrix(args: argparse.Namespace) -> int:
    project = find_project(args.project or Path.cwd())
    matrix = load_matrix(project)
    builds = list(matrix.builds(args.channel))
    form = "json" if args.json and args.format == "table" else args.format
    if form == "names":
        for build in builds:
            print(build.alias if args.channel else f"{build.channel}/{build.alias}")
    elif form == "json":
        print(json.dumps([_entry(build) for build in builds], indent=2))
    elif form == "github":
        labels = load_github_labels(project)
        jobs = workflow_matrix(matrix, builds, lambda job, b: labels.runs_on(job, b.variant, b.platform))
        print(json.dumps(jobs, separators=(",", ":")))  # one line: a step output
    else:
        for name, channel in matrix.channels.items():
            if args.channel in {None, name}:
                _grid(channel)
    return 0


def _entry(build: Build) -> dict[str, Any]:
    return {
        "channel": build.channel,
        "package": build.package,
        "variant": str(build.variant),
        "platform": build.platform,
        "cuda": build.cuda,
        "alias": build.alias,
    }


def _grid(channel: Channel) -> None:
    """A row for each package, platform, GPU and set of Pythons; a column for each CPU level; CUDA in the cells."""
    cells: dict[tuple[str, str, str, str], list[Build]] = {}
    for build in channel.builds:
        cells.setdefault((build.package, build.platform, build.variant.gpu, build.variant.cpu), []).append(build)
    cpus = [cpu for cpu in channel.cpus if any(cpu == one for *_, one in cells)]
    rows: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for (package, platform, gpu, cpu), builds in cells.items():
        pythons = _joined(build.variant.python for build in builds)
        versions = _joined(build.cuda or "yes" for build in builds)
        rows.setdefault((package, platform, gpu, pythons), {})[cpu] = versions
    print(f"{channel.name}: {channel.text.summary} ({len(channel.builds)} builds; cells: the CUDA versions)")
    show.table(
        "",
        ("package", "platform", "GPU", "Python", *cpus),
        [(*row, *(found.get(cpu, "-") for cpu in cpus)) for row, found in rows.items()],
    )
    print()


def _joined(words: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(words))
