"""Where a project is and where its runs leave their files: all that commands such as `farm status` must know.

Nothing slow is imported: `farm.plan.settings` takes longer to import than these commands take in all.
"""

import re
from pathlib import Path

from farm.base import resources as shipped
from farm.base.errors import UsageError

PROJECT_FILES = ("ci/matrix.yaml", "ci/farm.yaml", "ci/runners.yaml")

LOCAL = "local"
"""The runner that `farm submit` builds on."""


_VALUES = {"null", "true", "false", "yes", "off"}
"""Words that are no text in YAML."""

JOURNAL = "farm.db"
"""The journal's file, in the folder of the artifacts."""


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` that is a project (has one of PROJECT_FILES), else `start` itself.

    A folder without any is a project with the farm's own defaults.

    Raises:
        UsageError: There is no such folder.
    """
    if not start.is_dir():
        raise UsageError(f"{start}: no such folder", hint="name the project's folder: --project DIR")
    for folder in (start.resolve(), *start.resolve().parents):
        if any(_is_there(folder / name) for name in PROJECT_FILES):
            return folder
    return start.resolve()


def _is_there(file: Path) -> bool:
    """True if there is such a file; of a link that leads nowhere `farm.base.yamlfile` says so."""
    return file.is_file() or file.is_symlink()


def journal_path(project: Path) -> Path | None:
    """The journal of a project, by one line of ci/farm.yaml: importing pydantic takes longer than `farm status`.

    None: the file cannot be read, or writes that line in another way; `farm.plan.settings` reads it whole.
    """
    try:
        text = shipped.default(project, "ci/farm.yaml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    mentions = re.findall(r"^[^#\n]*artifacts.*$", text, re.MULTILINE)
    named = re.findall(r"^artifacts: +([A-Za-z_/][\w./-]{2,})(?: +#.*)?$", text, re.MULTILINE)
    if len(named) != len(mentions) or len(named) > 1 or {*map(str.lower, named)} & _VALUES:
        return None
    return project / (named[0] if named else "artifacts") / JOURNAL
