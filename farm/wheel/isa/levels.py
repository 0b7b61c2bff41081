"""The CPU features that a level allows."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from farm.base.errors import UsageError, VerificationFailedError
from farm.policy.levels import arm_table, level_names, table
from farm.wheel.elf import (
    Elf,
)


def reason_not_decoded(elf: Elf, level: str) -> str | None:
    """Why no machine code can be held to the level; None where it can."""
    levels = (*arm_table(), *level_names())
    if level not in levels:
        raise UsageError(
            f"CPU level {level!r} cannot be checked", hint=f"levels that can: {', '.join(levels)}"
        )
    if level in arm_table():
        if elf.machine != "aarch64":
            return f"machine code for {elf.machine} is not decoded by {level}"
    elif elf.machine != "x86_64":
        return f"machine code for {elf.machine} is not decoded"
    if not elf.sections:
        return "it has no section table to find its code by"
    return None


def allowed_features(
    level: str | None,
    levels: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """The features of a level and of those below it."""
    while level:
        yield from levels[level]["features"] or ()
        level = levels[level]["extends"]


def is_within(level: str, other: str) -> bool:
    """True if a CPU of the level `other` has everything that `level` allows."""
    tables = (table()["levels"], arm_table())
    for levels in tables:
        if level in levels and other in levels:
            features = set(allowed_features(level, levels))
            return features.issubset(allowed_features(other, levels))
    return False


def lowest_level_with(features: Iterable[str], level: str) -> str | None:
    """The lowest level that has some features and all that `level` has; None where there is
    none.
    """
    for levels in (table()["levels"], arm_table()):
        if level in levels:
            needs = {*features, *allowed_features(level, levels)}
            for name in levels:
                if needs <= set(allowed_features(name, levels)):
                    return name
    return None


def damaged(what: str) -> VerificationFailedError:
    """The error for code that cannot be followed."""
    return VerificationFailedError(f"damaged file: {what}")
