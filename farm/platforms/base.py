"""The interface of platforms, which linux, macos and windows implement.

The stages of a build ask in this order: `completed` and `environment` while a plan is made, `render` for the text of
the toolchain image and of the job, the rest where a job runs on the machine itself.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

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


class Platform(Protocol):
    """One platform."""

    facts: Facts

    # --- while a plan is made

    def completed(self, stack: Stack) -> Stack:
        """The stack with what follows from the platform, such as the compiler that the plan will ask for."""

    def cuda_home(self, stack: Stack) -> str:
        """Where the CUDA toolkit lies during the build."""

    def environment(self, recipe: Recipe, stack: Stack) -> Variables:
        """Compilers, their flags, caches and libraries."""

    def packages(self, recipe: Recipe, stack: Stack) -> list[str]:
        """The Debian packages of the toolchain image."""

    def opens(self, recipe: Recipe, stack: Stack) -> list[str]:
        """Libraries that vendored ones open by name, of those that this build has."""

    def details(self, recipe: Recipe, stack: Stack) -> WindowsPlan | None:
        """The part of a plan that this platform alone has.

        Raises:
            UsageError: Something is not pinned for the variant's Python.
        """

    def floating(self, plan: Plan) -> list[str]:
        """Inputs of a build that are not pinned: another day's may differ."""

    # --- rendering

    def render(self, templates: Templates, plan: Plan, values: Mapping[str, Any]) -> tuple[Files, Files]:
        """The files of the toolchain image's context (none where there is no image), and of the job.

        Raises:
            UsageError: The plan cannot be rendered with the catalogue of today.
        """

    # --- a job on the machine itself

    entry: str
    """The rendered script that builds."""
    self_contained: bool
    """True if that script fetches its source, looks for its compilers and keeps its build tree; else the farm does."""
    needs_folder: str
    """Where the wheels that a build needs are put for it."""

    def host_root(self, artifacts: Path) -> Path:
        """The folder that stands for `/` in the paths of a job on this machine."""

    def host_command(self, output: str) -> tuple[str, ...]:
        """The command of the build; `output` is the job's output folder."""

    def host_output(self, plan: Plan) -> str:
        """The folder where the build leaves its wheel."""

    variables: tuple[str, ...]
    """The variables of whoever submits that the build may see."""
    failures: Mapping[int, type[FarmError]]
    """Exit codes of the build that are no fault of what is built."""
