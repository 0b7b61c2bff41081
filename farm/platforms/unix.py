"""The common part of Linux and macOS: a shell script that builds, and flags of gcc and clang."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError
from farm.plan.compat import Stack
from farm.plan.file import Plan, WindowsPlan
from farm.plan.recipe import Recipe
from farm.platforms.base import Files, Variables
from farm.platforms.templates import Templates

DOCKERFILE = "Dockerfile.j2"


class Unix:
    """The parts of the interface that do not differ."""

    entry = "build.sh"
    self_contained = False
    needs_folder = "/farm/needs"
    variables: tuple[str, ...] = ()
    failures: Mapping[int, type[FarmError]] = {}

    def completed(self, stack: Stack) -> Stack:
        return stack

    def cuda_home(self, stack: Stack) -> str:
        # Archives and wheels are unpacked below a prefix of the farm's; Debian's packages install into /usr.
        return catalog.nvidia_provider().prefix if stack.toolkit in ("nvidia", "wheels") else "/usr"

    def packages(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        return []

    def opens(self, _recipe: Recipe, _stack: Stack) -> list[str]:
        return []

    def details(self, _recipe: Recipe, _stack: Stack) -> WindowsPlan | None:
        return None

    def floating(self, _plan: Plan) -> list[str]:
        return []

    def host_root(self, artifacts: Path) -> Path:
        return artifacts / "host"

    def host_command(self, _output: str) -> tuple[str, ...]:
        return ("bash", f"/farm/job/{self.entry}")

    def host_output(self, _plan: Plan) -> str:
        return "/farm/out"


def compilers(stack: Stack, where: str, cc: str, cxx: str) -> Variables:
    """Compilers and the flags of the CPU level; `where` says whose compilers they are.

    The flags reach host C and C++ only: nvcc gets the GPU's architectures and nothing of the CPU.
    """
    flags = " ".join(catalog.cpu_levels()[stack.variant.cpu].gcc)
    # CUDAHOSTCXX: else CMake's nvcc takes the first g++ of the PATH, which may be newer than CUDA allows.
    words = {"CC": cc, "CXX": cxx} | ({"CUDAHOSTCXX": f"/usr/bin/{cxx}"} if stack.cuda else {})
    return {
        f"base {where}": words,
        f"variant: {stack.variant.cpu}": {"CFLAGS": flags, "CXXFLAGS": flags} if flags else {},
    }


def job(templates: Templates, values: Mapping[str, Any]) -> Files:
    """Every template but the Dockerfile's."""
    return {name.removesuffix(".j2"): templates.fill(name, values) for name in templates.names() if name != DOCKERFILE}
