"""Recipes: what is built and how. One folder a package under `farm/recipes/`, `recipe.yaml` inside."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from farm.errors import UsageError
from farm.yamlfile import Model, load, nearest

FOLDER = Path(__file__).parent / "recipes"


class PathSource(Model):
    """The source stands beside the recipe."""

    kind: Literal["path"]
    path: str


class GitSource(Model):
    """A tag of a git repository; version and commit come from the catalogue's PyTorch release, by `release`."""

    kind: Literal["git"]
    url: str
    tag: str
    release: Literal["torch", "vision", "audio"] = "torch"


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_~-]{0,120}$")]
PackageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}$")]


class ArchiveSource(Model):
    """A tar file at an address."""

    kind: Literal["archive"]
    url: str
    sha256: Sha256


class DebianSource(Model):
    """The upstream tarball of a distribution's source package, from the mirror that the settings or apt name."""

    kind: Literal["debian-source"]
    package: PackageName
    file: FileName
    sha256: Sha256
    section: Literal["main", "contrib", "non-free"] = "main"


class SdistSource(Model):
    """A source distribution from the Python index that pip is set to."""

    kind: Literal["sdist"]
    package: PackageName
    file: FileName
    sha256: Sha256


AnySource = Annotated[PathSource | GitSource | ArchiveSource | DebianSource | SdistSource, Field(discriminator="kind")]


class Part(Model):
    """Third-party code that goes into the folder `into` of the source tree: `members` of its tar file, or all."""

    into: str
    source: Annotated[ArchiveSource | DebianSource | SdistSource, Field(discriminator="kind")]
    strip: int = Field(default=1, ge=0, le=16)
    members: list[str] = []


class Recipe(Model):
    """How one package is built. In `env`, `{version}`, `{use_cuda}`, `{blas}`, … are filled by the plan.

    `switches` name switches of the catalogue: each is set to 1 where the rules have nothing against it, else to 0.
    `gcc` is the newest host compiler that it takes. `needs` are packages whose wheels for the same variant the build
    imports. `parts` fill the source tree, then the patches of the folder `job/patches` are applied and
    `job/prepare.sh` is run, where the recipe has them.
    """

    package: str
    summary: str
    version: str
    source: AnySource
    parts: list[Part] = []
    platforms: list[Literal["linux", "windows", "macos"]]
    components: list[str]
    cudnn: bool = False
    gcc: int | None = None
    apt: list[str]
    env: dict[str, str]
    env_cuda: dict[str, str] = {}
    env_platform: dict[Literal["linux", "windows", "macos"], dict[str, str]] = {}
    switches: list[str] = []
    needs: list[Literal["torch"]] = []
    memory_per_job_gb: float = Field(gt=0)
    timeout_minutes: int = Field(gt=0)
    vendor_into: str
    exclude: list[str] = []
    cpu_exempt: list[str] = []
    requires: list[str] = []


def names() -> tuple[str, ...]:
    return tuple(sorted(folder.parent.name for folder in FOLDER.glob("*/recipe.yaml")))


@cache
def recipe(package: str) -> Recipe:
    """The recipe in the folder `package`; a channel may name another one than the package's own.

    Raises:
        UsageError: There is none; the nearest names are given.
    """
    if package not in names():
        near = nearest(package, names()) or list(names())
        raise UsageError(f"unknown package {package!r}", hint=f"nearest: {', '.join(near)}")
    return load(FOLDER / package / "recipe.yaml", Recipe)


def folder(package: str) -> Path:
    return FOLDER / package


def tree_files(root: Path) -> list[Path]:
    """The files of a source tree in a stable order, without caches that Python leaves behind."""
    return sorted(p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def tree_digest(root: Path) -> str:
    """Sha256 over the names and contents of the files under `root`."""
    total = hashlib.sha256()
    for path in tree_files(root):
        name = path.relative_to(root).as_posix().encode()
        content = path.read_bytes()
        total.update(b"%d %s %d " % (len(name), name, len(content)))
        total.update(content)
    return total.hexdigest()


def job_files(name: str) -> dict[str, Path]:
    """What a recipe brings to its build beside the source: `patches/…`, `prepare.sh`, by relative path."""
    root = FOLDER / name / "job"
    return {path.relative_to(root).as_posix(): path for path in tree_files(root)} if root.is_dir() else {}


def job_digest(name: str) -> str | None:
    """Sha256 over the recipe's job files; None where it has none."""
    return tree_digest(FOLDER / name / "job") if job_files(name) else None
