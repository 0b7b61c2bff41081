"""The loader of glibc on each machine, as `elf_loaders.yaml` has it."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from farm.base import yaml_cache as parsed


class ElfLoader(NamedTuple):
    """One machine's.

    Args:
        interpreter: Where it lies; programs name it (PT_INTERP).
        lib: What it puts for $LIB, on systems of Fedora's kind and Debian's (`expansion.System`).
        platform: What it may put for $PLATFORM, least first; empty where that is not known.
    """

    interpreter: str
    lib: dict[str, str]
    platform: tuple[str, ...] = ()


@cache
def elf_loaders() -> dict[str, ElfLoader]:
    """By machine as in platform tags (`x86_64`)."""
    rows = parsed.plain(Path(__file__).with_name("elf_loaders.yaml"))
    return {machine: ElfLoader(**row) for machine, row in rows.items()}
