"""What there is of a build already, and what can be taken from earlier runs of the same plan.

This is the one place that answers "is there something to resume?". A controller may be killed
between any two writes: the journal says what an engine was given, the run's folder whether its
output was collected.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from farm.engines.base import FINAL
from farm.index.records import Record
from farm.plan.file import Plan
from farm.run.build_job import the_wheel
from farm.run.journal import Journal
from farm.run.journal_records import Attempt, EventKind, Run, Until
from farm.run.published import published_wheel
from farm.run.toolchain import IMAGE
from farm.run.workspace import Workspace, journal_path, open_journal

BUILT = "built"  # the folder of a run with the output of its build
ORDER: tuple[Until, ...] = ("build", "verify", "publish", "smoke")


class Stage(StrEnum):
    """How far a build is."""

    FRESH = "fresh"
    """Nothing is there: it has no attempt, or its attempts were lost or cancelled."""
    SUBMITTED = "submitted"
    """Its controller died while it submitted: the engine may know the attempt by its labels."""
    RUNNING = "running"
    """An engine has it, and nobody has seen its end."""
    COLLECTED = "collected"
    """Its output is in the run's folder."""
    FAILED = "failed"
    """It ran to its end and failed."""


@dataclass(frozen=True)
class BuildState:
    """The state of a run's build.

    `attempts`: of the build, oldest first; `adopted_from`: the earlier run whose wheel it took.
    """

    stage: Stage
    attempts: tuple[Attempt, ...] = ()
    adopted_from: str | None = None

    @property
    def resumable(self) -> bool:
        """True if the next controller goes on with it instead of building from the start."""
        return self.stage in (Stage.SUBMITTED, Stage.RUNNING, Stage.COLLECTED)

    @property
    def newest(self) -> Attempt | None:
        if not self.attempts:
            return None
        return self.attempts[-1]

    @property
    def open_attempt(self) -> Attempt | None:
        """The attempt whose end nobody has seen."""
        return next((attempt for attempt in self.attempts if attempt.state not in FINAL), None)

    @property
    def at_engines(self) -> list[Attempt]:
        """The attempts that an engine has and whose end nobody has seen."""
        return [a for a in self.attempts if a.handle and a.state not in FINAL]

    @property
    def lost(self) -> list[Attempt]:
        """The attempts that a runner lost, or could not prepare."""
        return [attempt for attempt in self.attempts if attempt.result == "infra"]


def build_state(workspace: Workspace, journal: Journal, run_id: str) -> BuildState:
    """Return what there is of a run's build now; no engine is asked."""
    attempts: list[Attempt] = []
    for job in journal.jobs(run_id):
        if job.kind == "build":
            attempts += job.attempts
    newest = None
    if attempts:
        newest = attempts[-1]
    adopted_from = None
    adopted = journal.happened(run_id, EventKind.RESUMED)
    if adopted:
        adopted_from = str(adopted.data["run"])
    if (workspace.run_folder(run_id) / BUILT).is_dir():
        stage = Stage.COLLECTED
    elif newest is None:
        stage = Stage.FRESH
    elif newest.result == "failure":
        stage = Stage.FAILED
    elif newest.state in FINAL:
        stage = Stage.FRESH
    elif newest.handle:
        stage = Stage.RUNNING
    else:
        stage = Stage.SUBMITTED
    return BuildState(stage, tuple(attempts), adopted_from)


# --- from other runs


def of_same_form(plan: Plan) -> Callable[[Run], bool]:
    """Pick the runs that make the wheel with CUDA's libraries from where this plan has them
    from.
    """
    return lambda run: bool(run.plan.get("library_wheels")) == bool(plan.library_wheels)


def adopt_orphaned_run(journal: Journal, plan: Plan) -> Run | None:
    """Claim the unfinished run of a dead controller with the same plan.

    Returns:
        The run, which is this process's now; None where there is none, where its controller lives,
        or where it is the dispatcher's.
    """
    run = journal.unfinished(plan.digest, of_same_form(plan))
    if run is None or run.request.detached or not journal.claim(run.id):
        return None
    return run


def adopt_previous_build(
    workspace: Workspace, journal: Journal, run_id: str, plan_digest: str
) -> Run | None:
    """Link the build of an earlier run of the same plan into the folder of a new one.

    Not of a run that came as far as this one is to come: whoever submits that again wants it built
    again.

    Returns:
        The run that the build is from; None where there is nothing to adopt.
    """
    earlier_runs = journal.of_plan(plan_digest)
    if not earlier_runs:
        return None
    run = journal.run(run_id)
    if run.request.rebuild:
        return None
    has_library_wheels = bool(run.plan.get("library_wheels"))
    for earlier in earlier_runs:
        if bool(earlier.plan.get("library_wheels")) != has_library_wheels:
            continue
        folder = workspace.run_folder(earlier.id)
        wheels = list((folder / BUILT / "wheel").glob("*.whl"))
        if not wheels:
            continue
        if earlier.result == "success" and came_as_far(earlier, run):
            return None
        _link_build(folder, workspace.run_folder(run.id))
        inputs = journal.happened(earlier.id, EventKind.INPUTS)
        if inputs:
            journal.event(run.id, EventKind.INPUTS, **inputs.data)
        journal.event(run.id, EventKind.RESUMED, run=earlier.id)
        return earlier
    return None


def came_as_far(earlier: Run, run: Run) -> bool:
    """True if an earlier run was to come as far as this one, or further."""
    return ORDER.index(earlier.request.until) >= ORDER.index(run.request.until)


def _link_build(old: Path, new: Path) -> None:
    """Link where the file system has links; the folder gets its name last, when it is whole."""
    part = new / f"{BUILT}.part"
    shutil.rmtree(part, ignore_errors=True)
    new.mkdir(parents=True, exist_ok=True)
    the_wheel(old / BUILT / "wheel")
    for name in ("build.log", IMAGE):
        if (old / name).exists():
            _link(str(old / name), str(new / name))
    shutil.copytree(old / BUILT, part, copy_function=_link)
    part.rename(new / BUILT)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target


# --- from the index


def find_published(workspace: Workspace, plan: Plan) -> Record | None:
    """Return the record of the wheel that was built by this very plan and that users can install.

    None also where a run of the plan has not ended: one whose controller was killed is resumed and
    ended first.

    Raises:
        PublishRefusedError: It is there in the other form, with CUDA's libraries where this plan
            needs NVIDIA's wheels or the other way round.
    """
    if journal_path(workspace.project, workspace.settings).exists():  # asking makes no folder
        with open_journal(workspace.project, workspace.settings) as journal:
            if journal.unfinished(plan.digest, of_same_form(plan)):
                return None
    return published_wheel(workspace, plan)


def published_before(workspace: Workspace, journal: Journal, run: Run, plan: Plan) -> Record | None:
    """Return the wheel that an earlier run of this plan has published, for a run that repeats it.

    Nothing but its smoke test is then left to do.
    """
    repeats = run.request.retry_of or journal.happened(run.id, EventKind.RESUMED)
    if run.request.rebuild or not repeats:
        return None
    return published_wheel(workspace, plan)
