"""What this project has built itself: the journal's own evidence, and how long builds take here."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from farm.base.text import duration
from farm.run.journal import EventKind, Journal, Run

RECENT = 200  # ended runs of a package that estimates are taken from


@dataclass(frozen=True)
class BuiltHere:
    """A run of a plan that came to its end here.

    `build_seconds` is wall time of the build step, None where its wheel was taken from an earlier
    run; `smoke`: what the smoke test said, None where none was run.
    """

    run_id: str
    date: str
    build_seconds: float | None
    published: bool
    smoke: str | None

    @property
    def text(self) -> str:
        """One line for people."""
        parts = [f"built here {self.date}"]
        if self.build_seconds is not None:
            parts[0] += f" in {duration(self.build_seconds)}"
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
    steps = {
        str(event.data["name"]): event.data
        for event in journal.events(run.id)
        if event.kind == EventKind.STEP
    }
    smoke = steps.get("smoke")
    resumed = journal.happened(run.id, EventKind.RESUMED) is not None
    build = steps.get("build")
    return BuiltHere(
        run_id=run.id,
        date=datetime.fromisoformat(run.finished or run.created).date().isoformat(),
        build_seconds=float(build["seconds"]) if build and not resumed else None,
        published="publish" in steps,
        smoke=str(smoke["result"]) if smoke and smoke["outcome"] == "done" else None,
    )


def build_seconds(journal: Journal, package: str) -> list[float]:
    """Return the wall times of a package's successful builds here, newest first."""
    seconds = []
    for run in journal.successes(package, RECENT):
        wall_time = _of_run(journal, run).build_seconds
        if wall_time is not None:
            seconds.append(wall_time)
    return seconds


def rows(journal: Journal, plan_digest: str, package: str) -> Iterator[tuple[str, str]]:
    """Give the lines of `farm plan` on what was done here."""
    newest = built_here(journal, plan_digest)
    if newest:
        yield "tested here", f"{newest.text} (run {newest.run_id})"
    seconds = build_seconds(journal, package)
    if seconds:
        count = f"{len(seconds)} build{'s' * (len(seconds) > 1)} of {package}"
        yield "time here", f"about {duration(median(seconds))} a build ({count} here)"
