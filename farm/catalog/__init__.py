"""Facts about GPUs, CPUs, CUDA, cuDNN, compilers and PyTorch: YAML files with a source per fact.

The shapes are in `farm.catalog.models`; a file is read once.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from farm.base.yamlfile import Model, load
from farm.catalog.models import (
    Architectures,
    ArchListGrammar,
    CpuFeatures,
    CpuLevel,
    CpuLevels,
    CudnnRelease,
    CudnnReleases,
    DebianRelease,
    DebianReleases,
    Drivers,
    Dropped,
    DroppedCards,
    Feature,
    Features,
    LibraryWheel,
    LibraryWheels,
    Msvc,
    NcclWheel,
    NvidiaProvider,
    OfficialWheels,
    PinnedWheel,
    PythonVersions,
    SecurityFault,
    SecurityFaults,
    StandalonePython,
    StandalonePythons,
    Toolkit,
    Toolkits,
    TorchRelease,
    TorchReleases,
    WheelToolkit,
    WheelToolkits,
    Windows,
    Word,
    Words,
)
from farm.platforms.facts import WINDOWS

FOLDER = Path(__file__).parent
M = TypeVar("M", bound=Model)
_files: dict[str, Any] = {}


def _read(name: str, model: type[M]) -> M:
    if name not in _files:
        _files[name] = load(FOLDER / f"{name}.yaml", model)
    return cast("M", _files[name])


def architectures() -> Architectures:
    return _read("architectures", Architectures)


def toolkits() -> dict[str, Toolkit]:
    return _read("cuda", Toolkits).toolkits


def cuda_majors() -> dict[str, Drivers]:
    return _read("cuda", Toolkits).majors


def cuda_majors_source() -> str:
    return _read("cuda", Toolkits).source_majors


def lowest_driver(cuda: str, platform: str) -> str | None:
    """The first driver that runs what a CUDA makes; None: not known.

    It is that of the major version: it runs all of its minor ones (minor-version compatibility).
    """
    return cuda_majors()[str(number(cuda)[0])].driver(platform)


@cache
def full_driver(cuda: str, platform: str) -> tuple[str | None, str | None]:
    """The first driver with every feature of a toolkit, or the highest known of older ones and why
    that is in doubt.
    """
    exact = toolkits()[cuda].driver(platform)
    if exact is not None:
        return exact, None
    drivers = []
    for name, toolkit in toolkits().items():
        if number(name) <= number(cuda):
            # NVIDIA's table has had no column for Windows since 13.1: the branch of Linux is the
            # same.
            branch = (toolkit.driver_linux or "").split(".")[0]
            drivers += [toolkit.driver(platform), branch]
    drivers.append(lowest_driver(cuda, platform))
    best = max(filter(None, drivers), key=number, default=None)
    doubt = f"no driver of CUDA {cuda} is known on {platform}: the newest of older toolkits counts"
    return best, doubt


@cache
def number(version: str) -> tuple[int, ...]:
    """`(12, 8)` for `12.8`; numbers compare as versions do."""
    return tuple(map(int, version.split(".")))


def cpu_features() -> CpuFeatures:
    """What a CPU must have for each level, in the words of Linux."""
    return _read("cpu_features", CpuFeatures)


def cpu_levels() -> dict[str, CpuLevel]:
    return _read("cpus", CpuLevels).levels


def features() -> dict[str, Feature]:
    """Features that PyTorch may have or lack, by name."""
    return _read("features", Features).features


@cache
def switches() -> dict[str, str]:
    """The features that have a switch of PyTorch's CMake, by its name."""
    return {feature.switch: name for name, feature in features().items() if feature.switch}


def torch_releases() -> dict[str, TorchRelease]:
    return _read("torch", TorchReleases).releases


@cache
def words() -> dict[str, dict[str, Word]]:
    """The effect of each word of the options that have some (`words.yaml`)."""
    return load(FOLDER / "words.yaml", Words).root


def arch_list_grammar() -> ArchListGrammar:
    return _read("torch", TorchReleases).arch_list


def cudnn_releases() -> dict[str, CudnnRelease]:
    return _read("cudnn", CudnnReleases).releases


def cudnn_wheel(cudnn: str, cuda: str) -> PinnedWheel | None:
    """NVIDIA's wheel of a cuDNN release for a CUDA version; None where the catalogue names none."""
    release = cudnn_releases().get(cudnn)
    if release is None:
        return None
    return release.wheels.get(number(cuda)[0])


def official() -> OfficialWheels:
    return _read("official", OfficialWheels)


def dropped() -> list[Dropped]:
    """Cards that upstream left out of its wheels; a file of its own, since every plan reads it."""
    return _read("dropped", DroppedCards).dropped


def security_faults(torch: str) -> list[SecurityFault]:
    """Known faults of a release of PyTorch by which somebody else can run code."""
    faults = _read("security", SecurityFaults).faults
    return [fault for fault in faults if number(torch) < number(fault.fixed)]


def wheel_toolkits() -> dict[str, WheelToolkit]:
    """CUDA compilers in NVIDIA's wheels, by CUDA version."""
    return _read("toolkit_wheels", WheelToolkits).toolkits


def library_wheels(cuda: str, cudnn: str | None) -> list[LibraryWheel]:
    """NVIDIA's wheels with the libraries of a CUDA version and of cuDNN, both or none; empty: none
    are known.
    """
    toolkit = wheel_toolkits().get(cuda)
    # Where a toolkit can be made of wheels, those that a build links are those that it then needs.
    if toolkit:
        wheels = toolkit.library_wheels()
    else:
        wheels = list(_read("library_wheels", LibraryWheels).cuda.get(cuda, []))
    if not wheels:
        return []
    nccl = nccl_wheel(cuda, "x86_64")
    if nccl:
        wheels.append(LibraryWheel(**nccl.model_dump(exclude={"cudas", "sms"})))
    if not cudnn:
        return wheels
    pin = cudnn_wheel(cudnn, cuda)
    if pin is None and toolkit:
        pin = toolkit.cudnn.get(cudnn, {}).get("linux-x86_64")
    if pin is None:
        return []
    # The folder and names are the same in all of NVIDIA's cuDNN wheels.
    folder = "nvidia/cudnn/lib"
    names = ["libcudnn*.so.*"]
    return [*wheels, LibraryWheel(**pin.model_dump(), folder=folder, libraries=names)]


def nccl_wheel(cuda: str | None, machine: str) -> NcclWheel | None:
    """NVIDIA's wheel of NCCL for a build with this CUDA on Linux; None: the catalogue names
    none.
    """
    for wheel in _read("library_wheels", LibraryWheels).nccl:
        if cuda in wheel.cudas and wheel.platform_tags[0].endswith(f"_{machine}"):
            return wheel
    return None


def msvc() -> Msvc:
    return _read("msvc", Msvc)


def pythons() -> PythonVersions:
    return _read("python", PythonVersions)


def standalone_pythons() -> dict[str, StandalonePython]:
    """Pythons for builds whose base image has another one."""
    return _read("standalone_pythons", StandalonePythons).pythons


@cache
def standalone_wheel(
    package: str, python: str, machine: str, major_max: int | None = None
) -> PinnedWheel | None:
    """The newest pinned wheel, up to a major version, that a build with a standalone Python
    imports; None: none is.
    """
    # The file lists them in ascending order.
    for wheel in reversed(_read("standalone_pythons", StandalonePythons).wheels):
        if wheel.package != package or not _is_wheel_for(wheel.file, python, machine):
            continue
        if major_max is None or number(version_in(wheel.file))[0] <= major_max:
            return wheel
    return None


def version_in(file: str) -> str:
    """The version in the name of a wheel's file."""
    return file.split("-")[1]


def _is_wheel_for(file: str, python: str, machine: str) -> bool:
    """True if a pinned wheel is for a Python (`py313t`) and a machine, or for any."""
    interpreter = "cp" + python.removeprefix("py")
    # cp313-cp313t: the tag of the interpreter is without the `t`, that of the ABI has it.
    tags = f"-{interpreter.removesuffix('t')}-{interpreter}-"
    if not any(tag in file for tag in (tags, "-none-any.whl", "-py3-none-")):
        return False
    return file.endswith(("-any.whl", f"{machine}.whl"))


def windows() -> Windows:
    return _read(WINDOWS, Windows)


NEXT_BRANCH = {470: 495, 580: 590}
"""The driver branch after one that is the last for an architecture. On Windows the versions between
belong to the first: 472.50, which CUDA 11.4.4 brings, and 473.47 are of branch 470.
"""


def driver_branch(major: int) -> int:
    """470 for the major versions 470 to 494: the branch that a driver's version belongs to, where
    that matters.
    """
    for branch, end in NEXT_BRANCH.items():
        if branch <= major < end:
            return branch
    return major


@cache
def debian_releases() -> dict[str, DebianRelease]:
    """Releases of Debian and its descendants by the farm's name."""
    read_releases = _read("debian", DebianReleases).releases
    releases = dict(read_releases)
    for name, release in read_releases.items():
        if release.toolkit_of:
            lender = read_releases[release.toolkit_of]
            toolkit = {key: getattr(lender, key) for key in ("cuda", "env", "components", "cudnn")}
            releases[name] = release.model_copy(update=toolkit)
    return releases


def glibc_of_distributions() -> dict[str, str]:
    """The C library of each distribution that the farm's wheels are for."""
    return _read("debian", DebianReleases).reach


def reach(base: str) -> list[str]:
    """The distributions whose glibc is at least that of a base image: what is built there runs on
    them.
    """
    floor = number(debian_releases()[base].glibc)
    distributions = glibc_of_distributions()
    return [name for name, glibc in distributions.items() if number(glibc) >= floor]


@cache
def base_of(python: str) -> str:
    """The base image that has this Python (`py311`), else the first of the catalogue: a rule then
    says what it has.
    """
    for name, release in debian_releases().items():
        if release.python == python:
            return name
    return next(iter(debian_releases()))


def nvidia_provider() -> NvidiaProvider:
    return _read("nvidia", NvidiaProvider)


@cache
def toolkit_components() -> list[str]:
    """Every component of CUDA that one of the toolkit providers has."""
    names: set[str] = set()
    for release in debian_releases().values():
        names.update(release.components)
    for components in (nvidia_provider().components, *nvidia_provider().since.values()):
        names.update(components)
    for toolkit in wheel_toolkits().values():
        names.update(toolkit.components)
    return sorted(names)


def find(known: Mapping[str, object], version: str) -> str | None:
    """The key of `known` that `version` means; None: there is none.

    Itself, the last one that it begins (`2.9` for `2.9.1`), or the one that begins it: patch
    releases of CUDA and cuDNN count as one (`12.4.1`, `8.7.0.84`). Keys are in ascending order in
    every file.
    """
    if version in known:
        return version
    for key in reversed(list(known)):
        if key.startswith(version + "."):
            return key
    for key in known:
        if version.startswith(key + "."):
            return key
    return None


def known(versions: Mapping[str, object], version: str) -> str:
    """Where the catalogue begins or ends, whichever is nearer to a version that it does not
    have.
    """
    names = list(versions)
    versions_text = f"known: {', '.join(versions)}"
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){0,3}", version):
        return versions_text
    if number(version) < number(names[0]):
        return f"it begins at {names[0]}: older ones are in no table here; {versions_text}"
    if number(version) > number(names[-1]):
        return f"it ends at {names[-1]}; newer ones: tools/refresh-catalogue"
    return versions_text
