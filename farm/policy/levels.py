"""The CPU levels that machine code can be held to, as data: by name, lowest first."""

from functools import cache
from pathlib import Path

from farm.base import yamlfile


@cache
def table() -> dict[str, dict[str, dict[str, list[str]]]]:
    """The file: `levels` by name, lowest first, and what is harmless in all of them."""
    content: dict[str, dict[str, dict[str, list[str]]]] = yamlfile.plain(
        Path(__file__).with_name("isa_levels.yaml")
    )
    return content


@cache
def arm_table() -> dict[str, dict[str, list[str] | str | None]]:
    """The levels of 64-bit Arm by name, lowest first, as `aarch64_levels.yaml` has them."""
    content = yamlfile.plain(Path(__file__).with_name("aarch64_levels.yaml"))
    levels: dict[str, dict[str, list[str] | str | None]] = content["levels"]
    return levels


def arm_level_names() -> tuple[str, ...]:
    """The levels that the machine code of 64-bit Arm can be held to, lowest first."""
    return tuple(arm_table())


def level_names() -> tuple[str, ...]:
    """The levels that x86-64 machine code can be held to, lowest first."""
    return tuple(table()["levels"])
