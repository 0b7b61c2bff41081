"""Channels: pinned stacks and the variants that they offer (`ci/matrix.yaml`)."""

from pathlib import Path
from typing import Literal

from farm.errors import UsageError
from farm.variant import Variant
from farm.yamlfile import Model, load, nearest


class Channel(Model):
    """A pinned stack and the axes of what it offers."""

    summary: str
    platforms: list[Literal["linux", "windows", "macos"]]
    packages: list[str]
    base: str
    toolkit: Literal["debian", "nvidia"]
    cuda: str
    torch: str | None = None
    cudnn: str | None = None
    blas: Literal["mkl", "openblas"] | None = None
    ptx: bool = False
    gpus: list[str]
    cpus: list[str]
    pythons: list[str]

    def offers(self, variant: Variant) -> bool:
        return variant.gpu in self.gpus and variant.cpu in self.cpus and variant.python in self.pythons


class Matrix(Model):
    channels: dict[str, Channel]

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
