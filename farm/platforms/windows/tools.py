"""Windows build machines: the compilers, tools and Python packages of `tools.yaml`, each with its sha256."""

from functools import cache
from pathlib import Path
from typing import Annotated, Self

from packaging.version import Version
from pydantic import Field, model_validator

from farm.base.errors import NotBuildableError
from farm.base.yamlfile import Model, load

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Url = Annotated[str, Field(pattern=r"^https?://[!-~]{1,300}$")]
Place = Annotated[str, Field(pattern=r"^[a-z0-9]+(/[a-z0-9_.]+)*/?$")]


class Download(Model):
    """One file of the network."""

    version: str
    url: Url
    sha256: Sha256


class Tool(Download):
    """An archive of which some members are unpacked: pattern (fnmatch) to a place; one that ends in / is a folder.

    `mirrors`: other addresses of the same file.
    """

    max_mb: int = Field(gt=0, le=1024)
    members: dict[str, Place]
    mirrors: list[Url] = []


class BuildTools(Model):
    """A Visual Studio product: the toolset that vcvars is asked for, what adds it, the pinned bootstrapper."""

    toolset: str = Field(pattern=r"^14\.\d\d$")
    component: str = Field(pattern=r"^Microsoft\.[A-Za-z0-9.]+$")
    url: Url
    sha256: Sha256
    components: list[Annotated[str, Field(pattern=r"^Microsoft\.[A-Za-z0-9.]+$")]]


class Wheel(Model):
    """A Python package of the build environment: one file for every Python, or one a Python."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    version: str = Field(pattern=r"^[0-9a-z.]+$")
    sha256: Sha256 | None = None
    by_python: dict[str, Sha256] = {}

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if (self.sha256 is None) == (not self.by_python):
            raise ValueError("give either sha256 or by_python")
        return self

    def digest(self, python: str) -> str | None:
        return self.sha256 or self.by_python.get(python)


class WindowsTools(Model):
    """The whole file."""

    sources: dict[str, str]
    visual_studio: dict[str, BuildTools]
    python: dict[str, Download]
    git: Download
    tools: dict[str, Tool]
    cpu_hours: dict[str, float]
    frontend: list[str]
    frontend_before_311: list[str]
    wheels: list[Wheel]


@cache
def windows_tools() -> WindowsTools:
    return load(Path(__file__).parent / "tools.yaml", WindowsTools)


def wheel(name: str, python: str, below: str | None = None) -> tuple[str, str]:
    """Version and sha256 of the newest pinned `name` for `python` (`py311`), of a version before `below`.

    Raises:
        NotBuildableError: None is pinned.
    """
    found = [
        (entry.version, digest)
        for entry in windows_tools().wheels
        if entry.name == name
        and (digest := entry.digest(python))
        and (below is None or Version(entry.version) < Version(below))
    ]
    if not found:
        limit = f" below {below}" if below else ""
        pinned = sorted({other for entry in windows_tools().wheels if entry.name == name for other in entry.by_python})
        raise NotBuildableError(
            f"the farm has no pinned {name}{limit} for {python} on Windows",
            hint=f"it has one for {', '.join(pinned)}; others go into farm/platforms/windows/tools.yaml, with sha256",
        )
    return max(found, key=lambda pair: Version(pair[0]))
