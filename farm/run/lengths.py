"""How long a build is expected to take: as its like did, so far as the journal knows of one."""

from collections.abc import Iterable, Mapping
from typing import Any

from farm.run.journal import BuildLength

LIMIT_SHARE = 1 / 3
"""Of the recipe's time limit, for a package that was never built here: what a build takes is rarely near its limit."""


class Lengths:
    """Minutes by package and platform, and by the variant too where that very one was built; newest first."""

    def __init__(self, found: Iterable[BuildLength]) -> None:
        self._same: dict[tuple[str, str, str], float] = {}
        self._like: dict[tuple[str, str], float] = {}
        for length in found:
            # `setdefault`, since the newest comes first.
            self._same.setdefault((length.package, length.platform, length.variant), length.minutes)
            self._like.setdefault((length.package, length.platform), length.minutes)

    def note(self, found: Iterable[BuildLength]) -> None:
        """What has ended just now."""
        for length in found:
            self._same[length.package, length.platform, length.variant] = length.minutes
            self._like[length.package, length.platform] = length.minutes

    def minutes(self, about: Mapping[str, Any]) -> float:
        """Of the build of a plan with these fields."""
        package, platform = about["package"], about["platform"]
        known = self._same.get((package, platform, about["variant"]), self._like.get((package, platform)))
        return float(about["timeout_minutes"]) * LIMIT_SHARE if known is None else known
