"""Where a project is, and the names of what is in it."""

from pathlib import Path

from farm.base.errors import UsageError
from farm.base.resources import exists

PROJECT_FILES = ("ci/matrix.yaml", "ci/farm.yaml", "ci/runners.yaml")

LOCAL = "local"  # the runner that `farm submit` builds on

JOURNAL = "farm.db"  # the journal's file, in the folder of the artifacts


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` with one of PROJECT_FILES; else `start`, with the
    farm's own defaults.
    """
    if not start.is_dir():
        raise UsageError(
            f"{start}: no such folder", hint="name the project's folder: --project DIR"
        )
    for folder in (start.resolve(), *start.resolve().parents):
        if any(exists(folder / name) for name in PROJECT_FILES):
            return folder
    return start.resolve()
