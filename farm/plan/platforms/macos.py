"""macOS: Apple's clang on the machine itself, Metal in the place of CUDA. Never run: the farm has
had no Mac.
"""

from farm.plan.compat.stack import Stack
from farm.plan.platforms.base import Platform, Variables, compilers
from farm.plan.recipe import Recipe
from farm.platforms.facts import PLATFORMS


class MacOS(Platform):
    facts = PLATFORMS["macos"]

    def environment(self, _recipe: Recipe, stack: Stack) -> Variables:
        return compilers(stack, "of the host", "clang", "clang++")


PLATFORM = MacOS()
