"""The farm's own configuration: `ci/farm.yaml` (paths, overrides) and `ci/runners.yaml` (machines)."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from farm.errors import UsageError
from farm.yamlfile import Model, load

LOCAL = "local"
"""The runner that `farm submit` builds on."""


class Settings(Model):
    """`ci/farm.yaml`. Paths are relative to the project folder; `index` may be a path or an s3:// URL.

    `index_public_url` is where a web server shows the same index, answering folders with their index.html.
    """

    artifacts: str
    index: str
    index_public_url: str | None
    pull_timeout_s: int = Field(gt=0, le=600)
    debian_mirror: str | None
    smoke_timeout_s: int = Field(gt=0, le=7200)
    options: dict[str, str | bool | int]


class Runner(Model):
    """A machine that builds. `cpus` and `memory_gb` are limits of one job; null: what the engine has."""

    engine: Literal["docker"]
    url: str | None = None
    cpus: float | None = Field(default=None, gt=0)
    memory_gb: float | None = Field(default=None, gt=0)


class Runners(Model):
    runners: dict[str, Runner]


def find_project(start: Path) -> Path:
    """The nearest folder at or above `start` that holds `ci/matrix.yaml`.

    Raises:
        UsageError: There is none.
    """
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / "ci" / "matrix.yaml").is_file():
            return folder
    raise UsageError(
        f"no ci/matrix.yaml in {start} or above it",
        hint="run farm in a checkout of the project, or name one with --project DIR",
    )


def load_settings(project: Path) -> Settings:
    return load(project / "ci" / "farm.yaml", Settings)


def load_runners(project: Path) -> dict[str, Runner]:
    """The machines by name; `local` is among them.

    Raises:
        UsageError: The file is wrong, or names no `local` runner.
    """
    path = project / "ci" / "runners.yaml"
    runners = load(path, Runners).runners
    if LOCAL not in runners:
        raise UsageError(f"{path}: names no runner {LOCAL!r}", hint="add `local: {engine: docker}`")
    return runners
