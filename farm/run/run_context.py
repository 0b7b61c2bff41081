"""What every step of a run has at hand: its plan, its folder, the journal and the open engines."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from farm.plan.file import Plan
from farm.run.backends import Backend
from farm.run.cancellable import (
    CancellableWatcher,
    CancelledError,
    interrupted_at_cancel,
    left_at_cancel,
)
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Run
from farm.run.resume import BUILT, BuildState, build_state
from farm.run.toolchain import toolchain, write_context
from farm.run.workspace import Outcomes, Workspace

T = TypeVar("T")


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
        make = partial(
            toolchain,
            workspace,
            backend or self.backend(),
            self.plan,
            rendered,
            folder,
            self.outcomes,
        )
        return self.cancellable(make)

    def cancellable(
        self, call: Callable[[], T], discard: Callable[[T], object] = lambda _result: None
    ) -> T:
        """Carry out work before the build that a cancel ends at once, silent or not.

        `discard` is given what comes of it after a cancel.
        """
        if self.run.request.detached:  # by the dispatcher, in a thread, which no signal reaches
            try:
                return left_at_cancel(call, self.check_cancelled, discard)
            except CancelledError:
                self.outcomes.leave()
                raise
        with interrupted_at_cancel(self._cancel_was_asked):
            return call()

    def check_cancelled(self) -> None:
        """Raise CancelledError where someone asked for the end."""
        if self._cancel_was_asked():
            raise CancelledError(f"run {self.run.id} was cancelled")

    def _cancel_was_asked(self) -> bool:
        # By the journal, which every process of the project reads: `farm cancel` is another one.
        return self.journal.happened(self.run.id, EventKind.CANCEL) is not None

    def pass_the_last_cancel(self) -> None:
        """Record that the wheel goes into the index now; CancelledError: a cancel came first."""
        # What is published is not taken back. One transaction decides, so that a `farm cancel` of
        # the same moment is either obeyed or told that it came too late.
        if not self.journal.event_unless(self.run.id, EventKind.PUBLISHING, EventKind.CANCEL):
            raise CancelledError(f"run {self.run.id} was cancelled")
