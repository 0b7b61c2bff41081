"""Channels: pinned stacks and the variants that they offer (`ci/matrix.yaml`)."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from farm import catalog, recipe
from farm.errors import UsageError
from farm.variant import PYTHONS, Variant, cpus, gpus
from farm.yamlfile import Model, load, nearest


def _one_of(what: str, names: Callable[[], Iterable[str]]) -> AfterValidator:
    def check(word: str) -> str:
        known = list(names())
        if word not in known:
            raise ValueError(f"unknown {what} {word!r}; nearest: {', '.join(nearest(word, known) or known)}")
        return word

    return AfterValidator(check)


Package = Annotated[str, _one_of("package", recipe.names)]
Base = Annotated[str, _one_of("base", catalog.debian_releases)]
Gpu = Annotated[str, _one_of("GPU", gpus)]
Cpu = Annotated[str, _one_of("CPU", cpus)]
Python = Annotated[str, _one_of("Python", lambda: PYTHONS)]


class Channel(Model):
    """A pinned stack and the axes of what it offers."""

    summary: str
    platforms: list[Literal["linux", "windows", "macos"]]
    packages: list[Package]
    base: Base
    toolkit: Literal["debian", "nvidia"]
    cuda: str
    torch: str | None = None
    cudnn: str | None = None
    blas: Literal["mkl", "openblas"] | None = None
    ptx: bool = False
    gpus: list[Gpu]
    cpus: list[Cpu]
    pythons: list[Python]

    def offers(self, variant: Variant) -> bool:
        return variant.gpu in self.gpus and variant.cpu in self.cpus and variant.python in self.pythons


class Matrix(Model):
    channels: dict[str, Channel] = Field(min_length=1)

    def channel(self, name: str) -> Channel:
        """The channel called `name`.

        Raises:
            UsageError: There is none; the nearest names are given.
        """
        if name not in self.channels:
            near = nearest(name, list(self.channels)) or list(self.channels)
            raise UsageError(f"unknown channel {name!r}", hint=f"nearest: {', '.join(near)}")
        return self.channels[name]

    def default_channel(self, package: str, variant: Variant, platform: str) -> str:
        """The first channel that offers the package and the variant on the platform.

        When none offers the variant, the first that offers the package: its rules then say why not.

        Raises:
            UsageError: No channel builds the package for the platform.
        """
        fitting = [n for n, c in self.channels.items() if package in c.packages and platform in c.platforms]
        if not fitting:
            raise UsageError(f"no channel of ci/matrix.yaml builds {package!r} for {platform}")
        return next((n for n in fitting if self.channels[n].offers(variant)), fitting[0])


def load_matrix(project: Path) -> Matrix:
    return load(project / "ci" / "matrix.yaml", Matrix)
