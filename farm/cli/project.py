"""The project that a command is about, and its journal."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from farm.settings import Settings, find_project, load_settings

if TYPE_CHECKING:
    from farm.pipeline.workspace import Workspace
    from farm.runs import Journal


def project_of(args: argparse.Namespace) -> tuple[Path, Settings]:
    """The project's folder and its settings."""
    project = find_project(args.project or Path.cwd())
    return project, load_settings(project)


def workspace_of(args: argparse.Namespace) -> "Workspace":
    """The project as the pipeline sees it, without anybody who watches."""
    from farm.pipeline.report import Silent
    from farm.pipeline.workspace import Workspace

    return Workspace(*project_of(args), Silent())


@contextmanager
def journal_of(args: argparse.Namespace) -> "Iterator[Journal | None]":
    """The project's journal; None where no run was made yet: reading creates nothing."""
    from farm.pipeline.workspace import journal_path, open_journal

    project, settings = project_of(args)
    if not journal_path(project, settings).is_file():
        yield None
        return
    with open_journal(project, settings) as journal:
        yield journal
