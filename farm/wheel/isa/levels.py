"""The CPU features that a level allows."""

from collections.abc import Iterator, Mapping
from typing import Any

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.elf import (
    Elf,
)
from farm.wheel.policy import arm_table, level_names


def reason_not_decoded(elf: Elf, level: str) -> str | None:
    """Why no machine code can be held to the level; None where it can."""
    levels = (*arm_table(), *level_names())
    if level not in levels:
        raise UsageError(
            f"CPU level {level!r} cannot be checked", hint=f"levels that can: {', '.join(levels)}"
        )
    if elf.machine != ("aarch64" if level in arm_table() else "x86_64"):
        return f"machine code for {elf.machine} is not decoded" + (
            f" by {level}" if level in arm_table() else ""
        )
    if elf.sections:
        return None
    return "it has no section table to find its code by"


def allowed_features(level: str | None, levels: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The features of a level and of those below it."""
    while level:
        yield from levels[level]["features"] or ()
        level = levels[level]["extends"]


def damaged(what: str) -> VerificationFailedError:
    return VerificationFailedError(f"damaged file: {what}")
