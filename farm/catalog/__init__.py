"""Facts about GPUs, CPUs, CUDA, cuDNN, compilers and PyTorch: YAML files with a source per fact.

The shapes are in `farm.catalog.models`; a file is read once.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from farm.base.yamlfile import Model, load
from farm.catalog import models
from farm.platforms.facts import WINDOWS

FOLDER = Path(__file__).parent
M = TypeVar("M", bound=Model)
_files: dict[str, Any] = {}


def _read(name: str, model: type[M]) -> M:
    if name not in _files:
        _files[name] = load(FOLDER / f"{name}.yaml", model)
    return cast("M", _files[name])


def architectures() -> models.Architectures:
    return _read("architectures", models.Architectures)


def toolkits() -> dict[str, models.Toolkit]:
    return _read("cuda", models.Toolkits).toolkits


def cuda_majors() -> dict[str, models.Drivers]:
    return _read("cuda", models.Toolkits).majors


def cuda_majors_source() -> str:
    return _read("cuda", models.Toolkits).source_majors


@cache
def full_driver(cuda: str, platform: str) -> tuple[str | None, str | None]:
    """The first driver with every feature of a toolkit, or the highest known of older ones and why
    that is in doubt.
    """
    releases = toolkits()
    if (exact := releases[cuda].driver(platform)) is not None:
        return exact, None
    older = [name for name in releases if number(name) <= number(cuda)]
    # NVIDIA's table has had no column for Windows since 13.1: the branch of Linux is the same.
    branches = [text.split(".")[0] for name in older if (text := releases[name].driver_linux)]
    older_drivers = [text for name in older if (text := releases[name].driver(platform))]
    floor = cuda_majors()[cuda.split(".", maxsplit=1)[0]].driver(platform)
    best = max((*older_drivers, *branches, *filter(None, [floor])), key=number, default=None)
    return (
        best,
        f"no driver of CUDA {cuda} is known on {platform}: the newest of older toolkits counts",
    )


@cache
def number(version: str) -> tuple[int, ...]:
    """`(12, 8)` for `12.8`; numbers compare as versions do."""
    return tuple(map(int, version.split(".")))


def cpu_features() -> models.CpuFeatures:
    """What a CPU must have for each level, in the words of Linux."""
    return _read("cpu_features", models.CpuFeatures)


def cpu_levels() -> dict[str, models.CpuLevel]:
    return _read("cpus", models.CpuLevels).levels


def features() -> dict[str, models.Feature]:
    """Features that PyTorch may have or lack, by name."""
    return _read("features", models.Features).features


@cache
def switches() -> dict[str, str]:
    """The features that have a switch of PyTorch's CMake, by its name."""
    return {feature.switch: name for name, feature in features().items() if feature.switch}


def torch_releases() -> dict[str, models.TorchRelease]:
    return _read("torch", models.TorchReleases).releases


@cache
def words() -> dict[str, dict[str, models.Word]]:
    """The effect of each word of the options that have some (`words.yaml`)."""
    return load(FOLDER / "words.yaml", models.Words).root


def arch_list_grammar() -> models.ArchListGrammar:
    return _read("torch", models.TorchReleases).arch_list


def cudnn_releases() -> dict[str, models.CudnnRelease]:
    return _read("cudnn", models.CudnnReleases).releases


def cudnn_wheel(cudnn: str, cuda: str) -> models.PinnedWheel | None:
    """NVIDIA's wheel of a cuDNN release for a CUDA version; None where the catalogue names none."""
    release = cudnn_releases().get(cudnn)
    return release.wheels.get(int(cuda.partition(".")[0])) if release else None


def official() -> models.OfficialWheels:
    return _read("official", models.OfficialWheels)


def dropped() -> list[models.Dropped]:
    """Cards that upstream left out of its wheels; a file of its own, since every plan reads it."""
    return _read("dropped", models.DroppedCards).dropped


def security_faults(torch: str) -> list[models.SecurityFault]:
    """Known faults of a release of PyTorch by which somebody else can run code."""
    faults = _read("security", models.SecurityFaults).faults
    return [fault for fault in faults if number(torch) < number(fault.fixed)]


def wheel_toolkits() -> dict[str, models.WheelToolkit]:
    """CUDA compilers in NVIDIA's wheels, by CUDA version."""
    return _read("toolkit_wheels", models.WheelToolkits).toolkits


def library_wheels(cuda: str, cudnn: str | None) -> list[models.LibraryWheel]:
    """NVIDIA's wheels with the libraries of a CUDA version and of cuDNN, both or none; empty: none
    are known.
    """
    toolkit = wheel_toolkits().get(cuda)
    # Where a toolkit can be made of wheels, those that a build links are those that it then needs.
    pinned = _read("library_wheels", models.LibraryWheels)
    wheels = toolkit.library_wheels() if toolkit else pinned.cuda.get(cuda, [])
    cudnn_pin = cudnn_wheel(cudnn, cuda) if cudnn else None
    if cudnn and cudnn_pin is None and toolkit:
        cudnn_pin = toolkit.cudnn.get(cudnn, {}).get("linux-x86_64")
    if not wheels or (cudnn and cudnn_pin is None):
        return []
    if nccl := nccl_wheel(cuda, "x86_64"):
        wheels = [*wheels, models.LibraryWheel(**nccl.model_dump(exclude={"cudas", "sms"}))]
    if cudnn_pin is None:
        return wheels
    # The folder and names are the same in all of NVIDIA's cuDNN wheels.
    folder = "nvidia/cudnn/lib"
    names = ["libcudnn*.so.*"]
    return [*wheels, models.LibraryWheel(**cudnn_pin.model_dump(), folder=folder, libraries=names)]


def nccl_wheel(cuda: str | None, machine: str) -> models.NcclWheel | None:
    """NVIDIA's wheel of NCCL for a build with this CUDA on Linux; None: the catalogue names
    none.
    """
    wheels = (
        wheel for wheel in _read("library_wheels", models.LibraryWheels).nccl if cuda in wheel.cudas
    )
    return next((wheel for wheel in wheels if wheel.platform_tags[0].endswith(f"_{machine}")), None)


def msvc() -> models.Msvc:
    return _read("msvc", models.Msvc)


def pythons() -> models.PythonVersions:
    return _read("python", models.PythonVersions)


def standalone_pythons() -> dict[str, models.StandalonePython]:
    """Pythons for builds whose base image has another one."""
    return _read("standalone_pythons", models.StandalonePythons).pythons


@cache
def standalone_wheel(
    package: str, python: str, machine: str, major_max: int | None = None
) -> models.PinnedWheel | None:
    """The newest pinned wheel, up to a major version, that a build with a standalone Python
    imports; None: none is.
    """
    interpreter = "cp" + python.removeprefix("py")
    # cp313-cp313t: the tag of the interpreter is without the `t`, that of the ABI has it.
    name_parts = (f"-{interpreter.removesuffix('t')}-{interpreter}-", "-none-any.whl", "-py3-none-")
    candidates = [
        wheel
        for wheel in _read("standalone_pythons", models.StandalonePythons).wheels
        if wheel.package == package
        and any(word in wheel.file for word in name_parts)
        and (wheel.file.endswith(("-any.whl", f"{machine}.whl")))
        and (major_max is None or int(wheel.file.split("-")[1].split(".")[0]) <= major_max)
    ]
    # The file lists them in ascending order.
    if candidates:
        return candidates[-1]
    return None


def windows() -> models.Windows:
    return _read(WINDOWS, models.Windows)


NEXT_BRANCH = {470: 495, 580: 590}
"""The driver branch after one that is the last for an architecture. On Windows the versions between
belong to the first: 472.50, which CUDA 11.4.4 brings, and 473.47 are of branch 470.
"""


def driver_branch(major: int) -> int:
    """470 for the major versions 470 to 494: the branch that a driver's version belongs to, where
    that matters.
    """
    return next((branch for branch, end in NEXT_BRANCH.items() if branch <= major < end), major)


@cache
def debian_releases() -> dict[str, models.DebianRelease]:
    """Releases of Debian and its descendants by the farm's name."""
    read_releases = _read("debian", models.DebianReleases).releases
    releases = dict(read_releases)
    for name, release in read_releases.items():
        if release.toolkit_of:
            lender = read_releases[release.toolkit_of]
            toolkit = {key: getattr(lender, key) for key in ("cuda", "env", "components", "cudnn")}
            releases[name] = release.model_copy(update=toolkit)
    return releases


def glibc_of_distributions() -> dict[str, str]:
    """The C library of each distribution that the farm's wheels are for."""
    return _read("debian", models.DebianReleases).reach


def reach(base: str) -> list[str]:
    """The distributions whose glibc is at least that of a base image: what is built there runs on
    them.
    """
    floor = number(debian_releases()[base].glibc)
    return [
        name
        for name, glibc in _read("debian", models.DebianReleases).reach.items()
        if number(glibc) >= floor
    ]


@cache
def base_of(python: str) -> str:
    """The base image that has this Python (`py311`), else the first of the catalogue: a rule then
    says what it has.
    """
    all_releases = debian_releases()
    return next(
        (name for name, release in all_releases.items() if release.python == python),
        next(iter(all_releases)),
    )


def nvidia_provider() -> models.NvidiaProvider:
    return _read("nvidia", models.NvidiaProvider)


@cache
def toolkit_components() -> list[str]:
    """Every component of CUDA that one of the toolkit providers has."""
    providers: list[Iterable[str]] = [release.components for release in debian_releases().values()]
    providers += [nvidia_provider().components, *nvidia_provider().since.values()]
    providers += [toolkit.components for toolkit in wheel_toolkits().values()]
    return sorted(set().union(*providers))


def find(known: Mapping[str, object], version: str) -> str | None:
    """The key of `known` that `version` means; None: there is none.

    Itself, the last one that it begins (`2.9` for `2.9.1`), or the one that begins it: patch
    releases of CUDA and cuDNN count as one (`12.4.1`, `8.7.0.84`). Keys are in ascending order in
    every file.
    """
    if version in known:
        return version
    longer = (key for key in reversed(list(known)) if key.startswith(version + "."))
    return next(longer, None) or next((key for key in known if version.startswith(key + ".")), None)


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
    newer = number(version) > number(names[-1])
    if newer:
        return f"it ends at {names[-1]}; newer ones: tools/refresh-catalogue"
    return versions_text
