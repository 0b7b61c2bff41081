"""macOS: Apple's clang on the machine itself, Metal in the place of CUDA. Never run: the farm has had no Mac."""

from collections.abc import Mapping
from typing import Any

from farm.plan.compat import Stack
from farm.plan.file import Plan
from farm.plan.recipe import Recipe
from farm.platforms.base import Files, Platform, Variables
from farm.platforms.facts import PLATFORMS
from farm.platforms.templates import Templates
from farm.platforms.unix import Unix, compilers, job


class MacOS(Unix):
    facts = PLATFORMS["macos"]

    def environment(self, _recipe: Recipe, stack: Stack) -> Variables:
        return compilers(stack, "of the host", "clang", "clang++")

    def render(self, templates: Templates, _plan: Plan, values: Mapping[str, Any]) -> tuple[Files, Files]:
        return {}, job(templates, values)


PLATFORM: Platform = MacOS()
