"""Repair of what a build left: the options that its plan gives, and whether it built what it
promised.
"""

import shutil
from pathlib import Path

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import Version

from farm.base.errors import (
    BuildFailedError,
)
from farm.plan.build_variables import feature_text
from farm.plan.file import Plan
from farm.plan.recipe import folder
from farm.run.build_job import the_wheel
from farm.wheel.library import Progress
from farm.wheel.library_wheels import LibraryWheel
from farm.wheel.metadata import parse_wheel_name
from farm.wheel.repair import RepairOptions, RepairResult, repair


def repair_built(
    plan: Plan, built: Path, dest: Path, progress: Progress | None = None
) -> RepairResult:
    """Repair what a build left in `built` (`wheel/` and `lib/`) into the folder `dest`, which is
    made anew.
    """
    wheel = the_wheel(built / "wheel")
    lib_dirs = []
    libraries = built / "lib"
    if libraries.is_dir():  # engines that hand over files alone leave an empty folder out
        lib_dirs.append(libraries)
    options = repair_options(plan, wheel, lib_dirs)
    shutil.rmtree(dest, ignore_errors=True)
    dest.mkdir()
    return repair(wheel, dest, options, progress)


def repair_options(plan: Plan, wheel: Path, lib_dirs: list[Path]) -> RepairOptions:
    """Options of the repair of a wheel, as the plan has them; BuildFailedError: it is of another
    package or release.
    """
    _check_promise(plan, wheel)
    return RepairOptions(
        lib_dirs=lib_dirs,
        into=None if plan.repair == "tools" else plan.vendor_into,
        exclude=plan.exclude,
        version=plan.version,
        requires=plan.requires,
        opens=plan.opens,
        description=feature_text(plan.features, plan.without),
        library_wheels=[
            LibraryWheel(
                wheel.requirement, wheel.folder, tuple(wheel.libraries), tuple(wheel.requires)
            )
            for wheel in plan.library_wheels
        ],
    )


def _check_promise(plan: Plan, wheel: Path) -> None:
    """Refuse another package, and another release, as after one whose recipe still has the old
    number.

    A build that does not know its release says 0 or one of development, without git for instance;
    the files of PyTorch and of its companions say a0 in every release.
    """
    name = parse_wheel_name(wheel.name)
    if name.name != canonicalize_name(plan.package):
        raise BuildFailedError(
            f"the build made {name.parts[0]}, and the recipe's package is {plan.package}",
            hint=f"correct package or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )
    built = Version(name.version)
    promised = Version(plan.version)
    version = built.public
    expected = promised.public
    if built.pre == ("a", 0):
        version = built.base_version
        expected = promised.base_version
    is_same = canonicalize_version(version) == canonicalize_version(expected)
    says_its_release = any(built.release) and not built.is_devrelease
    if says_its_release and not is_same:
        raise BuildFailedError(
            f"the build made {plan.package} {built}, and the recipe's version is {promised.public}",
            hint=f"correct version or source of {folder(plan.recipe) / 'recipe.yaml'}",
        )
