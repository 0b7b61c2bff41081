"""Where a project is and where its runs leave their files: all that commands such as `farm status` must know.

Nothing slow is imported: `farm.plan.settings` takes longer to import than these commands take in all.
"""

from pathlib import Path
from typing import Any

from farm.base import resources as shipped
from farm.base.errors import UsageError

PROJECT_FILES = ("ci/matrix.yaml", "ci/farm.yaml", "ci/runners.yaml")

LOCAL = "local"
"""The runner that `farm submit` builds on."""

MAX_CHARACTERS = 1 << 16
"""Of ci/farm.yaml where it is read for one key; of a longer file `farm.plan.settings` says whether it is too long."""

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
    """The journal of a project, for which one key of ci/farm.yaml is read.

    None: the file cannot be read so, and `farm.plan.settings` says what is wrong with it.
    """
    import yaml  # noqa: PLC0415 not what imports this for the names

    try:
        with shipped.default(project, "ci/farm.yaml").open(encoding="utf-8", newline="") as file:
            text = file.read(MAX_CHARACTERS + 1)
        found = _values(text, "artifacts") if len(text) <= MAX_CHARACTERS else None
    except (OSError, ValueError, yaml.YAMLError):
        return None
    if found is None or len(found) > 1 or None in found:
        return None
    return project / (found[0] if found and found[0] else "artifacts") / JOURNAL


def _values(text: str, name: str) -> list[str | None] | None:
    """The text of a key of the top mapping; None: it is not text, or there is no mapping.

    A second reader of YAML on purpose. `farm.base.yamlfile` checks with pydantic, whose import takes seven times the
    CPU time of this (75 ms against 11, measured on a busy machine), for one key that `farm status` needs. Tests hold
    that both read the same (`tests/unit/core/test_quick_commands.py`). From the parser's events: what makes nodes
    of them recurses on the stack of C.
    """
    import yaml  # noqa: PLC0415 (as above)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolver: Any = yaml.resolver.Resolver()  # without annotations
    depth, key = 0, None
    found: list[str | None] = []
    for event in yaml.parse(text, Loader=loader):
        if depth == 0 and isinstance(event, yaml.NodeEvent) and not isinstance(event, yaml.MappingStartEvent):
            return None
        if depth == 1 and isinstance(event, yaml.NodeEvent):
            word, tag = None, None
            if isinstance(event, yaml.ScalarEvent):
                word, tag = event.value, resolver.resolve(yaml.ScalarNode, event.value, event.implicit)
            if key is None and word is None:
                return None
            if key == name:
                found.append(word if tag == "tag:yaml.org,2002:str" else None)
            key = word if key is None else None
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
    return found
