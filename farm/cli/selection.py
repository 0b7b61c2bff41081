"""The project that a command is about, the builds that its options select, and the runs that it
names.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from farm.base import resources
from farm.base.errors import UsageError, VerificationFailedError
from farm.base.project import JOURNAL, find_project
from farm.cli import show
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.options import FILE, Choice, from_arguments, from_environment, from_file
from farm.plan.package_set import channel_of_set, makers_first
from farm.plan.recipe import use_project
from farm.plan.request import BuildRequest
from farm.plan.resolve import resolve
from farm.plan.settings import Settings, load_settings
from farm.plan.variant import Variant
from farm.run.journal import Journal
from farm.run.journal_records import Run
from farm.run.run_state import Phase, state_of
from farm.run.workspace import Watcher, Workspace
from farm.wheel.metadata import parse_wheel_name

WILD = frozenset("*?[")


def folder_of(args: argparse.Namespace) -> Path:
    """The project's folder: `--project`, else this one or the nearest above it."""
    return find_project(args.project or Path.cwd())


def project_of(args: argparse.Namespace) -> tuple[Path, Settings]:
    """The project's folder and its settings."""
    project = folder_of(args)
    return project, load_settings(project)


def workspace_of(args: argparse.Namespace) -> Workspace:
    """The project as the pipeline sees it, its recipes included, without anybody who watches."""
    project, settings = project_of(args)
    use_project(project)
    return Workspace(project, settings, Watcher())


@contextmanager
def journal_of(args: argparse.Namespace) -> Iterator[Journal | None]:
    """The project's journal; None where no run was made yet: reading creates nothing."""
    project, settings = project_of(args)
    path = project / settings.artifacts / JOURNAL
    if not path.is_file():
        yield None
        return
    with Journal(path) as journal:
        yield journal


@contextmanager
def journal_with_a_run(args: argparse.Namespace) -> Iterator[Journal]:
    """The project's journal, for a command about `args.run` or, where that is None, about the
    newest run.
    """
    with journal_of(args) as journal:
        if journal is None or not (args.run or journal.runs(1)):
            text = "there is no run yet"
            if args.run:
                text = f"no run {args.run[0]!r}: {text}"
            raise UsageError(text, hint="farm submit --variant sm35-avx-py311 --package canary")
        yield journal


def selectors_of(args: argparse.Namespace, project: Path, settings: Settings) -> BuildRequest:
    """Overrides by rank: the file, then the environment, then the command line.

    In the place of a variant may stand an alias of the matrix: it names the package, channel and
    CUDA as well.
    """
    # The right-hand side of `|` wins: the file, then the environment, then the command line.
    options = (
        from_file(settings.options, resources.default(project, FILE))
        | from_environment(os.environ)
        | from_arguments(vars(args), getattr(args, "words", ()))
    )
    # `main/pytorch-python313-cuda12_8-sm80-avx512`: every alias says `python`, and no variant does
    # (`py313`).
    if "python" in args.variant.rpartition("-")[0]:
        build = load_matrix(project).by_alias(args.variant, args.channel)
        if build.cuda and args.cuda is None:
            options["cuda"] = Choice(build.cuda, f"alias {args.variant}")
        return BuildRequest(build.variant, build.package, build.platform, build.channel, options)
    return BuildRequest(
        variant=Variant.parse(args.variant),
        package=args.package or _package_of(getattr(args, "wheel", None)),
        platform=args.platform,
        channel=args.channel,
        options=options,
    )


def _package_of(wheel: Path | None) -> str:
    if wheel is None:
        return "torch"
    try:
        return parse_wheel_name(wheel.name).name
    except VerificationFailedError:  # the check of names says what is wrong with it
        return "torch"


def plan_of(args: argparse.Namespace) -> tuple[Path, Settings, Plan]:
    """The project, its settings and the resolved build."""
    project, settings = project_of(args)
    return project, settings, resolve(project, selectors_of(args, project, settings))


def plans_of(args: argparse.Namespace) -> tuple[Path, Settings, list[Plan]]:
    """The builds of `--variant`, given several times or as a pattern such as `sm3*-avx*-py311`, or
    of `--all`.
    """
    project, settings = project_of(args)
    plans: dict[str, Plan] = {}
    for build in each_build(args, project):
        plan = resolve(project, selectors_of(build, project, settings))
        plans.setdefault(plan.digest, plan)
    if not plans:
        request = f"{', '.join(args.package or ['anything'])} for {args.platform}"
        raise UsageError(
            f"channel {args.channel} builds nothing of {request}",
            hint="`farm matrix` lists the builds",
        )
    return project, settings, makers_first(list(plans.values()))


def each_build(args: argparse.Namespace, project: Path) -> Iterator[argparse.Namespace]:
    """The arguments for each build; packages that are left out are named on standard error."""
    for fault in load_matrix(project).faults:
        show.note(f"farm: warning: {fault}")
    if args.all:
        yield from _builds_of_channel(args, project)
        return
    if not args.variant:
        raise UsageError(
            "name a build",
            hint="--variant sm35-avx-py311, a pattern such as 'sm3*-avx*-py311', or --all",
        )
    for word in args.variant:
        names = [word]
        if WILD & set(word):
            names = _matching(word, args, project)
        for name in names:
            yield from _packages_of(with_options(args, variant=name), project)


def _builds_of_channel(args: argparse.Namespace, project: Path) -> Iterator[argparse.Namespace]:
    """The arguments for each build of `--channel --all`, or of the packages that were named."""
    if not args.channel or args.variant:
        raise UsageError(
            "--all takes every build of a channel", hint="farm submit --channel NAME --all"
        )
    for build in load_matrix(project).builds(args.channel):
        is_selected = args.package is None or build.package in args.package
        if is_selected and args.platform == build.platform:
            yield with_options(args, variant=str(build.variant), package=build.package)


def with_options(args: argparse.Namespace, **options: Any) -> argparse.Namespace:
    """The arguments of a command, with some of them replaced."""
    return argparse.Namespace(**{**vars(args), **options})


def _packages_of(args: argparse.Namespace, project: Path) -> Iterator[argparse.Namespace]:
    """The arguments for each package of one variant; several get one channel."""
    packages = list(dict.fromkeys(args.package or (None,)))
    if len(packages) < 2:
        yield with_options(args, package=packages[0])
        return
    settings = load_settings(project)
    first = with_options(args, package=packages[0])
    channel = channel_of_set(project, selectors_of(first, project, settings), packages)
    for package in packages:
        yield with_options(args, package=package, channel=channel)


def _matching(pattern: str, args: argparse.Namespace, project: Path) -> list[str]:
    """The variants of a package whose names match a pattern."""
    package = "torch"
    if args.package:
        package = args.package[0]
    names: dict[str, None] = {}  # a set in the order of the channels
    for build in load_matrix(project).builds(args.channel):
        is_asked_for = (build.package, build.platform) == (package, args.platform)
        if is_asked_for and fnmatchcase(str(build.variant), pattern):
            names[str(build.variant)] = None
    if not names:
        where = "the channels"
        if args.channel:
            where = f"channel {args.channel}"
        raise UsageError(
            f"no variant of {package} for {args.platform} in {where} matches {pattern!r}",
            hint="`farm matrix` lists them",
        )
    return list(names)


def runs_of(args: argparse.Namespace, journal: Journal) -> list[Run]:
    """The runs that are named, oldest first."""
    runs = list(map(journal.run, args.run))
    if args.queued:
        for run in journal.open_runs():
            if state_of(journal, run).phase == Phase.QUEUED:
                runs.append(run)
    if args.failed:
        runs += journal.failed()
    if not runs and not args.run and not (args.failed or args.queued):
        raise UsageError("name a run", hint="`farm status` lists them")
    runs_by_id = {run.id: run for run in runs}
    return [runs_by_id[run_id] for run_id in sorted(runs_by_id)]
