"""Recipes: what is built and how. One folder a package, `recipe.yaml` inside.

The farm's own are under `farm/recipes/`, a project's under `recipes/`; of two with one name the
project's is taken. A process works on one project, which `use_project` names, as `sys.path` names
the folders of modules.
"""

import contextlib
import shlex
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from farm import catalog
from farm.base.errors import UsageError
from farm.base.hashes import digest_of, tree_files
from farm.base.text import first_of, nearest
from farm.base.yamlfile import Model, load, pattern, where, word_of
from farm.platforms.shape import PlatformName
from farm.policy.rules import Rules

FOLDER = Path(__file__).parents[1] / "recipes"
_folders = [FOLDER]

_HASH = "64 digits of sha256 in lower case, as `python3 -m pip hash FILE` prints them"
_COMMIT = "the 40 characters of a commit, as `git rev-list -n 1 TAG` prints them in a clone"
_ADDRESS = "an address such as https://example.org/x.tar.gz (https, ssh or file)"
_PACKAGE = (
    "the name of one Debian package, without a version: `apt-cache policy NAME` on that "
    "release shows it"
)
_SDIST = "the name of a source archive of the index, such as x-1.2.tar.gz"
_RELEASE = "a release such as 1.2, 1.2rc1 or 1.2.post1 (the farm adds what follows `+`)"
Sha256 = Annotated[str, pattern(r"^[0-9a-f]{64}$", _HASH)]
Name = Annotated[
    str, pattern(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,60}$", "a name: letters, digits, '.', '_' and '-'")
]
FileName = Annotated[str, pattern(r"^[A-Za-z0-9][A-Za-z0-9.+!_~-]{0,120}$", "the name of a file")]
SdistName = Annotated[
    str, pattern(r"^[A-Za-z0-9][A-Za-z0-9.+!_~-]{0,112}\.(tar\.(gz|bz2|xz)|tgz|zip)$", _SDIST)
]
PackageName = Annotated[
    str, pattern(r"^[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}$", "the name of a package")
]
Release = Annotated[
    str, pattern(r"^(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?$", _RELEASE)
]
Address = Annotated[str, pattern(r"^(https|ssh|file)://[!-~]{1,400}$", _ADDRESS)]
AptName = Annotated[str, pattern(r"^[a-z0-9][a-z0-9.+-]{1,80}$", _PACKAGE)]
VariableName = Annotated[
    str,
    pattern(
        r"^[A-Z][A-Za-z0-9_]{0,60}$",
        "the name of a variable: a capital letter, then letters, digits and '_'",
    ),
]
Inside = Annotated[
    str,
    pattern(r"^\.?\w[\w.+-]*(/\.?\w[\w.+-]*)*/?$", "a folder inside, such as torch/lib, not `..`"),
]
Component = Annotated[str, word_of("component of CUDA", catalog.toolkit_components)]
FeatureName = Annotated[str, word_of("feature", lambda: list(catalog.features()))]
Module = Annotated[
    str, pattern(r"^[A-Za-z_][A-Za-z0-9_.]*$", "the name of a module, as `import` takes it")
]


class PathSource(Model):
    """The source is beside the recipe, or elsewhere in the project; `../..` is a project that is
    the package.
    """

    kind: Literal["path"]
    path: str


class GitSource(Model):
    """A tag of a git repository, and the `commit` that it must be: tags can be moved.

    PyTorch and its companions have `release` instead: commit and version come from the catalogue's
    PyTorch release.
    """

    kind: Literal["git"]
    url: Address
    tag: str
    commit: Annotated[str, pattern(r"^[0-9a-f]{40}$", _COMMIT)] | None = None
    release: Literal["torch", "vision", "audio"] | None = None

    @model_validator(mode="after")
    def _commit_is_known(self) -> Self:
        if (self.commit is None) == (self.release is None):
            text = f"a tag can be moved: add commit, {_COMMIT}"
            raise PydanticCustomError("commit", "{text}", {"text": text})
        return self


class ArchiveSource(Model):
    """A tar file at an address."""

    kind: Literal["archive"]
    url: Address
    sha256: Sha256


class DebianSource(Model):
    """A file of a distribution's source package, from the mirror that the settings or apt name.

    `debian-source`: its upstream tarball. `debian-package`: a binary package (.deb) built of it, of
    a part alone. `package` is the source package, which the mirror's folders are named after.
    """

    kind: Literal["debian-source", "debian-package"]
    package: PackageName
    file: FileName
    sha256: Sha256
    section: Literal["main", "contrib", "non-free"] = "main"


class SdistSource(Model):
    """A source distribution from the Python index that pip is set to."""

    kind: Literal["sdist"]
    package: PackageName
    file: SdistName
    sha256: Sha256


class NcclSource(Model):
    """NVIDIA's wheel of NCCL for the CUDA of the build, as `library_wheels.yaml` pins it."""

    kind: Literal["nccl"]


class WheelSource(Model):
    """A wheel from the Python index that pip is set to; of a part alone: headers come in wheels
    too.
    """

    kind: Literal["wheel"]
    package: PackageName
    file: FileName
    sha256: Sha256


class BuildWheel(Model):
    """A wheel that is installed for the build, such as its build backend; `bases` as in `Part`.

    `index`: the simple index that has it; None: the Python index, as pip is set to.
    """

    bases: list[str] = []
    package: PackageName
    file: Annotated[
        str, pattern(r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,150}\.whl$", "the name of a wheel (.whl)")
    ]
    sha256: Sha256
    index: Address | None = None


AnySource = Annotated[
    PathSource | GitSource | ArchiveSource | DebianSource | SdistSource, Field(discriminator="kind")
]
Repair = Literal["beside", "tools"]


class Part(Model):
    """Third-party code that goes into the folder `into` of the source tree.

    `members` are files and folders of its archive; none: all of it. `strip` leading folders are
    removed. `alternatives` says what else holds the same, for the day when the file is gone from
    where it was. `bases`: the base images in whose builds it is used; none: all. `feature`: it is
    used in builds that have that feature.
    """

    into: Inside
    bases: list[str] = []
    feature: FeatureName | None = None
    source: Annotated[
        ArchiveSource | DebianSource | SdistSource | WheelSource | NcclSource,
        Field(discriminator="kind"),
    ]
    strip: int = Field(default=1, ge=0, le=16)
    members: list[str] = []
    alternatives: str = ""


class VerifyRules(Rules):
    """Rules of verify for a package's wheels. A channel may replace what a recipe says, key by key.

    `numpy`: METADATA must bound numpy where the release cannot use the newest one; repair writes
    the bound.
    """

    numpy: bool = False


class SmokeTest(Model):
    """How an installed wheel is tested.

    Attributes:
        interface: `torch` for a package that multiplies matrices as torch does: the whole probe is
            run.
        imports: Modules that must be importable; without an interface, by default the package's
            own.
        script: A Python file beside the recipe that is run in the environment; an exit code other
            than 0 fails.
    """

    interface: Literal["torch"] | None = None
    imports: list[Module] = []
    script: (
        Annotated[str, pattern(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\.py$", "the name of a .py file")]
        | None
    ) = None


class Cost(Model):
    """Measured costs of a build for one GPU architecture. `download_gb`: toolchain and sources."""

    cpu_hours: float = Field(gt=0)
    without_gpu_hours: float | None = Field(
        default=None, gt=0, description="CPU hours of a build for the CPU alone"
    )
    download_gb: float | None = Field(default=None, gt=0)
    installed_gb: float | None = Field(default=None, gt=0)


class Recipe(Model):
    """How one package is built. In `env`, `{version}`, `{use_cuda}`, … are filled by the plan.

    `subdirectory` is the folder of the source that the project is in, where that is not its top, as
    pip calls it. `features` are those of PyTorch that the source can be built with
    (`features.yaml`): each is on where the rules have nothing against it, and `env_feature` has the
    further variables of those that are on. `without` are those that it cannot, with the reason.
    `torch_release` is the release of PyTorch that a source of one fixed version belongs to: no
    other can be chosen. `wheels` are the Python packages that the build imports, where Python is
    not the base image's: on Windows machines, and on Linux with a standalone Python; a recipe
    without them is built with the Pythons of base images alone. `gcc` is the newest host compiler
    that it takes; `cuda` stands for the newest that the CUDA of the base image takes, for builds
    without CUDA too. `apt` are Debian's packages of the build environment. `needs` are packages
    (folders of recipes, as channels list them) whose wheels of the farm for the same variant the
    build imports, `build_requires` wheels of the Python index that it imports: they are fetched
    beforehand, since the build itself has no network, and installed with pip (`python3-pip` in
    `apt`). `device_code`: false for a package without CUDA code of its own; its wheels need none
    for the variant's GPUs. `requires` are requirements that repair adds to METADATA where the build
    did not write them. `repair`: `beside` puts libraries into `vendor_into`, where the package's
    own look; `tools` has auditwheel or delvewheel put them into `<name>.libs`; by platform where
    that differs. `opens`: libraries that those of CUDA and of cuDNN open by name on Linux (for
    Windows: farm/wheel/windows.yaml). `tiers`: of a CPU tier, the exported names (patterns) that
    are there only if it was compiled: verify refuses them where the variant's CPU level leaves the
    tier out.

    The build unpacks `parts` into the source tree and then changes it, once a tree, in this order:
    patch files (`job/patches/*.patch`) are edits, `job/prepare.sh` does what is not an edit.
    """

    package: Name
    summary: str
    version: Release
    source: AnySource
    subdirectory: Inside | None = None
    torch_release: str | None = None
    parts: list[Part] = []
    platforms: list[PlatformName]
    components: list[Component]
    cudnn: bool = False
    device_code: bool = True
    gcc: int | Literal["cuda"] | None = None
    apt: list[AptName]
    wheels: list[str] = []
    env: dict[VariableName, str]
    env_cuda: dict[VariableName, str] = {}
    env_platform: dict[PlatformName, dict[VariableName, str]] = {}
    features: list[FeatureName] = []
    without: dict[FeatureName, str] = {}
    env_feature: dict[FeatureName, dict[VariableName, str]] = {}
    needs: list[Name] = []
    build_requires: list[BuildWheel] = []
    memory_per_job_gb: float = Field(gt=0)
    disk_gb: float = Field(
        gt=0, description="what a build needs on its runner: source, objects, wheel"
    )
    cost: Cost | None = None
    timeout_minutes: int = Field(gt=0)
    vendor_into: Inside
    repair: Repair | dict[PlatformName, Repair] = "beside"
    exclude: list[str] = []
    opens: dict[Literal["cuda", "cudnn"], list[str]] = {}
    tiers: dict[str, list[str]] = {}
    verify: VerifyRules = VerifyRules()
    requires: list[str] = []
    smoke: SmokeTest = SmokeTest()

    @property
    def is_for_gpus(self) -> bool:
        """False if the build for each GPU is the same code."""
        return self.device_code or bool(self.components)

    def cost_for(self, sms: Collection[int]) -> tuple[str, float] | None:
        """How near the CPU hours are, and the hours: they were measured with one GPU architecture
        or none.
        """
        if self.cost is None:
            return None
        if self.cost.without_gpu_hours and not sms:
            return "about", self.cost.without_gpu_hours
        extent = {0: "less than", 1: "about"}.get(len(sms), "more than")
        return extent, self.cost.cpu_hours

    @model_validator(mode="after")
    def _pip_is_there(self) -> Self:
        if self.build_requires and "python3-pip" not in self.apt:
            raise PydanticCustomError(
                "pip", "build_requires are installed with pip: add python3-pip to apt"
            )
        return self

    def repair_on(self, platform: PlatformName) -> Repair:
        if isinstance(self.repair, str):
            return self.repair
        return self.repair.get(platform, "beside")


def use_project(project: Path) -> None:
    """Take recipes from `project`/recipes as well."""
    recipes = project / "recipes"
    resolved = [recipes, FOLDER] if recipes.is_dir() else [FOLDER]
    # Recipes are cached by name: those of another project must go.
    if resolved != _folders:
        _folders[:] = resolved
        recipe.cache_clear()


def names() -> tuple[str, ...]:
    """The folders that hold a recipe, the farm's and the project's."""
    folders = set()
    for root in _folders:
        # Not by `glob`, which passes over a folder that may not be read.
        for path in root.iterdir():
            if _has_recipe(path):
                folders.add(path.name)
    return tuple(sorted(folders))


def _has_recipe(folder: Path) -> bool:
    """True if something is called `recipe.yaml` there; what is wrong with it is said on reading."""
    path = folder / "recipe.yaml"
    return path.exists() or path.is_symlink()


def near(name: str) -> list[str]:
    """The folders of recipes that may be meant: of the distribution that pip calls so, else those
    with like names.
    """
    # Slow to import, and only a wrong name comes here.
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    candidates = []
    for folder_name in names():
        with contextlib.suppress(UsageError):  # what is wrong with another recipe is another matter
            if canonicalize_name(recipe(folder_name).package) == canonicalize_name(name):
                candidates.append(folder_name)
    return candidates or nearest(name, names()) or nearest(name.lower(), names())


@cache
def recipe(package: str) -> Recipe:
    """The recipe in a folder, which may not be the package's own. Raises UsageError: there is
    none.
    """
    if package not in names():
        hint = f"there are {first_of(names(), 12)}; `farm recipe new` writes one"
        if meant := near(package):
            hint = f"nearest: {', '.join(meant)}"
        raise UsageError(f"unknown package {package!r}", hint=hint)
    path = folder(package) / "recipe.yaml"
    loaded = load(path, Recipe)
    if path.parent.parent != FOLDER:
        _check_files(path, loaded)
    return loaded


def source_fault(source: Path, project: Path) -> tuple[str, str] | None:
    """Why a folder cannot be a recipe's source, and what to do; both are resolved."""
    if not source.is_dir():
        return f"there is no folder {source}", "correct the path"
    if source != project and project not in source.parents:
        hint = "git init, farm init and farm recipe new . in it; for another repository: kind: git"
        return f"{source} is not below {project}", hint
    if source == project and not (project / ".git").exists():
        fault = (
            f"{source} is the project itself; without git nothing tells its source from what "
            "builds leave there"
        )
        return (
            fault,
            f"git init {shlex.quote(str(project))}, or move the source into a folder below it",
        )
    return None


def _check_files(path: Path, found: Recipe) -> None:
    """Refuse a recipe whose files are absent, before an hour of building says so."""
    project = path.parent.parent.parent.resolve()
    if isinstance(found.source, PathSource):
        source = (path.parent / found.source.path).resolve()
        fault = source_fault(source, project)
        if not fault and not (source / (found.subdirectory or "")).is_dir():
            fault = (
                f"{source} has no folder {found.subdirectory}",
                "correct subdirectory, or leave it out",
            )
        if fault:
            raise UsageError(
                f"{where(path, 'source', 'path')}: source.path: {fault[0]}", hint=fault[1]
            )
    if (script := found.smoke.script) and not (path.parent / script).is_file():
        raise UsageError(
            f"{where(path, 'smoke', 'script')}: smoke.script: there is no {path.parent / script}"
        )


def folder(package: str) -> Path:
    """The folder of a recipe: the project's own where it has one, else the farm's."""
    for root in _folders:
        if _has_recipe(root / package):
            return root / package
    return FOLDER / package


def is_replaced(package: str) -> bool:
    """True if the project has a recipe of its own in place of the farm's: channels were not written
    for that one.
    """
    return (FOLDER / package / "recipe.yaml").is_file() and folder(package) != FOLDER / package


def job_files(name: str) -> dict[str, bytes]:
    """A recipe's files for the build: `patches/…`, `prepare.sh`, by relative path."""
    root = folder(name) / "job"
    files = tree_files(root) if root.is_dir() else []
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def job_digest(files: Mapping[str, bytes]) -> str | None:
    """Sha256 over a recipe's job files; None where it has none."""
    return digest_of(files.items()) if files else None
