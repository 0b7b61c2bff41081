"""Many builds at once: what they are and cost, and the question before they are queued."""

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farm.base.errors import UsageError
from farm.cli import show
from farm.plan.file import Plan
from farm.plan.recipe import recipe
from farm.plan.settings import AskAbove, Settings
from farm.run.built_here import costs_here
from farm.run.workspace import journal_path, open_journal

COLUMNS = ("package", "version", "variant", "platform", "CPU hours", "disk", "state")


@dataclass(frozen=True)
class Build:
    """One build of several.

    `standing` says what there is of it already; `hours_here`: the CPU hours of the package's builds
    here, where they were measured.
    """

    plan: Plan
    standing: str
    hours_here: float | None = None

    @property
    def to_do(self) -> bool:
        """True if it is to be built."""
        return self.standing != PUBLISHED

    @property
    def cpu_hours(self) -> float | None:
        """The cost that was measured of the recipe, else here; None: neither was measured."""
        cost = recipe(self.plan.recipe).cost_for(self.plan.parsed_variant.sms)
        if cost is None:
            return self.hours_here
        return cost[1]

    @property
    def disk_gb(self) -> float:
        return recipe(self.plan.recipe).disk_gb

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        hours_text = "?"
        if self.cpu_hours is not None:
            hours_text = f"{self.cpu_hours:.3g}"
        return (
            self.plan.package,
            self.plan.version,
            self.plan.variant,
            self.plan.platform,
            hours_text,
            f"{self.disk_gb:g} GB",
            self.standing,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "package": self.plan.package,
            "version": self.plan.version,
            "variant": self.plan.variant,
            "platform": self.plan.platform,
            "channel": self.plan.channel,
            "digest": self.plan.digest,
            "cpu_hours": self.cpu_hours,
            "disk_gb": self.disk_gb,
            "state": self.standing,
        }


PUBLISHED = "published"
TO_BUILD = "to build"


def hours_here(project: Path, settings: Settings, packages: Iterable[str]) -> dict[str, float]:
    """Return the CPU hours that packages' builds took in this project, as far as it has any."""
    if not journal_path(project, settings).is_file():  # asking makes no folder
        return {}
    hours = {}
    with open_journal(project, settings) as journal:
        for package in set(packages):
            measured = costs_here(journal, package).cpu_hours
            if measured is not None:
                hours[package] = measured
    return hours


@dataclass(frozen=True)
class Batch:
    """The builds of one command."""

    builds: Sequence[Build]

    @property
    def to_do(self) -> list[Build]:
        return [build for build in self.builds if build.to_do]

    @property
    def cpu_hours(self) -> float:
        """The sum of what is known."""
        return sum(build.cpu_hours or 0.0 for build in self.to_do)

    @property
    def summary(self) -> str:
        """One line: how many, how many of them are there, and what they cost."""
        to_do = self.to_do
        published = len(self.builds) - len(to_do)
        unknown = [build.cpu_hours for build in to_do].count(None)
        text = show.counted(len(to_do), "build")
        if published:
            text += f" ({published} of {len(self.builds)} published already)"
        costs = []
        if len(to_do) > unknown:
            costs.append(f"about {self.cpu_hours:.3g} CPU hours")
        if unknown:
            costs.append(f"{unknown} of unknown cost")
        if costs:
            text += f", {' and '.join(costs)}"
        largest = max([0.0, *(build.disk_gb for build in to_do)])
        return f"{text}, up to {largest:g} GB of disk for each"

    def show(self) -> None:
        """Print the table and the summary."""
        show.table("", COLUMNS, [build.cells for build in self.builds])
        show.say(self.summary)

    def to_json(self) -> dict[str, Any]:
        return {
            "builds": [build.to_json() for build in self.builds],
            "cpu_hours": round(self.cpu_hours, 3),
        }


def confirm(args: argparse.Namespace, batch: Batch, limit: AskAbove, machines: str) -> bool:
    """Show what will be queued, and ask in a terminal.

    Returns:
        False where the answer is no.

    Raises:
        UsageError: There is no terminal, the builds are above the limit of ci/farm.yaml, and
            `--yes` was not given.
    """
    if args.yes or len(batch.builds) < 2:
        return True
    if _in_a_terminal() and not (args.json or args.quiet):
        batch.show()
        show.say(f"machines: {machines}")
        return show.ask("queue them?")
    show.note(batch.summary)
    if len(batch.to_do) > limit.builds or batch.cpu_hours > limit.cpu_hours:
        raise UsageError(
            f"{batch.summary}: that is above `ask_above` of ci/farm.yaml ({limit.builds} builds, "
            f"{limit.cpu_hours:g} CPU hours); nothing was queued",
            hint="the same command with --yes; `farm plan` with the same options lists the builds",
        )
    return True


def _in_a_terminal() -> bool:
    return show.in_terminal() and not os.environ.get("CI")
