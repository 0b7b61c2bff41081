"""Standalone Pythons of Linux builds whose base image has another one, and the wheels that such a build imports."""

from farm import catalog
from farm.plan.compat import Stack
from farm.plan.compat.host import standalone_wheel
from farm.plan.file import PythonPlan, SourcePlan
from farm.plan.recipe import Recipe

FRONTEND = ("build", "packaging", "pyproject-hooks", "setuptools", "wheel")
BEFORE_311 = ("importlib-metadata", "tomli", "zipp")
"""Requirements of `build` below Python 3.11."""
FROM_APT = frozenset({"cmake", "ninja"})
"""Programs: those of Debian's packages are there whatever the Python."""


def packages(recipe: Recipe, python: str) -> tuple[str, ...]:
    """Packages that a build with a standalone Python imports."""
    older = BEFORE_311 if python in ("py39", "py310") else ()
    return tuple(sorted({*FRONTEND, *older, *recipe.wheels} - FROM_APT))


def python_plan(stack: Stack) -> PythonPlan | None:
    """The standalone Python; None: the base image's own, or that of the machine that builds."""
    if stack.standalone is None:
        return None
    known = catalog.standalone_pythons()[stack.variant.python]
    return PythonPlan(version=known.version, **known.files[stack.variant.machine].model_dump())


def wheels(stack: Stack) -> list[SourcePlan]:
    """Wheels that are installed for a standalone Python before the build."""
    found = [standalone_wheel(stack, name) for name in stack.standalone or ()]
    return [SourcePlan(kind="wheel", **wheel.model_dump()) for wheel in found if wheel]


def debian_packages(apt: list[str], stack: Stack) -> list[str]:
    """The recipe's packages of Debian: modules of its own Python are of no use to another one."""
    if stack.standalone is None:
        return apt
    return [*(name for name in apt if not name.startswith("python3-")), "ca-certificates", "python3"]
