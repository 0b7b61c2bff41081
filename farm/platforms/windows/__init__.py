"""Windows: MSVC on the machine itself or in a Server container, CUDA from NVIDIA's archives, a batch file that builds.

`toolchain` is the Windows part of a plan, `tools` and tools.yaml the pinned downloads, `render` the batch files.
build.cmd has its folders below C:/farm, so the host engine's root is C:/. It was run so under Wine, with stand-ins for
the compilers, never on Windows.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.base.errors import FarmError, InfrastructureError, NoRunnerError
from farm.plan.compat import Stack
from farm.plan.file import Plan, WindowsPlan
from farm.plan.recipe import Recipe
from farm.platforms.base import Files, Platform, Variables
from farm.platforms.facts import PLATFORMS
from farm.platforms.templates import Templates
from farm.platforms.windows import toolchain
from farm.platforms.windows.render import render

FOLLOW = "/farm/scripts/follow_cmd.py"


class Windows(Platform):
    facts = PLATFORMS["windows"]
    entry = "build.cmd"
    self_contained = True
    needs_folder = "/farm/job/needs"
    variables: tuple[str, ...] = ("FARM_PYTHON", "FARM_ARCHIVES")
    failures: Mapping[int, type[FarmError]] = {3: NoRunnerError, 9: InfrastructureError}  # build.cmd's own

    def completed(self, stack: Stack) -> Stack:
        return stack if stack.msvc is not None else replace(stack, msvc=toolchain.pinned_msvc(stack))

    def cuda_home(self, stack: Stack) -> str:
        return toolchain.cuda_home(stack)

    def environment(self, _recipe: Recipe, stack: Stack) -> Variables:
        return toolchain.environment(stack)

    def details(self, recipe: Recipe, stack: Stack) -> WindowsPlan | None:
        return toolchain.windows_plan(recipe, stack)

    def floating(self, plan: Plan) -> list[str]:
        return toolchain.floating(plan.windows) if plan.windows else []

    def render(self, templates: Templates, plan: Plan, values: Mapping[str, Any]) -> tuple[Files, Files]:
        return render(templates, plan, values)

    def host_root(self, _artifacts: Path) -> Path:
        return Path("C:/")

    def host_command(self, output: str) -> tuple[str, ...]:
        return (sys.executable, FOLLOW, f"/farm/job/{self.entry}", f"{output}/build.log")

    def host_output(self, plan: Plan) -> str:
        return f"/farm/out/{plan.digest[:12]}"


PLATFORM = Windows()
