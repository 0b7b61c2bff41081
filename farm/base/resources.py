"""The files that come with the farm: channels, templates and scripts; a project's own stand before
them.

In a checkout they are at its root, where they are edited; a wheel of the farm carries them inside
the package (`setup.py` puts them there).
"""

from pathlib import Path

from farm.base.errors import unreadable

_IN_WHEEL = Path(__file__).parents[1] / "_shipped"
ROOT = _IN_WHEEL if _IN_WHEEL.is_dir() else Path(__file__).resolve().parents[2]
"""The folder that has `ci/matrix.yaml` and `dockerfiles/`."""

FOLDER = Path(__file__).parents[1]  # the package `farm`; `cli/schemas/` says what `--json` prints
EXAMPLE = FOLDER / "cli" / "example"
"""The example project of `farm init`; its `ci/farm.yaml` and `ci/runners.yaml` are defaults of
other projects too.
"""


def exists(path: Path) -> bool:
    """True for a link that leads nowhere, too; UsageError: its folder may not be read, so that
    nobody knows.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def path(project: Path, relative: str) -> Path:
    """The project's own file or folder where it has one, else the farm's; a link that leads nowhere
    is one, too.
    """
    return _project_file_or(project, ROOT, relative)


def default(project: Path, relative: str) -> Path:
    """The project's own configuration file where it has one, else that of the example; a link as in
    `path`.
    """
    return _project_file_or(project, EXAMPLE, relative)


def _project_file_or(project: Path, fallback: Path, relative: str) -> Path:
    project_file = project / relative
    if exists(project_file):
        return project_file
    return fallback / relative
