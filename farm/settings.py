"""The farm's own configuration: `ci/farm.yaml` (paths, overrides) and `ci/runners.yaml` (machines)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from farm.errors import UsageError
from farm.variant import Variant
from farm.yamlfile import Model, load

LOCAL = "local"
"""The runner that `farm submit` builds on."""


class Settings(Model):
    """`ci/farm.yaml`. Paths are relative to the project folder; `index` may be a path or an s3:// URL.

    `index_public_url` is where a web server shows the same index, answering folders with their index.html.
    `signing_key` is a file with an ed25519 private key in PEM, or `env:NAME` for a variable that holds its text.
    """

    artifacts: str
    index: str
    index_public_url: str | None
    signing_key: str | None = None
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


Kind = Literal["linux-x86_64", "linux-aarch64", "windows-x86_64", "macos-arm64"]
Label = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.-]{1,60}|\{gpu\}|\{cpu\})$")]
Labels = Annotated[list[Label], Field(min_length=1, max_length=16)]


class GithubLabels(Model):
    """`runs-on` labels by `<platform>-<machine>`. `{gpu}` and `{cpu}` stand for the words of the variant."""

    build: dict[Kind, Labels]
    smoke: dict[Kind, Labels]

    def runs_on(self, job: Literal["build", "smoke"], variant: Variant, platform: str) -> list[str]:
        """The labels that a runner must carry to get the job.

        Raises:
            UsageError: `ci/runners.yaml` names none for the platform and the variant's machine.
        """
        labels: dict[str, list[str]] = dict(getattr(self, job))
        kind = f"{platform}-{variant.machine}"
        if kind not in labels:
            raise UsageError(
                f"ci/runners.yaml: github.{job} has no labels for {kind}, which {variant} needs",
                hint=f"add {kind}: [self-hosted, ...]; there are labels for: {', '.join(labels)}",
            )
        return [label.format(gpu=variant.gpu, cpu=variant.cpu) for label in labels[kind]]


class Runners(Model):
    runners: dict[str, Runner]
    github: GithubLabels | None = None


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


def load_github_labels(project: Path) -> GithubLabels:
    """The labels that jobs of a GitHub workflow ask for.

    Raises:
        UsageError: `ci/runners.yaml` is wrong or has none.
    """
    path = project / "ci" / "runners.yaml"
    labels = load(path, Runners).github
    if labels is None:
        raise UsageError(f"{path}: no key 'github': the labels of build and smoke jobs are not known")
    return labels
