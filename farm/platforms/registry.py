"""Finds the implementation of a platform by its name."""

from functools import cache
from importlib import import_module
from typing import cast

from farm.platforms.base import Platform
from farm.platforms.facts import facts


@cache
def platform(name: str) -> Platform:
    """The platform called `name`: the object PLATFORM of the module `farm.platforms.<name>`.

    Raises:
        UsageError: There is none; the nearest names are given.
    """
    module = import_module(f"farm.platforms.{facts(name).name}")  # late: a command needs one of them, or none
    return cast("Platform", module.PLATFORM)
