"""The inputs of a build: the source tree, further code in it, the toolkit's archives. All by digest
or commit.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, cast

from farm import catalog
from farm.base.errors import UsageError
from farm.base.hashes import tree_digest
from farm.base.requirement import serves
from farm.base.yamlfile import where
from farm.catalog import redist
from farm.catalog.models import PinnedWheel, TorchRelease
from farm.plan.compat import official_wheels
from farm.plan.compat.rules.toolchain import platform_of, redist_platform, standalone_wheel
from farm.plan.compat.stack import Stack
from farm.plan.file import LibraryWheelPlan, PartPlan, Plan, PythonPlan, SourcePlan, ToolkitPlan
from farm.plan.recipe import (
    AnySource,
    BuildWheel,
    GitSource,
    NcclSource,
    PathSource,
    Recipe,
    WheelSource,
    folder,
    recipe,
)
from farm.platforms.facts import facts


def commit_of(source: GitSource, release: TorchRelease) -> str | None:
    """The recipe's commit, else that of the package that belongs to a PyTorch release; None: no one
    knows it.
    """
    if source.release is None:
        return source.commit
    return {
        "torch": release.commit,
        "vision": release.vision_commit,
        "audio": release.audio_commit,
    }[source.release]


def source_version(recipe_: Recipe, torch: str | None) -> str:
    """The version of the package's source: of a companion of PyTorch, the one that belongs to the
    release.
    """
    if not isinstance(recipe_.source, GitSource) or recipe_.source.release is None or torch is None:
        return recipe_.version
    release = catalog.torch_releases()[torch]
    return {"torch": torch, "vision": release.vision, "audio": release.audio}[
        recipe_.source.release
    ]


def source(name: str, recipe_: Recipe, torch: str | None) -> SourcePlan:
    """The source of the recipe `name`, for a PyTorch release where it depends on one."""
    origin = recipe_.source
    if isinstance(origin, GitSource):
        # The tag is for people and for the fetch; the commit is what is built.
        tag = origin.tag.replace("{version}", source_version(recipe_, torch))
        # The rules refuse a package that needs a release and has none.
        commit = origin.commit or commit_of(origin, catalog.torch_releases()[str(torch)])
        return SourcePlan(kind="git", url=origin.url, tag=tag, commit=commit)
    if isinstance(origin, PathSource):
        return SourcePlan(kind="path", digest=tree_digest(folder(name) / origin.path))
    return _fixed(origin)


def parts(
    recipe_: Recipe, stack: Stack, base: str | None, features: Collection[str]
) -> list[PartPlan]:
    """Third-party code that goes into the source tree in a build on the image `base` with these
    features.
    """
    return [
        PartPlan(
            into=part.into,
            source=_nccl(stack)[0] if isinstance(part.source, NcclSource) else _fixed(part.source),
            strip=part.strip,
            members=part.members,
        )
        for part in recipe_.parts
        if (not part.bases or base in part.bases)
        and (part.feature is None or part.feature in features)
    ]


def _nccl(stack: Stack) -> list[SourcePlan]:
    wheel = catalog.nccl_wheel(stack.cuda, stack.variant.machine)
    if wheel:
        return [_pinned(wheel)]
    return []  # none: the rules refuse a torch with NCCL


def check_changes(name: str, recipe_: Recipe, files: Iterable[str], system: str) -> None:
    """Raise a UsageError where a recipe changes its source on a platform whose builds do not: only
    images do.
    """
    if facts(system).in_images:
        return
    paths = [f"job/{file}" for file in files if file.startswith("patches/") or file == "prepare.sh"]
    if paths or any(part.feature is None for part in recipe_.parts):
        raise UsageError(
            f"{folder(name)}: {min(paths) if paths else 'parts'}: only builds in Linux images "
            "change the source so, "
            f"not those on {system}",
            hint="let `source` have the change, or build for --platform linux",
        )


def build_requires(name: str, recipe_: Recipe, stack: Stack, base: str | None) -> list[SourcePlan]:
    """The wheels that the build imports. A machine that is not an image has what `wheels` names.

    Raises UsageError: the recipe `name` has some, and says nothing of such a machine; or one is for
    another Python.
    """
    if not recipe_.build_requires:
        return []
    system = facts(stack.platform)
    if not system.in_images:
        if recipe_.wheels:
            return []
        raise UsageError(
            f"{folder(name) / 'recipe.yaml'}: build_requires: are installed in Linux images only, "
            f"not on {system.name}",
            hint="name what a Windows machine installs in `wheels`, or build for --platform linux",
        )
    required = [
        (n, wheel)
        for n, wheel in enumerate(recipe_.build_requires)
        if not wheel.bases or base in wheel.bases
    ]
    for index, wheel in required:
        if not _serves(wheel, stack):
            line = where(folder(name) / "recipe.yaml", "build_requires", index, "file")
            raise UsageError(
                f"{line}: build_requires.{index}.file: {wheel.file} is not for Python "
                f"{stack.variant.python_version} "
                f"on {stack.platform} {stack.variant.machine}"
            )
    return [_pinned(wheel, wheel.index) for _, wheel in required]


def nccl_of_torch(torch: str, stack: Stack) -> list[SourcePlan]:
    """NCCL's wheel for a build that imports the farm's own torch of the recipe `torch`, whose
    libraries load it.
    """
    builds_nccl = facts(stack.platform).in_images and any(
        isinstance(part.source, NcclSource) for part in recipe(torch).parts
    )
    return _nccl(stack) if builds_nccl else []


def official_torch(listed: Sequence[BuildWheel], recipe_: Recipe, stack: Stack) -> list[SourcePlan]:
    """PyTorch's own wheel that a channel names, and what it imports; none where the build must not
    be against it.

    That is where no wheel of the release is for this Python and machine, or it has no code for a
    card of the variant.
    """
    fitting = [wheel for wheel in listed if "torch" in recipe_.needs and _serves(wheel, stack)]
    torch = next(
        (wheel for wheel in fitting if wheel.package == "torch" and _knows_cards(wheel, stack)),
        None,
    )
    if torch is None:
        return []
    return [
        _pinned(wheel, wheel.index)
        for wheel in fitting
        if wheel is torch or wheel.package != "torch"
    ]


def _knows_cards(wheel: BuildWheel, stack: Stack) -> bool:
    from packaging.utils import parse_wheel_filename  # noqa: PLC0415 slow to import

    version = parse_wheel_filename(wheel.file)[1]
    if version.public != stack.torch:
        return False
    if stack.cuda is None:
        return True
    place = f"{stack.platform}-{stack.variant.machine}"
    wheel_sms = [
        official_wheel
        for official_wheel in official_wheels.wheels()
        if (official_wheel.torch, official_wheel.platform) == (stack.torch, place)
    ]
    label = version.local or ""
    pinned = [
        official_wheel
        for official_wheel in wheel_sms
        if (
            label == f"cu{official_wheel.cuda.replace('.', '')}"
            if label
            else official_wheel.index == "pypi"
        )
    ]
    # An extension refuses to be built with another major version of CUDA than its torch
    # (torch.utils.cpp_extension).
    return any(
        official_wheel.cuda.split(".")[0] == stack.cuda.split(".")[0]
        and all(official_wheels.has_code(official_wheel, sm) for sm in stack.variant.sms)
        for official_wheel in pinned
    )


def _serves(wheel: BuildWheel, stack: Stack) -> bool:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415 slow to import

    try:
        tags = parse_wheel_filename(wheel.file)[3]
    except InvalidWheelFilename:
        return False
    system = facts(stack.platform)
    return any(
        serves(tag.interpreter, tag.abi, stack.variant.python)
        and (tag.platform == "any" or system.fits(tag.platform, stack.variant.machine))
        for tag in tags
    )


def _pinned(wheel: PinnedWheel | BuildWheel, url: str | None = None) -> SourcePlan:
    return SourcePlan(
        kind="wheel", package=wheel.package, file=wheel.file, sha256=wheel.sha256, url=url
    )


def _fixed(origin: AnySource | WheelSource) -> SourcePlan:
    return SourcePlan.model_validate(origin.model_dump())


def library_wheels(recipe_: Recipe, stack: Stack, form: object) -> list[LibraryWheelPlan]:
    """The wheels to need instead of vendoring what they hold; by default wherever the catalogue
    knows them.
    """
    if recipe_.repair_on(stack.platform) != "tools" or not stack.cuda or form == "vendored":
        return []
    wheels = catalog.library_wheels(stack.cuda, stack.cudnn)
    machine = stack.variant.machine
    target = facts(stack.platform)
    if not all(target.fits(tag, machine) for wheel in wheels for tag in wheel.platform_tags):
        return []
    return [
        LibraryWheelPlan(version=wheel.file.split("-")[1], **wheel.model_dump()) for wheel in wheels
    ]


def toolkit(recipe_: Recipe, stack: Stack) -> ToolkitPlan | None:
    """Where CUDA comes from; None for a build without it."""
    if stack.cuda is None:
        return None
    archives: list[redist.Archive] = []
    if stack.cudnn:
        cudnn = catalog.cudnn_wheel(stack.cudnn, stack.cuda)
    else:
        cudnn = None
    wheels = [cudnn] if cudnn else []
    if stack.toolkit == "wheels":
        wheels = catalog.wheel_toolkits()[stack.cuda].pinned(
            recipe_.components, stack.cudnn, platform_of(stack)
        )
    elif stack.toolkit == "nvidia":
        nvidias_name = redist_platform(stack)
        major = int(stack.cuda.partition(".")[0])
        assert nvidias_name  # the rules refuse a machine that NVIDIA has no archives for
        # NVIDIA's archive of a cuDNN where one is pinned for this CUDA, else its wheel.
        archived = stack.cudnn and redist.has_archive(
            "cudnn", stack.cudnn, nvidias_name, "cudnn", cuda_major=major
        )
        archives = _archives(
            nvidias_name, stack.cuda, stack.cudnn if archived else None, tuple(recipe_.components)
        )
        wheels = [] if archived else wheels
    return ToolkitPlan(
        provider=cast("Literal['debian', 'nvidia', 'wheels']", stack.toolkit),
        cuda=stack.cuda,
        components=recipe_.components,
        archives=archives,
        wheels=[_pinned(wheel) for wheel in wheels],
    )


@cache
def _archives(
    nvidias_name: redist.Platform, cuda: str, cudnn: str | None, components: tuple[str, ...]
) -> list[redist.Archive]:
    members = catalog.nvidia_provider().parts(cuda, nvidias_name)
    # A set: two components may need the same archive.
    names = sorted({part for component in components for part in members[component]})
    archives = redist.archives("cuda", catalog.toolkits()[cuda].release, nvidias_name, names)
    if cudnn:
        archives += redist.archives(
            "cudnn", cudnn, nvidias_name, ["cudnn"], cuda_major=int(cuda.partition(".")[0])
        )
    return archives


def source_folder(plan: Plan) -> Path:
    """The folder of a `path` source. Raises UsageError: there is none, or it changed since the plan
    was made.
    """
    origin = recipe(plan.recipe).source
    if not isinstance(origin, PathSource):
        raise UsageError(
            f"the plan takes the source of {plan.package} from beside its recipe, where there is "
            "none",
            hint="create the plan again",
        )
    tree = folder(plan.recipe) / origin.path
    if tree_digest(tree) != plan.source.digest:
        raise UsageError(f"{tree}: changed since the plan was made", hint="create the plan again")
    return tree


FRONTEND = ("build", "packaging", "pyproject-hooks", "setuptools", "wheel")
BEFORE_311 = ("importlib-metadata", "tomli", "zipp")
"""Requirements of `build` below Python 3.11."""
FROM_APT = frozenset({"cmake", "ninja"})
"""Programs: those of Debian's packages are there whatever the Python."""


def standalone_packages(recipe: Recipe, python: str, base: str) -> tuple[str, ...]:
    """Packages that a build with a standalone Python imports, and programs that a base lacks."""
    packages = {*FRONTEND, *recipe.wheels} - FROM_APT
    if python in ("py39", "py310"):
        packages.update(BEFORE_311)
    if "cmake" in recipe.wheels and catalog.debian_releases()[base].old_cmake:
        packages.add("cmake")
    return tuple(sorted(packages))


def python_plan(stack: Stack) -> PythonPlan | None:
    """The standalone Python; None: the base image's own, or that of the machine that builds."""
    if stack.standalone is None:
        return None
    pythons = catalog.standalone_pythons()[stack.variant.python]
    return PythonPlan(version=pythons.version, **pythons.files[stack.variant.machine].model_dump())


def standalone_wheels(stack: Stack) -> list[SourcePlan]:
    """Wheels that are installed for a standalone Python before the build."""
    wheels = [standalone_wheel(stack, name) for name in stack.standalone or ()]
    return [_pinned(wheel) for wheel in wheels if wheel]


def debian_packages(apt: list[str], stack: Stack) -> list[str]:
    """The recipe's packages of Debian: modules of its own Python are of no use to another one."""
    if stack.standalone is None:
        return apt
    return [
        *(name for name in apt if not name.startswith("python3-")),
        "ca-certificates",
        "python3",
    ]
