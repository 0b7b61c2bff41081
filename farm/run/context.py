"""One run as its steps see it: the plan, where it is built, where it leaves its files, and what stops it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from farm.base.errors import ExitCode, FarmError, InfrastructureError
from farm.plan.file import Plan
from farm.run.backends import Backend
from farm.run.journal import EventKind, Journal, Run
from farm.run.report import Outcomes
from farm.run.workspace import Workspace


class StillRunningError(InfrastructureError):
    """The build could not be followed or collected now; it may still be there for the next try."""


class CancelledError(FarmError):
    """Someone asked for the end of the run (130, as for Ctrl-C)."""

    exit_code = ExitCode.INTERRUPTED


@dataclass(frozen=True)
class RunContext:
    """Common state of the steps of one run.

    Attributes:
        open: The open engine of a runner.
        runner, excluded: The runner that the queue chose, and those that lost the build; None: the engine chooses.
        built: Called when the wheel is here.
    """

    workspace: Workspace
    plan: Plan
    journal: Journal
    run: Run
    outcomes: Outcomes
    open: Callable[[str | None], Backend]
    runner: str | None = None
    excluded: tuple[str, ...] = ()
    built: Callable[[], object] = lambda: None

    @property
    def folder(self) -> Path:
        return self.workspace.run_folder(self.run.id)

    def backend(self, runner: str | None = None) -> Backend:
        """The open engine of this run's runner, or of the one that an attempt had."""
        return self.open(runner or self.runner)

    def check_cancelled(self) -> None:
        """Raises CancelledError where someone asked for the end."""
        # By the journal, which every process of the project reads: `farm cancel` is another one.
        if self.journal.happened(self.run.id, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")
