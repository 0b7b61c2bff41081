"""`farm matrix`: list the builds of the channels."""

import argparse
import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.cli import show
from farm.cli.selection import folder_of, selectors_of, with_options, workspace_of
from farm.plan.channel import Build, Channel
from farm.plan.matrix import Matrix, load_matrix
from farm.plan.recipe import recipe
from farm.plan.resolve import resolve
from farm.plan.settings import load_github
from farm.plan.workflow_matrix import workflow_matrix


def run_matrix(args: argparse.Namespace) -> int:
    """Print the builds of the channels, in the form that was asked for."""
    project = folder_of(args)
    matrix = load_matrix(project)
    builds = [build for build in matrix.builds(args.channel) if _fits(build, args)]
    if not builds:
        raise UsageError(
            "no build of the matrix fits", hint="farm matrix --format names lists them all"
        )
    if args.missing:
        builds = _missing(args, builds)
    if args.limit is not None and len(builds) > args.limit:
        show.note(f"the first {args.limit} of {len(builds)} builds")
        builds = builds[: args.limit]
    # `--format github` and `names` are formats of their own: `--json` changes the table alone.
    if args.format == "names":
        for build in builds:
            show.say(_name_of(build, args.channel))
    elif args.format == "github":
        _print_workflow_matrix(project, matrix, builds)
    elif args.json:
        show.json_document(list(map(_to_json, builds)))
    else:
        for name, channel in matrix.channels.items():
            of_channel = [build for build in builds if build.channel == name]
            if of_channel:
                _print_channel(channel, of_channel)
    return 0


def _print_workflow_matrix(project: Path, matrix: Matrix, builds: list[Build]) -> None:
    """Print the jobs of a workflow in one line, as the output of a step must be."""
    labels = load_github(project)
    jobs = workflow_matrix(
        matrix, builds, lambda job, build: labels.runs_on(job, build.variant, build.platform)
    )
    print(json.dumps(jobs, separators=(",", ":")))


def _name_of(build: Build, channel: str | None) -> str:
    """The name of a build as `--variant` takes it; with its channel where none was named."""
    if channel:
        return build.alias
    return f"{build.channel}/{build.alias}"


def _to_json(build: Build) -> dict[str, Any]:
    fields = show.fields(build, "channel", "package", "platform", "cuda", "alias")
    return fields | {"variant": str(build.variant)}


def _missing(args: argparse.Namespace, builds: list[Build]) -> list[Build]:
    """The builds whose plan has no wheel in the project's index."""
    from farm.run.resume import find_published

    workspace = workspace_of(args)
    missing = []
    for build in builds:
        words = with_options(args, variant=build.alias, channel=build.channel, cuda=None, words=())
        request = selectors_of(words, workspace.project, workspace.settings)
        if find_published(workspace, resolve(workspace.project, request)) is None:
            missing.append(build)
    return missing


def _fits(build: Build, args: argparse.Namespace) -> bool:
    return (
        fnmatchcase(build.package, args.package or "*")
        and fnmatchcase(str(build.variant), args.variant or "*")
        and args.platform in {None, build.platform}
    )


def _print_channel(channel: Channel, builds: list[Build]) -> None:
    """Print the table of a channel's builds, and which packages need no GPU."""
    used = {build.variant.cpu for build in builds}
    cpus = [cpu for cpu in channel.cpus if cpu in used]
    rows = []
    for row, cudas_by_cpu in _grid(builds).items():
        cells = [cudas_by_cpu.get(cpu, "-") for cpu in cpus]
        rows.append((*row, *cells))
    show.table(
        f"{channel.name}: {channel.text.summary} ({len(builds)} builds; cells: the CUDA versions)",
        ("package", "platform", "GPU", "Python", *cpus),
        rows,
    )
    packages = dict.fromkeys(build.package for build in builds if build.variant.sms)
    for package in packages:
        if not recipe(channel.text.recipe_of(package)).is_for_gpus:
            show.say(
                f"{package} has no code for a GPU: its builds are the same code for each, and as "
                "for cpu"
            )
    print()


def _grid(builds: list[Build]) -> dict[tuple[str, ...], dict[str, str]]:
    """The CUDA versions by CPU level, for each package, platform, GPU and set of Pythons."""
    cells: dict[tuple[str, str, str, str], list[Build]] = {}
    for build in builds:
        place = (build.package, build.platform, build.variant.gpu, build.variant.cpu)
        cells.setdefault(place, []).append(build)
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for (package, platform, gpu, cpu), of_cell in cells.items():
        pythons: dict[str, None] = {}  # sets in the order of the channel
        cudas: dict[str, None] = {}
        for build in of_cell:
            pythons[build.variant.python] = None
            cudas[build.cuda or "yes"] = None
        row = (package, platform, gpu, " ".join(pythons))
        rows.setdefault(row, {})[cpu] = " ".join(cudas)
    return rows
