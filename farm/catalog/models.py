"""The shapes of the catalogue's files. A record says where each of its facts comes from, and what
is doubtful.
"""

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, RootModel, model_validator

from farm.base.yamlfile import Model
from farm.platforms.shape import Machine, PlatformName

VERSION = r"^\d{1,4}(\.\d{1,6}){0,3}$"
Version = Annotated[str, Field(pattern=VERSION)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Toolset = Annotated[str, Field(pattern=r"^14\.\d\d$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")]
WheelFolder = Annotated[str, Field(pattern=r"^nvidia/[a-z0-9_]{1,40}$")]
MSC_VER = Field(ge=1900, le=1999)
Date = Annotated[date, Field(strict=False)]
"""Written as text: "2031-10-14"."""


class Facts(Model):
    """A record whose facts have sources. `unconfirmed` says of a fact why it is in doubt: it then
    only warns.
    """

    sources: dict[str, str]
    unconfirmed: dict[str, str] = {}

    def doubt(self, fact: str) -> str | None:
        """Why the fact is in doubt; None: it is not."""
        return self.unconfirmed.get(fact)


class Table(Model):
    """A file of records; its own `sources` hold for every record without one. tests/unit/catalog
    checks each source.
    """

    RECORDS: ClassVar[tuple[str, ...]]
    """The fields that hold records."""
    sources: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _hand_down_sources(cls, data: Any) -> Any:
        complete = dict(data)
        for field in cls.RECORDS:
            complete[field] = {}
            for key, record in data[field].items():
                common = {fact: text for fact, text in data["sources"].items() if fact in record}
                sources = common | record.get("sources", {})
                complete[field][key] = record | {"sources": sources}
        return complete


class Architecture(Facts):
    """A GPU architecture by SM. `arch_list` is its spelling in TORCH_CUDA_ARCH_LIST; the drivers
    are branches.
    """

    name: str
    arch_list: str = Field(pattern=r"^\d{1,2}\.\d$")
    example: str
    last_driver: int | None
    first_driver: int | None = None
    wanted_driver: int | None = None


class Suffix(Model):
    """Since when nvcc knows `a` (one SM alone) or `f` (a family) behind the number of an SM."""

    sm: int
    cuda: Version


class Jetson(Model):
    """From which CUDA and system on wheels for Arm servers run on Jetson boards; `elsewhere`: who
    serves older ones.
    """

    cuda: Version
    system: str
    elsewhere: str
    source: str


class Architectures(Table):
    RECORDS = ("architectures",)
    architectures: dict[str, Architecture]
    not_built: dict[str, str]
    not_built_source: str
    tegra: list[int]
    tegra_source: str
    jetson: Jetson
    armv8_0: list[int]
    armv8_0_source: str
    suffixes: dict[str, Suffix]
    suffixes_source: str
    arm_alone: list[int]
    arm_alone_source: str
    sets: dict[str, list[str]]


class Drivers(Model):
    """First drivers: of a toolkit, those with all of its features; of a major version, those that
    run any of it.
    """

    driver_linux: Version | None
    driver_windows: Version | None

    def driver(self, platform: str) -> str | None:
        # NVIDIA's table has columns for Linux and Windows only.
        version: str | None = getattr(self, f"driver_{platform}", self.driver_linux)
        return version


class Toolkit(Facts, Drivers):
    """A CUDA toolkit; `gcc_max` is a major version, `msvc_min` and `msvc_max` are values of
    _MSC_VER, both accepted.
    """

    release: Version
    sm: list[int]
    sm_unconfirmed: list[int] = []
    gcc_max: int
    msvc_min: int = MSC_VER
    msvc_max: int = MSC_VER


class Toolkits(Table):
    RECORDS = ("toolkits",)
    toolkits: dict[str, Toolkit]
    majors: dict[str, Drivers]
    source_majors: str


class PinnedWheel(Model):
    """A wheel in the Python index."""

    package: PackageName
    file: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,120}\.whl$")
    sha256: Sha256

    @property
    def platform_tags(self) -> list[str]:
        # One name may carry several tags: manylinux2014_x86_64.manylinux_2_17_x86_64.
        return self.file.removesuffix(".whl").rpartition("-")[2].split(".")


class LibraryWheel(PinnedWheel):
    """One of NVIDIA's wheels for Linux: `libraries` (patterns) are in `folder`; `requires`: further
    packages.
    """

    folder: str = Field(pattern=r"^nvidia/[a-z0-9_]{1,40}/lib$")
    libraries: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+*-]{0,80}$")]]
    requires: list[PackageName] = []


class NcclWheel(LibraryWheel):
    """A wheel of NCCL for builds with one of `cudas`; `sms`: the architectures that it has machine
    code for.
    """

    cudas: list[str]
    sms: list[int]


class LibraryWheels(Model):
    """`library_wheels.yaml`: by CUDA version."""

    sources: dict[str, str]
    cuda: dict[str, list[LibraryWheel]]
    nccl: list[NcclWheel]


class LibraryFiles(Model):
    """The part of a wheel of a toolkit's libraries that builds need; fields as in
    `LibraryWheel`.
    """

    files: list[str]
    requires: list[str] = []


class WheelLayout(Model):
    """How NVIDIA divides a toolkit into wheels: packages by component, those that a build may need
    at run time.

    A toolkit is below `folder` in each wheel, cuDNN below `cudnn_folder`; `cudnn` are its wheels by
    release.
    """

    folder: WheelFolder
    cudnn_folder: WheelFolder
    components: dict[str, list[str]]
    libraries: dict[str, LibraryFiles]
    cudnn: dict[str, dict[str, PinnedWheel]]


class WheelToolkit(WheelLayout):
    """One CUDA version in NVIDIA's wheels, with what its layout says: the pinned files by platform
    (`linux-x86_64`).
    """

    layout: str
    wheels: dict[str, list[PinnedWheel]]

    def pinned(
        self, components: Sequence[str], cudnn: str | None, platform: str
    ) -> list[PinnedWheel]:
        """The wheels of some components, and of a cuDNN where one is wanted, for a platform."""
        package_names: set[str] = set()
        for name in components:
            package_names.update(self.components[name])
        wheels = [wheel for wheel in self.wheels[platform] if wheel.package in package_names]
        if cudnn:
            wheels.append(self.cudnn[cudnn][platform])
        return wheels

    def folder_in(self, package: str) -> str:
        """Below which folder the wheel of a package holds what belongs to the toolkit."""
        if package.startswith("nvidia-cudnn-"):
            return self.cudnn_folder
        return self.folder

    def library_wheels(self) -> list[LibraryWheel]:
        """The wheels for Linux on x86-64 that a build may need instead of holding the libraries
        itself.
        """
        wheels = []
        for wheel in self.wheels["linux-x86_64"]:
            library_files = self.libraries.get(wheel.package)
            if library_files:
                library_wheel = LibraryWheel(
                    **wheel.model_dump(),
                    folder=f"{self.folder}/lib",
                    libraries=library_files.files,
                    requires=library_files.requires,
                )
                wheels.append(library_wheel)
        return wheels


class WheelToolkits(Model):
    """`toolkit_wheels.yaml`: by CUDA version."""

    sources: dict[str, str]
    layouts: dict[str, WheelLayout]
    toolkits: dict[str, WheelToolkit]

    @model_validator(mode="before")
    @classmethod
    def _hand_down_layouts(cls, data: Any) -> Any:
        toolkits = {}
        for cuda, toolkit in data["toolkits"].items():
            toolkits[cuda] = data["layouts"][toolkit["layout"]] | toolkit
        return data | {"toolkits": toolkits}


class CudnnRelease(Facts):
    """A cuDNN release: lowest and highest SM (None: not read), NVIDIA's wheels for Linux on x86-64
    by CUDA major.
    """

    version: Version
    sm_min: int
    sm_max: int | None
    cuda_majors: list[int]
    wheels: dict[int, PinnedWheel] = {}


class CudnnReleases(Table):
    RECORDS = ("releases",)
    releases: dict[str, CudnnRelease]


class CpuFeatures(Model):
    """`cpu_features.yaml`: what each CPU level needs, by machine and best first."""

    levels: dict[str, dict[str, list[str]]]
    source: str
    macos_min: str
    macos_source: str


class CpuLevel(Facts):
    """A CPU level of variant names: the machine, the host compilers' flags, the run-time tiers to
    leave out.

    `msvc` is None where MSVC does not build for the machine; `msvc_as` says what its wheel really
    is, where that is not the level. `gcc_min` is the first gcc that knows the flags; None: every
    gcc of the base images does. `torch_off` names features that need more; `torch_effect` what
    PyTorch makes of the level. `numpy_end` is the first numpy whose wheels need more.
    """

    machine: Machine
    gcc: list[str]
    msvc: list[str] | None
    msvc_as: str | None = None
    without: list[str]
    gcc_min: int | None = None
    torch_off: list[str] = []
    numpy_end: str | None = None
    torch_effect: str | None = None
    example: str


class Feature(Facts):
    """A feature of PyTorch (`features.yaml` says what each key means); None: no limit of that kind
    is known.
    """

    title: str
    switch: str | None = Field(default=None, pattern=r"^USE_[A-Z0-9_]{1,40}$")
    platforms: list[PlatformName]
    elsewhere: dict[PlatformName, str] = {}
    machines: list[Machine] | None = None
    gpu: bool = False
    sm_min: int | None = None
    cuda_min: Version | None = None
    cpu: str | None = None
    words: dict[str, str] = {}
    needs: list[str] = []
    untried: dict[PlatformName, str] = {}
    lack: str | None = None
    official: dict[PlatformName, str]
    conda_forge: str | None = None
    spack: str | None = None


class Features(Table):
    RECORDS = ("features",)
    features: dict[str, Feature]


class CpuLevels(Table):
    RECORDS = ("levels",)
    levels: dict[str, CpuLevel]


class Pythons(Model):
    """The Pythons that a release has wheels for, by platform."""

    linux: list[str]
    windows: list[str]
    macos: list[str]

    def on(self, platform: str) -> list[str]:
        tags: list[str] = getattr(self, platform)
        return tags


class Official(Model):
    """A CUDA and cuDNN that upstream built a release with; `platforms` None: on all."""

    cuda: str
    cudnn: str | None
    experimental: bool = False
    platforms: list[str] | None = None


class AlsoBuilt(Model):
    """A CUDA that someone compiles a PyTorch release with, though upstream publishes no such wheel.

    `platform` None: on any. `by` completes the sentence "it is compiled …".
    """

    cuda: Version
    platform: str | None = None
    by: str
    source: str


class TorchRelease(Facts):
    """A PyTorch release. `gcc_min` is a major version, `msvc_min` an _MSC_VER; `vision`, `audio`:
    its companions.
    """

    commit: Commit
    cuda_min: Version
    cuda_reported_min: Version | None = None
    cxx: Literal[14, 17, 20]
    sm_min: int
    sm_built: int
    pythons: Pythons
    numpy_major_max: int
    gcc_min: int | None
    cudnn_min: Version | None = None
    msvc_built: str | None
    msvc_min: int | None = None
    official: list[Official]
    also_built: list[AlsoBuilt] = []
    vision: Version
    audio: Version
    vision_commit: Commit | None = None
    audio_commit: Commit | None = None

    def official_cudas(self, platform: str) -> list[str]:
        """The CUDA versions that upstream published the release with on a platform."""
        versions = []
        for combination in self.official:
            if combination.platforms is None or platform in combination.platforms:
                versions.append(combination.cuda)
        return versions


class OfficialWheel(Model):
    """A wheel of PyTorch's own, by CUDA flavour: its SMs with machine code and with PTX.

    `torch` is a release, or a minor version for all of its releases. `cuda` None: a wheel for CPUs.
    With `sha256` the file was read; `pythons` None: not read. `source` is a key of the file's
    `sources`.
    """

    torch: Version
    platform: Literal["linux-x86_64", "linux-aarch64", "windows-x86_64"]
    index: Literal["pypi", "pytorch"]
    cuda: Version | None
    sm: list[int]
    ptx: list[int] = []
    pythons: list[str] | None = None
    file: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.+-]{1,120}\.whl$")
    sha256: Sha256 | None = None
    source: str
    unconfirmed: str | None = None


class SecurityFault(Model):
    """A fault of every release before `fixed` that lets somebody else run code."""

    id: str = Field(pattern=r"^CVE-\d{4}-\d{4,7}$")
    fixed: Version
    text: str
    source: str


class SecurityFaults(Model):
    """`security.yaml`."""

    faults: list[SecurityFault]


class Dropped(Model):
    """SMs that upstream left out of its wheels, by release and CUDA flavour."""

    since: Version
    cuda: list[str]
    sm_from: int
    sm_below: int
    text: str
    source: str


class DroppedCards(Model):
    dropped: list[Dropped]


class WheelGlibc(Model):
    """The oldest glibc of the wheels from a release and a CUDA on."""

    since: Version
    cuda: Version
    platforms: list[str]
    glibc: Version


class CardDoubt(Model):
    """Cards on which somebody reports an error with the wheels from a release on."""

    sm: list[int]
    since: Version
    text: str


class CpuPlatform(Model):
    """A platform with wheels for the CPU alone.

    `last` is the last release that has them, None where the newest has; `instead`: who builds newer
    ones.
    """

    platform: str
    index: Literal["pypi", "cpu"]
    last: Version | None
    source: str
    instead: str | None = None


class CpuGlibc(Model):
    """The oldest glibc of the wheels for the CPU from a release on."""

    since: Version
    platforms: list[str]
    glibc: Version


class OfficialWheels(Model):
    """`official.yaml`."""

    sources: dict[str, str]
    glibc_source: str
    glibc: list[WheelGlibc]
    old_cpus: dict[str, str]
    doubts: list[CardDoubt]
    cpu_wheels: list[CpuPlatform]
    cpu_glibc_source: str
    cpu_glibc: list[CpuGlibc]
    wheels: list[OfficialWheel]


class ArchListGrammar(Model):
    """TORCH_CUDA_ARCH_LIST by the first release that takes a form; `depends_on`: names whose
    meaning changes.
    """

    numbers: dict[str, str]
    names: dict[str, dict[str, list[str]]]
    depends_on: dict[str, str]
    source: str


class OnWindows(Model):
    """The effect of a word on a Windows build; the keys are explained in `words.yaml`."""

    origin: str = ""
    env: dict[str, str] = {}
    tools: list[str] = []
    wheels: list[str] = []
    openmp: str | None = None


class Word(Model):
    """The effect of an option's word; the keys are explained in `words.yaml`."""

    value: str = ""
    cmake: dict[str, str] = {}
    feature: str | None = None
    lacks: str = ""
    fact: str = ""
    windows: OnWindows = OnWindows()


class Words(RootModel[dict[str, dict[str, Word]]]):
    """`words.yaml`: by option and word."""


class TorchReleases(Table):
    RECORDS = ("releases",)
    releases: dict[str, TorchRelease]
    arch_list: ArchListGrammar


class VisualStudio(Facts):
    """A Visual Studio product and its toolsets, first and last (`14.20`, `14.29`)."""

    toolset: str
    first: Toolset
    last: Toolset
    channel: int


class CompilerFault(Model):
    """A fault of the toolsets from `first` to `last`."""

    first: Toolset
    last: Toolset
    text: str
    source: str


class Msvc(Table):
    RECORDS = ("products",)
    products: dict[str, VisualStudio]
    avx512_leak: CompilerFault


class PythonVersion(Facts):
    """A Python version; `numpy_min` and `numpy_max` are the first and last numpy with wheels for
    it.
    """

    version: Version
    end_of_life: Date
    numpy_min: Version
    numpy_max: Version | None


class PythonVersions(Table):
    RECORDS = ("versions",)
    versions: dict[str, PythonVersion]
    numpy_choices: list[str]


class PythonArchive(Model):
    """An archive of Python for one machine; all of it is below `python/`."""

    url: str = Field(pattern=r"^https://[!-~]{1,400}\.tar\.gz$")
    sha256: Sha256


class StandalonePython(Model):
    """A Python that needs no distribution, by machine."""

    version: Version
    files: dict[str, PythonArchive]


class StandalonePythons(Model):
    """`standalone_pythons.yaml`: Pythons by name, and wheels that builds with them import."""

    sources: dict[str, str]
    pythons: dict[str, StandalonePython]
    wheels: list[PinnedWheel]


class ServerCore(Facts):
    """A Windows Server Core base image tag, and the image of it that Build Tools install on."""

    image: str
    build: int
    mainstream_end: Date
    extended_end: Date


class WindowsHost(Facts):
    """A Windows host from a build on, with the tags that it runs under process isolation, best
    first.
    """

    name: str
    tags: list[str]


class Windows(Table):
    RECORDS = ("servercore", "hosts")
    servercore: dict[str, ServerCore]
    hosts: dict[str, WindowsHost]


class Head(Model):
    """The pinned beginning of one version of a package: its length in bytes and its sha256."""

    version: str
    bytes: int = Field(gt=0)
    sha256: Sha256


class PackagePart(Model):
    """Members (fnmatch patterns) of one distribution package.

    `link` names the development symlink to make, `empty_archive` a static library to make without
    content, `link_script` one that leads the linker to `link`, `stub` a library (by its soname) to
    make from the names in the header that is the only member: something to link with.
    """

    package: str
    members: list[str]
    head: Head | None = None
    link: str | None = None
    empty_archive: str | None = None
    link_script: str | None = None
    stub: str | None = None


class WheelPart(Model):
    """Files that the toolkit takes out of a wheel: folder below / by pattern of members; `link` as
    in `PackagePart`.
    """

    members: dict[str, str]
    link: str


class BorrowedGcc(Model):
    """A newer gcc than a base image's own: of which release it is taken, and beside which."""

    release: str
    version: int
    beside: int


class DebianRelease(Model):
    """A release of Debian or a descendant as base image and as toolkit provider.

    `python` is its only Python, `numpy_major` the major version of its numpy; `outdated`: the
    packages beside that are too old for today's projects, so that builds get a standalone one where
    they can. `glibc` is what its wheels need at most, `gccs` are its compilers. `sections` are what
    its first installation takes packages from. `cuda` is the version of its own toolkit, None where
    the farm takes none from it; that toolkit is for `cuda_machine`. `cudnn` is what it takes out of
    a release's wheel in `cudnn.yaml`. `toolkit_of` is a newer release whose packages of CUDA run
    here too: its `cuda`, `env`, `components` and `cudnn` are then this one's. `limits` are the
    newest symbol versions that the image's linker finds (`limit_symbols.py`), below those of its
    own libraries. `borrowed_gcc` is installed by `install_gcc.py` and is then the only one of
    `gccs`. `old_cmake`: builds with a standalone Python get a wheel of CMake, since its own is too
    old for sources that need that gcc.
    """

    image: str
    distribution: Literal["debian", "ubuntu"]
    suite: str
    keyring: str
    keyring_package: str
    sections: list[str]
    python: str
    outdated: bool = False
    numpy_major: int
    glibc: Version
    gccs: list[int] = Field(min_length=1)
    cuda: str | None
    cuda_machine: str = "x86_64"
    env: dict[str, str]
    components: dict[str, list[PackagePart]]
    cudnn: WheelPart | None = None
    toolkit_of: str | None = None
    limits: dict[str, str] = {}
    borrowed_gcc: BorrowedGcc | None = None
    old_cmake: bool = False
    source: str
    unconfirmed: str | None = None


class DebianReleases(Model):
    """`reach`: distributions and the glibc of each, oldest glibc first."""

    reach: dict[str, str]
    reach_source: str
    releases: dict[str, DebianRelease]


class NvidiaProvider(Model):
    """NVIDIA's redist archives as toolkit provider; each component of a recipe names archives.

    `since` holds, by the CUDA version from which on they hold, other names for some components;
    `added_below` what is added for one of NVIDIA's platforms below a version. `platforms` gives
    NVIDIA's name for a platform and machine (`linux-aarch64`). `cudnn` is what is taken out of a
    wheel where there is no archive of a release.
    """

    prefix: str
    env: dict[str, str]
    cudnn: WheelPart
    platforms: dict[str, Literal["linux-x86_64", "linux-sbsa", "windows-x86_64"]]
    components: dict[str, list[str]]
    since: dict[str, dict[str, list[str]]]
    added_below: dict[str, dict[str, dict[str, list[str]]]]
    source: str

    def parts(self, cuda: str, platform: str = "linux-x86_64") -> dict[str, list[str]]:
        """The archives of each component in the CUDA version `cuda`; `platform` is NVIDIA's
        name.
        """
        parts_by_name = dict(self.components)
        version = _numbers(cuda)
        # In the order of the file, oldest first: a newer name replaces an older one.
        for first, newer_parts in self.since.items():
            if version >= _numbers(first):
                parts_by_name |= newer_parts
        for end, added in self.added_below.get(platform, {}).items():
            if version < _numbers(end):
                for name, parts in added.items():
                    parts_by_name[name] = [*parts_by_name[name], *parts]
        return parts_by_name


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
