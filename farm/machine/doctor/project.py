"""Checks of a project: can its files be read, and its folders be written?"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from farm.base.errors import UsageError
from farm.base.outputs import runs_nothing, unwritable
from farm.machine.doctor.findings import Finding, missing, ok
from farm.plan.matrix import load_matrix
from farm.plan.recipe import recipe
from farm.plan.settings import Settings, load_runners, load_settings

_T = TypeVar("_T")


def examine_project(project: Path) -> list[Finding]:
    """Every finding about the project's own files and folders."""
    wrong: list[Finding] = []
    settings = _read(load_settings, project, wrong)
    _read(load_runners, project, wrong)
    _read(_matrix, project, wrong)
    found = wrong or [ok("configuration", str(project))]
    if settings is not None:
        found += list(_folders(project, settings)) or [ok("folders", "they can be written")]
    return found


def _read(read: Callable[[Path], _T], project: Path, wrong: list[Finding]) -> _T | None:
    """The result of `read` on a project's files; None where it fails, and `wrong` gets the reason."""
    try:
        return read(project)
    except UsageError as error:
        wrong.append(missing("configuration", str(error), error.hint or "correct it, then run this again"))
        return None


def _matrix(project: Path) -> None:
    """The channels, and the recipes of the project's own."""
    matrix = load_matrix(project)
    for name in matrix.own():
        for package in matrix.channel(name).packages:
            recipe(package)


def _folders(project: Path, settings: Settings) -> Iterator[Finding]:
    """The fault of a folder that runs write to; an absent one will be made in the nearest above."""
    places = {"artifacts": settings.artifacts, "index": settings.index}
    problems: dict[str, list[str]] = {}
    for key, place in places.items():
        if place and "://" not in place and (problem := unwritable(project / place)):
            problems.setdefault(problem, []).append(key)
    for problem, keys in problems.items():
        todo = f"correct its owner or mode (`ls -ld`), or name other folders in ci/farm.yaml ({', '.join(keys)})"
        yield missing("folders", f"{', '.join(keys)}: {problem}", todo)
    artifacts = project / settings.artifacts
    if not problems and runs_nothing(artifacts):
        seen = f"artifacts: {artifacts} is mounted noexec, and smoke tests load what they install there"
        yield missing("folders", seen, "mount it without noexec, or name another folder in ci/farm.yaml (artifacts)")
    temporary = Path(tempfile.gettempdir())
    if problem := unwritable(temporary):
        yield missing("folders", f"temporary files: {problem}", "set TMPDIR to a folder that can be written")
