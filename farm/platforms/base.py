"""The interface of platforms, with what holds where none says otherwise: a shell script that builds, gcc and clang.

The stages of a build ask in this order: `completed` and `environment` while a plan is made, `render` for the text of
the toolchain image and of the job, the rest where a job runs on the machine itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError
from farm.plan.compat import Stack
from farm.plan.file import Plan, WindowsPlan
from farm.plan.recipe import Recipe
from farm.platforms.facts import Facts
from farm.platforms.templates import Templates

Variables = dict[str, dict[str, str]]
"""Variables of the build, by where they come from."""
Files = dict[str, str]
"""Relative path -> text."""
DOCKERFILE = "Dockerfile.j2"


class Platform:
    """One platform."""

    facts: Facts

    # --- while a plan is made

    def completed(self, stack: Stack) -> Stack:
        """The stack with what follows from the platform, such as the compiler that the plan will ask for."""
        return stack

    def cuda_home(self, stack: Stack) -> str:
        """Where the CUDA toolkit is during the build."""
        # Archives and wheels are unpacked below a prefix of the farm's; Debian's packages install into /usr.
        return catalog.nvidia_provider().prefix if stack.toolkit in ("nvidia", "wheels") else "/usr"

    def environment(self, recipe: Recipe, stack: Stack) -> Variables:
        """Compilers, their flags, caches and libraries."""
        raise NotImplementedError

    def packages(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        """The Debian packages of the toolchain image."""
        return []

    def opens(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        """Libraries that vendored ones open by name, of those that this build has."""
        return []

    def details(self, _recipe: Recipe, _stack: Stack) -> WindowsPlan | None:
        """The part of a plan that this platform alone has.

        Raises:
            UsageError: Something is not pinned for the variant's Python.
        """
        return None

    def floating(self, _plan: Plan) -> list[str]:
        """Inputs of a build that are not pinned: another day's may differ."""
        return []

    # --- rendering

    def render(self, templates: Templates, _plan: Plan, values: Mapping[str, Any]) -> tuple[Files, Files]:
        """The files of the toolchain image's context (none where there is no image), and of the job.

        Raises:
            UsageError: The plan cannot be rendered with the catalogue of today.
        """
        names = (name for name in templates.names() if name != DOCKERFILE)
        return {}, {name.removesuffix(".j2"): templates.fill(name, values) for name in names}

    # --- a job on the machine itself

    entry = "build.sh"
    """The rendered script that builds."""
    self_contained = False
    """True if that script fetches its source, looks for its compilers and keeps its build tree; else the farm does."""
    needs_folder = "/farm/needs"
    """Where the wheels that a build needs are put for it."""
    variables: tuple[str, ...] = ()
    """The variables of whoever submits that the build may see."""
    failures: Mapping[int, type[FarmError]] = {}
    """Exit codes of the build that are no fault of what is built."""

    def host_root(self, artifacts: Path) -> Path:
        """The folder that stands for `/` in the paths of a job on this machine."""
        return artifacts / "host"

    def host_command(self, _output: str) -> tuple[str, ...]:
        """The command of the build; `_output` is the job's output folder."""
        return ("bash", f"/farm/job/{self.entry}")

    def host_output(self, _plan: Plan) -> str:
        """The folder where the build leaves its wheel."""
        return "/farm/out"


def compilers(stack: Stack, where: str, cc: str, cxx: str) -> Variables:
    """Compilers of Unix and the flags of the CPU level; `where` says whose compilers they are.

    The flags reach host C and C++ only: nvcc gets the GPU's architectures and nothing of the CPU.
    """
    flags = " ".join(catalog.cpu_levels()[stack.variant.cpu].gcc)
    # CUDAHOSTCXX: else CMake's nvcc takes the first g++ of the PATH, which may be newer than CUDA allows.
    words = {"CC": cc, "CXX": cxx} | ({"CUDAHOSTCXX": f"/usr/bin/{cxx}"} if stack.cuda else {})
    return {
        f"base {where}": words,
        f"variant: {stack.variant.cpu}": {"CFLAGS": flags, "CXXFLAGS": flags} if flags else {},
    }
