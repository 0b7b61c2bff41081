"""What is true of GPUs, CPUs, CUDA, cuDNN and PyTorch: YAML files with a source per fact, and their models."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from farm.yamlfile import Model, load

FOLDER = Path(__file__).parent


class Architecture(Model):
    """A GPU architecture by SM. `arch_list` is its spelling in TORCH_CUDA_ARCH_LIST."""

    name: str
    arch_list: str = Field(pattern=r"^\d{1,2}\.\d$")
    example: str
    last_driver: int | None


class Architectures(Model):
    architectures: dict[str, Architecture]
    sets: dict[str, list[str]]
    source: str


class Toolkit(Model):
    """A CUDA toolkit: the release used for "major.minor", the SMs that its nvcc targets, the newest host gcc."""

    release: str
    sm: list[int]
    gcc_max: int
    driver_linux: str
    source: str


class Toolkits(Model):
    toolkits: dict[str, Toolkit]


class CpuLevel(Model):
    """A CPU level of variant names: the machine, the host compiler's flags, the run-time tiers to leave out."""

    machine: Literal["x86_64", "aarch64", "arm64"]
    gcc: list[str]
    without: list[str]
    example: str


class CpuLevels(Model):
    levels: dict[str, CpuLevel]
    source: str


class TorchRelease(Model):
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    cuda_min: str
    sm_min: int
    pythons: list[str]
    source: str


class TorchReleases(Model):
    releases: dict[str, TorchRelease]


class CudnnRelease(Model):
    version: str
    sm_min: int
    cuda_majors: list[int]
    source: str


class CudnnReleases(Model):
    releases: dict[str, CudnnRelease]


class Head(Model):
    """The pinned beginning of one version of a package: its length in bytes and its sha256."""

    version: str
    bytes: int = Field(gt=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class PackagePart(Model):
    """Members (fnmatch patterns) of one distribution package.

    `link` names the development symlink to make, `empty_archive` a static library to make without content.
    """

    package: str
    members: list[str]
    head: Head | None = None
    link: str | None = None
    empty_archive: str | None = None


class DebianRelease(Model):
    """A distribution release as base image and as toolkit provider."""

    image: str
    suite: str
    python: str
    gcc: int
    cuda: str
    env: dict[str, str]
    components: dict[str, list[PackagePart]]
    source: str


class DebianReleases(Model):
    releases: dict[str, DebianRelease]


class NvidiaProvider(Model):
    """NVIDIA's redist archives as toolkit provider; each component of a recipe names archives."""

    prefix: str
    env: dict[str, str]
    components: dict[str, list[str]]
    source: str


@cache
def architectures() -> Architectures:
    return load(FOLDER / "architectures.yaml", Architectures)


@cache
def toolkits() -> dict[str, Toolkit]:
    return load(FOLDER / "cuda.yaml", Toolkits).toolkits


@cache
def cpu_levels() -> dict[str, CpuLevel]:
    return load(FOLDER / "cpus.yaml", CpuLevels).levels


@cache
def torch_releases() -> dict[str, TorchRelease]:
    return load(FOLDER / "torch.yaml", TorchReleases).releases


@cache
def cudnn_releases() -> dict[str, CudnnRelease]:
    return load(FOLDER / "cudnn.yaml", CudnnReleases).releases


@cache
def debian_releases() -> dict[str, DebianRelease]:
    return load(FOLDER / "debian.yaml", DebianReleases).releases


@cache
def nvidia_provider() -> NvidiaProvider:
    return load(FOLDER / "nvidia.yaml", NvidiaProvider)
