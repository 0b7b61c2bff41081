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
from farm.catalog import number, redist
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
    Part,
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
    plans = []
    for part in recipe_.parts:
        is_for_base = not part.bases or base in part.bases
        is_for_features = part.feature is None or part.feature in features
        if is_for_base and is_for_features:
            plan = PartPlan(
                into=part.into,
                source=_part_source(part, stack),
                strip=part.strip,
                members=part.members,
            )
            plans.append(plan)
    return plans


def _part_source(part: Part, stack: Stack) -> SourcePlan:
    if isinstance(part.source, NcclSource):
        return _nccl(stack)[0]
    return _fixed(part.source)


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
    changes = []
    for file in files:
        if file.startswith("patches/") or file == "prepare.sh":
            changes.append(f"job/{file}")
    if any(part.feature is None for part in recipe_.parts):
        changes.append("parts")  # named where there is nothing else
    if not changes:
        return
    raise UsageError(
        f"{folder(name)}: {min(changes)}: only builds in Linux images change the source so, "
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
    pins = []
    for index, wheel in enumerate(recipe_.build_requires):
        if wheel.bases and base not in wheel.bases:
            continue
        if not _serves(wheel, stack):
            line = where(folder(name) / "recipe.yaml", "build_requires", index, "file")
            raise UsageError(
                f"{line}: build_requires.{index}.file: {wheel.file} is not for Python "
                f"{stack.variant.python_version} on {stack.platform} {stack.variant.machine}"
            )
        pins.append(_pinned(wheel, wheel.index))
    return pins


def nccl_of_torch(torch: str, stack: Stack) -> list[SourcePlan]:
    """NCCL's wheel for a build that imports the farm's own torch of the recipe `torch`, whose
    libraries load it.
    """
    if not facts(stack.platform).in_images:
        return []
    if not any(isinstance(part.source, NcclSource) for part in recipe(torch).parts):
        return []
    return _nccl(stack)


def official_torch(listed: Sequence[BuildWheel], recipe_: Recipe, stack: Stack) -> list[SourcePlan]:
    """PyTorch's own wheel that a channel names, and what it imports; none where the build must not
    be against it.

    That is where no wheel of the release is for this Python and machine, or it has no code for a
    card of the variant.
    """
    if "torch" not in recipe_.needs:
        return []
    torch = None
    imports = []
    for wheel in listed:
        if not _serves(wheel, stack):
            continue
        if wheel.package != "torch":
            imports.append(wheel)
        elif torch is None and _knows_cards(wheel, stack):
            torch = wheel
            imports.append(wheel)
    if torch is None:
        return []
    return [_pinned(wheel, wheel.index) for wheel in imports]


def _knows_cards(wheel: BuildWheel, stack: Stack) -> bool:
    from packaging.utils import parse_wheel_filename  # noqa: PLC0415 slow to import

    version = parse_wheel_filename(wheel.file)[1]
    if version.public != stack.torch:
        return False
    if stack.cuda is None:
        return True
    place = f"{stack.platform}-{stack.variant.machine}"
    major = stack.cuda.split(".")[0]
    for official_wheel in official_wheels.wheels():
        if (official_wheel.torch, official_wheel.platform) != (stack.torch, place):
            continue
        # An extension refuses to be built with another major version of CUDA than its torch
        # (torch.utils.cpp_extension).
        if official_wheel.cuda.split(".")[0] != major:
            continue
        is_same = _is_labelled(official_wheel, version.local)
        if is_same and all(
            official_wheels.has_code(official_wheel, sm) for sm in stack.variant.sms
        ):
            return True
    return False


def _is_labelled(wheel: official_wheels.Wheel, label: str | None) -> bool:
    """True if a wheel's version has this local part; the Python index's wheels have none."""
    if label:
        return label == f"cu{wheel.cuda.replace('.', '')}"
    return wheel.index == "pypi"


def _serves(wheel: BuildWheel, stack: Stack) -> bool:
    # Slow to import.
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # noqa: PLC0415

    try:
        tags = parse_wheel_filename(wheel.file)[3]
    except InvalidWheelFilename:
        return False
    system = facts(stack.platform)
    for tag in tags:
        fits = tag.platform == "any" or system.fits(tag.platform, stack.variant.machine)
        if fits and serves(tag.interpreter, tag.abi, stack.variant.python):
            return True
    return False


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
    target = facts(stack.platform)
    plans = []
    for wheel in catalog.library_wheels(stack.cuda, stack.cudnn):
        # All of them or none: libraries of one CUDA belong together.
        if not all(target.fits(tag, stack.variant.machine) for tag in wheel.platform_tags):
            return []
        version = catalog.version_in(wheel.file)
        plans.append(LibraryWheelPlan(version=version, **wheel.model_dump()))
    return plans


def toolkit(recipe_: Recipe, stack: Stack) -> ToolkitPlan | None:
    """Where CUDA comes from; None for a build without it."""
    if stack.cuda is None:
        return None
    archives: list[redist.Archive] = []
    wheels: list[PinnedWheel] = []
    if stack.toolkit == "wheels":
        toolkit_wheels = catalog.wheel_toolkits()[stack.cuda]
        wheels = toolkit_wheels.pinned(recipe_.components, stack.cudnn, platform_of(stack))
    elif stack.toolkit == "nvidia":
        nvidias_name = redist_platform(stack)
        assert nvidias_name  # the rules refuse a machine that NVIDIA has no archives for
        cudnn = _archived_cudnn(stack, nvidias_name)
        archives = _archives(nvidias_name, stack.cuda, cudnn, tuple(recipe_.components))
        if cudnn is None:
            wheels = _cudnn_wheels(stack)
    else:
        wheels = _cudnn_wheels(stack)
    return ToolkitPlan(
        provider=cast("Literal['debian', 'nvidia', 'wheels']", stack.toolkit),
        cuda=stack.cuda,
        components=recipe_.components,
        archives=archives,
        wheels=[_pinned(wheel) for wheel in wheels],
    )


def _archived_cudnn(stack: Stack, nvidias_name: redist.Platform) -> str | None:
    """The cuDNN of a stack where NVIDIA's archive of it is pinned for its CUDA; else its wheel
    serves.
    """
    if not stack.cudnn:
        return None
    major = number(str(stack.cuda))[0]
    if redist.has_archive("cudnn", stack.cudnn, nvidias_name, "cudnn", cuda_major=major):
        return stack.cudnn
    return None


def _cudnn_wheels(stack: Stack) -> list[PinnedWheel]:
    """NVIDIA's wheel of the cuDNN of a stack, where the catalogue has one."""
    if not stack.cudnn:
        return []
    wheel = catalog.cudnn_wheel(stack.cudnn, str(stack.cuda))
    return [wheel] if wheel else []


@cache
def _archives(
    nvidias_name: redist.Platform, cuda: str, cudnn: str | None, components: tuple[str, ...]
) -> list[redist.Archive]:
    members = catalog.nvidia_provider().parts(cuda, nvidias_name)
    # A set: two components may need the same archive.
    names: set[str] = set()
    for component in components:
        names.update(members[component])
    release = catalog.toolkits()[cuda].release
    archives = redist.archives("cuda", release, nvidias_name, sorted(names))
    if cudnn:
        major = number(cuda)[0]
        archives += redist.archives("cudnn", cudnn, nvidias_name, ["cudnn"], cuda_major=major)
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
    pins = []
    for name in stack.standalone or ():
        wheel = standalone_wheel(stack, name)
        if wheel:
            pins.append(_pinned(wheel))
    return pins


def debian_packages(apt: list[str], stack: Stack) -> list[str]:
    """The recipe's packages of Debian: modules of its own Python are of no use to another one."""
    if stack.standalone is None:
        return apt
    packages = [name for name in apt if not name.startswith("python3-")]
    return [*packages, "ca-certificates", "python3"]
