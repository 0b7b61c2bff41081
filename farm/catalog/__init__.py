"""Facts about GPUs, CPUs, CUDA, cuDNN, compilers and PyTorch: YAML files with a source per fact.

The shapes are in `farm.catalog.models`; the functions here load each file once.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from farm.base.yamlfile import load
from farm.catalog.models import (
    Architectures,
    ArchListGrammar,
    Blas,
    CpuLevel,
    CpuLevels,
    CudaMajor,
    CudnnRelease,
    CudnnReleases,
    DebianRelease,
    DebianReleases,
    Dropped,
    DroppedCards,
    Feature,
    Features,
    LibraryWheel,
    LibraryWheels,
    Msvc,
    NcclWheel,
    NvidiaProvider,
    OfficialWheel,
    OfficialWheels,
    PinnedWheel,
    PythonVersions,
    StandalonePython,
    StandalonePythons,
    Toolkit,
    Toolkits,
    TorchRelease,
    TorchReleases,
    WheelToolkit,
    WheelToolkits,
    Windows,
)

FOLDER = Path(__file__).parent

__all__ = ["FOLDER", "DebianRelease", "find"]


@cache
def architectures() -> Architectures:
    return load(FOLDER / "architectures.yaml", Architectures)


@cache
def _cuda() -> Toolkits:
    return load(FOLDER / "cuda.yaml", Toolkits)


def toolkits() -> dict[str, Toolkit]:
    return _cuda().toolkits


def cuda_majors() -> dict[str, CudaMajor]:
    return _cuda().majors


def cuda_majors_source() -> str:
    return _cuda().source_majors


@cache
def full_driver(cuda: str, platform: str) -> tuple[str | None, str | None]:
    """The first driver with every feature of a toolkit, and why it is in doubt.

    Where none is known, the highest that is known of this and older toolkits: a newer one may need more, never less.
    """
    known = toolkits()
    if (own := known[cuda].driver(platform)) is not None:
        return own, None
    older = [name for name in known if _numbers(name) <= _numbers(cuda)]
    # NVIDIA's table has had no column for Windows since 13.1: the branch of Linux is the same.
    branches = [text.split(".")[0] for name in older if (text := known[name].driver_linux)]
    found = [text for name in older if (text := known[name].driver(platform))]
    floor = cuda_majors()[cuda.split(".", maxsplit=1)[0]].driver(platform)
    best = max((*found, *branches, *filter(None, [floor])), key=_numbers, default=None)
    return best, f"no driver of CUDA {cuda} is known on {platform}: the newest of older toolkits counts"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


@cache
def _cpus() -> CpuLevels:
    return load(FOLDER / "cpus.yaml", CpuLevels)


def cpu_levels() -> dict[str, CpuLevel]:
    return _cpus().levels


@cache
def features() -> dict[str, Feature]:
    """What PyTorch may have or lack, by name."""
    return load(FOLDER / "features.yaml", Features).features


@cache
def switches() -> dict[str, str]:
    """The features that have a switch of PyTorch's CMake, by its name."""
    return {feature.switch: name for name, feature in features().items() if feature.switch}


@cache
def _torch() -> TorchReleases:
    return load(FOLDER / "torch.yaml", TorchReleases)


def torch_releases() -> dict[str, TorchRelease]:
    return _torch().releases


def blas(name: str) -> Blas:
    """How PyTorch is told about a BLAS: `openblas`, or that of a platform."""
    return _torch().blas.get(name, Blas())


def arch_list_grammar() -> ArchListGrammar:
    return _torch().arch_list


@cache
def cudnn_releases() -> dict[str, CudnnRelease]:
    return load(FOLDER / "cudnn.yaml", CudnnReleases).releases


def cudnn_wheel(cudnn: str, cuda: str) -> PinnedWheel | None:
    """NVIDIA's wheel of a cuDNN release for a CUDA version; None where the catalogue names none."""
    release = cudnn_releases().get(cudnn)
    return release.wheels.get(int(cuda.partition(".")[0])) if release else None


@cache
def official() -> OfficialWheels:
    return load(FOLDER / "official.yaml", OfficialWheels)


@cache
def dropped() -> list[Dropped]:
    """Cards that upstream left out of its wheels; a file of its own, since every plan reads it."""
    return load(FOLDER / "dropped.yaml", DroppedCards).dropped


def official_wheels() -> list[OfficialWheel]:
    return official().wheels


@cache
def wheel_toolkits() -> dict[str, WheelToolkit]:
    """CUDA compilers in NVIDIA's wheels, by CUDA version."""
    return load(FOLDER / "toolkit_wheels.yaml", WheelToolkits).toolkits


@cache
def _library_wheels() -> LibraryWheels:
    return load(FOLDER / "library_wheels.yaml", LibraryWheels)


def library_wheels(cuda: str, cudnn: str | None) -> list[LibraryWheel]:
    """NVIDIA's wheels with the libraries of a CUDA version and of cuDNN; empty where the catalogue names none.

    Of cuDNN alone there is no use: both or none.
    """
    toolkit = wheel_toolkits().get(cuda)
    # Where a toolkit can be made of wheels, those that a build links are those that it then needs.
    found = toolkit.library_wheels() if toolkit else _library_wheels().cuda.get(cuda, [])
    own = cudnn_wheel(cudnn, cuda) if cudnn else None
    if cudnn and own is None and toolkit:
        own = toolkit.cudnn.get(cudnn, {}).get("linux-x86_64")
    if not found or (cudnn and own is None):
        return []
    nccl = nccl_wheel(cuda, "x86_64")
    if nccl is not None:
        found = [*found, LibraryWheel(**nccl.model_dump(exclude={"cudas", "sms"}))]
    if own is None:
        return found
    # The folder and names are the same in all of NVIDIA's cuDNN wheels.
    return [*found, LibraryWheel(**own.model_dump(), folder="nvidia/cudnn/lib", libraries=["libcudnn*.so.*"])]


def nccl_wheel(cuda: str | None, machine: str) -> NcclWheel | None:
    """NVIDIA's wheel of NCCL for a build with this CUDA on Linux; None: the catalogue names none."""
    wheels = (wheel for wheel in _library_wheels().nccl if cuda in wheel.cudas)
    return next((wheel for wheel in wheels if wheel.platform_tags[0].endswith(f"_{machine}")), None)


@cache
def msvc() -> Msvc:
    return load(FOLDER / "msvc.yaml", Msvc)


@cache
def pythons() -> PythonVersions:
    return load(FOLDER / "python.yaml", PythonVersions)


@cache
def _standalone() -> StandalonePythons:
    return load(FOLDER / "standalone_pythons.yaml", StandalonePythons)


def standalone_pythons() -> dict[str, StandalonePython]:
    """Pythons for builds whose base image has another one."""
    return _standalone().pythons


@cache
def standalone_wheel(package: str, python: str, machine: str, major_max: int | None = None) -> PinnedWheel | None:
    """The newest pinned wheel that a build with a standalone Python imports; None: none is pinned.

    `major_max` is the highest major version that it may have.
    """
    interpreter = "cp" + python.removeprefix("py")
    # cp313-cp313t: the tag of the interpreter is without the `t`, that of the ABI has it.
    own = (f"-{interpreter.removesuffix('t')}-{interpreter}-", "-none-any.whl")
    found = [
        wheel
        for wheel in _standalone().wheels
        if wheel.package == package
        and any(word in wheel.file for word in own)
        and (wheel.file.endswith(("-any.whl", f"{machine}.whl")))
        and (major_max is None or int(wheel.file.split("-")[1].split(".")[0]) <= major_max)
    ]
    # The file lists them in ascending order.
    return found[-1] if found else None


@cache
def windows() -> Windows:
    return load(FOLDER / "windows.yaml", Windows)


NEXT_BRANCH = {470: 495, 580: 590}
"""The driver branch after one that is the last for an architecture. On Windows the versions between belong to the
first: 472.50, which CUDA 11.4.4 brings, and 473.47 are of branch 470."""


def driver_branch(major: int) -> int:
    """470 for the major versions 470 to 494: the branch that a driver's version belongs to, where that matters."""
    return next((branch for branch, end in NEXT_BRANCH.items() if branch <= major < end), major)


@cache
def _debian() -> DebianReleases:
    return load(FOLDER / "debian.yaml", DebianReleases)


def debian_releases() -> dict[str, DebianRelease]:
    return _debian().releases


def reach(base: str) -> list[str]:
    """The distributions whose glibc is at least that of a base image: what is built there runs on them."""
    floor = [int(part) for part in debian_releases()[base].glibc.split(".")]
    return [name for name, glibc in _debian().reach.items() if [int(part) for part in glibc.split(".")] >= floor]


@cache
def base_of(python: str) -> str:
    """The base image that has this Python (`py311`), else the first of the catalogue: a rule then says what it has."""
    known = debian_releases()
    return next((name for name, release in known.items() if release.python == python), next(iter(known)))


@cache
def nvidia_provider() -> NvidiaProvider:
    return load(FOLDER / "nvidia.yaml", NvidiaProvider)


@cache
def toolkit_components() -> list[str]:
    """Every component of CUDA that one of the toolkit providers has."""
    providers: list[Iterable[str]] = [release.components for release in debian_releases().values()]
    providers += [nvidia_provider().components, *nvidia_provider().since.values()]
    providers += [toolkit.components for toolkit in wheel_toolkits().values()]
    return sorted(set().union(*providers))


def find(known: Mapping[str, object], version: str) -> str | None:
    """The key of `known` that `version` means; None: there is none.

    Itself, the last one that it begins (`2.9` for `2.9.1`), or the one that begins it: patch releases of CUDA and cuDNN
    count as one (`12.4.1`, `8.7.0.84`). Keys are in ascending order in every file.
    """
    if version in known:
        return version
    longer = (key for key in reversed(list(known)) if key.startswith(version + "."))
    return next(longer, None) or next((key for key in known if version.startswith(key + ".")), None)


def known(versions: Mapping[str, object], asked: str) -> str:
    """Where the catalogue begins or ends, whichever is nearer to a version that it does not have."""
    names, listed = list(versions), f"known: {', '.join(versions)}"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", asked):
        return listed
    number = [[int(part) for part in version.split(".")] for version in (asked, names[0], names[-1])]
    if number[0] < number[1]:
        return f"it begins at {names[0]}: older ones are in no table here; {listed}"
    return f"it ends at {names[-1]}; newer ones: tools/refresh-catalogue" if number[0] > number[2] else listed
