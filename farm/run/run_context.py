"""What every step of a run has at hand: its plan, its folder, the journal and the open engines."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from farm.base.errors import ExitCode, FarmError
from farm.plan.file import Plan
from farm.run.backends import Backend
from farm.run.journal import EventKind, Journal, Run
from farm.run.resume import BUILT, BuildState, build_state
from farm.run.toolchain import toolchain, write_context
from farm.run.workspace import Outcomes, Step, Watcher, Workspace

CANCEL_LOOK_S = 1.0  # how often a step before the build asks the journal for a cancel, at most


class CancelledError(FarmError):
    """Someone asked for the end of the run (130, as for Ctrl-C)."""

    exit_code = ExitCode.INTERRUPTED


class CancellableWatcher(Watcher):
    """Passes everything on to another watcher, and looks for a cancel at most once a second."""

    def __init__(self, watcher: Watcher, check: Callable[[], None]) -> None:
        self._watcher = watcher
        self._check = check
        self._checked = float("-inf")

    def _look(self) -> None:
        if time.monotonic() - self._checked >= CANCEL_LOOK_S:
            self._checked = time.monotonic()
            self._check()

    def step(self, name: str) -> None:
        self._watcher.step(name)

    def ended(self, step: Step) -> None:
        self._watcher.ended(step)

    def line(self, text: str) -> None:
        self._watcher.line(text)
        self._look()

    def note(self, text: str) -> None:
        self._watcher.note(text)
        self._look()

    def progress(self, done: int, total: int) -> None:
        self._watcher.progress(done, total)
        self._look()


@dataclass(frozen=True)
class RunContext:
    """One run and what its steps work with.

    `open`: the engine of a runner; `runner`: the machine that the queue chose (None: this one's, or
    the engine chooses); `on_built` is called when the wheel is here; `pieces`: of a wheel that was
    built from an offline bundle, so that nothing is built here.
    """

    workspace: Workspace
    plan: Plan
    journal: Journal
    run: Run
    outcomes: Outcomes
    open: Callable[[str | None], Backend]
    runner: str | None = None
    on_built: Callable[[], object] = lambda: None
    pieces: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder with everything that the run leaves."""
        return self.workspace.run_folder(self.run.id)

    @property
    def build_dir(self) -> Path:
        """The output of the build. It gets its name last, when it is whole."""
        return self.folder / BUILT

    @property
    def preparing(self) -> Workspace:
        """The workspace for steps before the build: each line of their output looks for a
        cancel.
        """
        watcher = CancellableWatcher(self.workspace.watcher, self.check_cancelled)
        return replace(self.workspace, watcher=watcher)

    def build_state(self) -> BuildState:
        """What there is of the run's build now."""
        return build_state(self.workspace, self.journal, self.run.id)

    def backend(self, runner: str | None = None) -> Backend:
        """The open engine of this run's runner, or of the one that an attempt had."""
        return self.open(runner or self.runner)

    def toolchain(self, folder: Path, backend: Backend | None = None) -> str:
        """The image of the plan's toolchain, by the name that the runners of an engine (by default
        the run's) know.
        """
        workspace = self.preparing
        rendered = write_context(workspace, self.plan, folder, self.outcomes)
        return toolchain(
            workspace, backend or self.backend(), self.plan, rendered, folder, self.outcomes
        )

    def check_cancelled(self) -> None:
        """Raise CancelledError where someone asked for the end."""
        # By the journal, which every process of the project reads: `farm cancel` is another one.
        if self.journal.happened(self.run.id, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")

    def pass_the_last_cancel(self) -> None:
        """Record that the wheel goes into the index now; CancelledError: a cancel came first."""
        # What is published is not taken back. One transaction decides, so that a `farm cancel` of
        # the same moment is either obeyed or told that it came too late.
        if not self.journal.event_unless(self.run.id, EventKind.PUBLISHING, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")
