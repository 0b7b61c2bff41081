"""A checkout as the pipeline works in it: its settings, folders, journal, and who watches the steps
of a run.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from farm.base.file_systems import network_file_system
from farm.base.project import JOURNAL
from farm.plan.settings import Settings
from farm.run.journal import Journal

Outcome = Literal["done", "failed", "not run"]


class Watcher:
    """Watches a run; this one shows nothing. The command line has one for terminals and one for CI
    logs.
    """

    def step(self, name: str) -> None:
        """A step starts."""

    def ended(self, step: "Step") -> None:
        """A step has ended, with its time and its result."""

    def line(self, text: str) -> None:
        """A line of a step's output, made safe to print."""

    def note(self, text: str) -> None:
        """A line worth a place in a short log: what the farm does, and which command of a build
        starts.
        """

    def progress(self, done: int, total: int) -> None:
        """How far the step is, in steps of ninja or mebibytes of a wheel; 0 of 0: it is not
        known.
        """


@dataclass
class Step:
    """One step of a run: seconds taken and what came of it."""

    name: str
    seconds: float = 0.0
    outcome: Outcome = "done"
    result: str = ""
    began: float = field(default_factory=time.monotonic, repr=False)
    under_way: bool = field(default=True, repr=False)

    def end(self, outcome: Outcome | None = None) -> None:
        """Note the time that it took, and with `outcome` what came of it."""
        if self.under_way:
            self.under_way = False
            self.seconds = time.monotonic() - self.began
            self.outcome = outcome or self.outcome


@dataclass
class Outcomes:
    """The steps of a run in order, and what a user needs to go on."""

    steps: list[Step] = field(default_factory=list)
    run: str = ""
    wheel: str | None = None
    pip_line: str | None = None

    @contextmanager
    def timed(self, name: str, watcher: Watcher) -> Iterator[Step]:
        """Times a step; its result is set by the body."""
        step = Step(name)
        self.steps.append(step)
        watcher.step(name)
        try:
            yield step
        # Ctrl-C too: the table at the end says at which step it came.
        except BaseException:
            step.end("failed")
            raise
        finally:
            step.end()
            watcher.ended(step)

    def leave(self) -> None:
        """End the steps under way, which go on without the run that they were for."""
        for step in self.steps:
            step.end("failed")

    def to_json(self) -> dict[str, object]:
        return {
            "run": self.run,
            "wheel": self.wheel,
            "pip": self.pip_line,
            "steps": [
                {
                    "step": s.name,
                    "seconds": round(s.seconds, 3),
                    "outcome": s.outcome,
                    "result": s.result,
                }
                for s in self.steps
            ],
        }


@dataclass(frozen=True)
class Workspace:
    """The project, its settings, where its runs leave their files, and who watches."""

    project: Path
    settings: Settings
    watcher: Watcher

    @property
    def artifacts(self) -> Path:
        return self.project / self.settings.artifacts

    @property
    def id(self) -> str:
        """Tells this project's images on a Docker engine from those of other projects, without
        saying where it is.
        """
        # Resolved: the same project by a link or another working directory is the same project.
        return hashlib.sha256(str(self.artifacts.resolve()).encode()).hexdigest()[:16]

    def run_folder(self, run_id: str) -> Path:
        return self.artifacts / "runs" / run_id

    @property
    def index_url(self) -> str:
        return self.settings.index_at(self.project)


def journal_path(project: Path, settings: Settings) -> Path:
    return project / settings.artifacts / JOURNAL


def warn_of_place(workspace: Workspace) -> None:
    """Notes that the journal is where SQLite's write-ahead log does not work."""
    if kind := network_file_system(journal_path(workspace.project, workspace.settings)):
        workspace.watcher.note(
            f"the journal is on a network file system ({kind}), where SQLite may lose it: "
            "set artifacts: in ci/farm.yaml to a local folder"
        )


def open_journal(project: Path, settings: Settings) -> Journal:
    path = journal_path(project, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What runs leave is no source: of a package in whose own checkout the farm works, nor to be
    # committed.
    with (
        contextlib.suppress(OSError),
        (path.parent / ".gitignore").open("x", encoding="ascii") as file,
    ):
        file.write("*\n")
    journal = Journal(path)
    if settings.notify:
        from farm.run.notify import notify  # noqa: PLC0415 few projects have it

        journal.on_finish = lambda run_id: notify(settings.notify, journal, run_id, path.parent)
    return journal
