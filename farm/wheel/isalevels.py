"""The levels of a CPU by name, as `isa_levels.yaml` has them; apart from the decoder, since every plan names one."""

from functools import cache
from pathlib import Path

from farm.base import yaml_cache as parsed


@cache
def table() -> dict[str, dict[str, dict[str, list[str]]]]:
    """The file: `levels` by name, lowest first, and what is harmless in all of them."""
    found: dict[str, dict[str, dict[str, list[str]]]] = parsed.plain(Path(__file__).with_name("isa_levels.yaml"))
    return found


def level_names() -> tuple[str, ...]:
    """The levels that machine code can be held to, lowest first."""
    return tuple(table()["levels"])
