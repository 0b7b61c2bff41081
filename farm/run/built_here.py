"""What this project has built itself: the journal's own evidence, and how long builds take here."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from farm.base.text import duration
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Run

RECENT = 200  # ended runs of a package that estimates are taken from


@dataclass(frozen=True)
class BuiltHere:
    """A run of a plan that came to its end here.

    `build_seconds` is wall time of the build step, `cpu_seconds` what its compilers took; None
    where its wheel was taken from an earlier run, or where its log does not say it. `smoke`: what
    the smoke test said, None where none was run.
    """

    run_id: str
    date: str
    build_seconds: float | None
    cpu_seconds: float | None
    published: bool
    smoke: str | None

    @property
    def text(self) -> str:
        """One line for people."""
        parts = [f"built here {self.date}"]
        if self.build_seconds is not None:
            parts[0] += f" in {duration(self.build_seconds)}"
        if self.cpu_seconds is not None:
            parts[0] += f" ({duration(self.cpu_seconds)} of CPU time)"
        if self.published:
            parts.append("published")
        parts.append(f"smoke test: {self.smoke}" if self.smoke else "no smoke test was run")
        return ", ".join(parts)


def built_here(journal: Journal, plan_digest: str) -> BuiltHere | None:
    """Return the newest run of a plan that succeeded here."""
    for run in journal.of_plan(plan_digest):
        if run.result == "success":
            return _of_run(journal, run)
    return None


def _of_run(journal: Journal, run: Run) -> BuiltHere:
    steps = {}
    cpu_times = []
    for event in journal.events(run.id):
        if event.kind == EventKind.STEP:
            steps[str(event.data["name"])] = event.data
        elif event.kind == EventKind.CPU_TIME:
            cpu_times.append(float(event.data["seconds"]))
    smoke = steps.get("smoke")
    resumed = journal.happened(run.id, EventKind.RESUMED) is not None
    build = steps.get("build")
    return BuiltHere(
        run_id=run.id,
        date=datetime.fromisoformat(run.finished or run.created).date().isoformat(),
        build_seconds=float(build["seconds"]) if build and not resumed else None,
        # Of every attempt: one that was ended by a limit compiled what the next one used.
        cpu_seconds=sum(cpu_times) if cpu_times and not resumed else None,
        published="publish" in steps,
        smoke=str(smoke["result"]) if smoke and smoke["outcome"] == "done" else None,
    )


@dataclass(frozen=True)
class Costs:
    """What a package's successful builds took here, newest first: wall and CPU time in seconds."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def cpu_hours(self) -> float | None:
        """The median; None where no build was measured."""
        return median(self.cpu) / 3600 if self.cpu else None

    @property
    def text(self) -> str:
        """One line for people."""
        text = f"about {duration(median(self.wall))} a build"
        if self.cpu:
            text += f", {duration(median(self.cpu))} of CPU time"
        return text


def costs_here(journal: Journal, package: str) -> Costs:
    """Return what a package's builds took here."""
    builds = [_of_run(journal, run) for run in journal.successes(package, RECENT)]
    return Costs(
        wall=tuple(build.build_seconds for build in builds if build.build_seconds is not None),
        cpu=tuple(build.cpu_seconds for build in builds if build.cpu_seconds is not None),
    )


def rows(journal: Journal, plan_digest: str, package: str) -> Iterator[tuple[str, str]]:
    """Give the lines of `farm plan` on what was done here."""
    newest = built_here(journal, plan_digest)
    if newest:
        yield "tested here", f"{newest.text} (run {newest.run_id})"
    costs = costs_here(journal, package)
    if costs.wall:
        count = f"{len(costs.wall)} build{'s' * (len(costs.wall) > 1)} of {package}"
        yield "time here", f"{costs.text} ({count} here)"
