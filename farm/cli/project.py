"""The project that a command is about, and its journal."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from farm.base.project import JOURNAL, find_project

if TYPE_CHECKING:
    from farm.plan.settings import Settings
    from farm.run.journal import Journal
    from farm.run.workspace import Workspace


def project_of(args: argparse.Namespace) -> "tuple[Path, Settings]":
    """The project's folder and its settings."""
    from farm.plan.settings import load_settings

    project = find_project(args.project or Path.cwd())
    return project, load_settings(project)


def workspace_of(args: argparse.Namespace) -> "Workspace":
    """The project as the pipeline sees it, its recipes included, without anybody who watches."""
    from farm.plan.recipe import use_project
    from farm.run.workspace import Watcher, Workspace

    project, settings = project_of(args)
    use_project(project)
    return Workspace(project, settings, Watcher())


@contextmanager
def journal_of(args: argparse.Namespace) -> "Iterator[Journal | None]":
    """The project's journal; None where no run was made yet: reading creates nothing."""
    project, settings = project_of(args)
    path = project / settings.artifacts / JOURNAL
    if not path.is_file():
        yield None
        return
    from farm.run.journal import Journal

    with Journal(path) as journal:
        yield journal


@contextmanager
def journal_with_a_run(args: argparse.Namespace) -> "Iterator[Journal]":
    """The project's journal, for a command about `args.run` or, where that is None, about the newest run.

    Raises:
        UsageError: No run was made here yet.
    """
    from farm.base.errors import UsageError

    with journal_of(args) as journal:
        if journal is None or not (args.run or journal.runs(1)):
            raise UsageError(
                f"no run {args.run[0]!r}: there is no run yet" if args.run else "there is no run yet",
                hint="farm submit --variant sm35-avx-py311 --package canary",
            )
        yield journal
