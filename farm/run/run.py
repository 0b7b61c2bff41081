"""The main job: from a plan to a smoke-tested wheel in the index, every step in the journal.

A run whose controller was killed is found again by its plan: the container that still builds, or
the wheel that was collected, is resumed; the short steps after it are done again, since each is
idempotent.
"""

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from farm.base.errors import (
    ExitCode,
    FarmError,
    InfrastructureError,
    NoRunnerError,
    UsageError,
    system_error,
)
from farm.base.interrupts import OutputClosed, deferred_interrupts
from farm.base.yamlfile import first_fault
from farm.plan.file import Plan
from farm.plan.package_set import makers_first
from farm.run import needs, preflight, resume
from farm.run.backends import check_engine, open_backend
from farm.run.cancellable import CancelledError
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Request, Result, Run, Until
from farm.run.mainjob import MainJob
from farm.run.run_state import state_of
from farm.run.workspace import Outcomes, Workspace, open_journal, warn_of_place

CANCEL_S = 60.0
KEPT_TEXT = 8000


def submit(
    workspace: Workspace,
    plan: Plan,
    *,
    until: Until = "smoke",
    on: str = "docker",
    pieces: Path | None = None,
    rebuild: bool = False,
) -> Outcomes:
    """Do everything for one plan up to a step; the journal keeps what happened whatever happens.

    `pieces`: of the wheel, where a bundle's `run` built it on another machine; `rebuild`: also
    where the wheel is there. A FarmError's class says which step failed; UsageError: a wheel that
    the build needs is not published. KeyboardInterrupt: Ctrl-C, or a signal that counts as it; the
    container was removed.
    """
    # All before the run is written down: what cannot work leaves no run behind.
    request = request_for(plan, until=until, on=on, rebuild=rebuild)
    check_engine(workspace, on, plan)
    needs.published_needs(workspace, plan)
    warn_of_place(workspace)
    with open_journal(workspace.project, workspace.settings) as journal:
        preflight.check_index(workspace, request)
        preflight.check_plan(workspace, plan, request)
        run = resume.adopt_orphaned_run(journal, plan) or create(workspace, journal, plan, request)
        outcomes = Outcomes(run=run.id)
        opened = cache(lambda runner: open_backend(workspace, on, runner))
        job = MainJob(workspace, plan, journal, run, outcomes, opened, pieces=pieces)
        try:
            job.steps(until)
        except KeyboardInterrupt as error:
            # A closed pipe asks for no end of a build that this command does not follow yet: it
            # goes on, and the same command follows it.
            if job.build_state().at_engines and isinstance(error, OutputClosed):
                raise
            with deferred_interrupts():
                _stop(workspace, journal, run)
            journal.finish_run(run.id, "infra", ExitCode.INTERRUPTED)
            if journal.happened(run.id, EventKind.CANCEL):  # by another process, not by Ctrl-C
                raise CancelledError(f"run {run.id} was cancelled") from error
            raise
        except Exception as error:
            farm_error = error if isinstance(error, FarmError) else system_error(error)
            if farm_error is None:
                raise
            note_error(journal, run.id, farm_error)
            # Else the run stays open, and the same command goes on with it.
            if not job.build_state().at_engines:
                finish(journal, run.id, farm_error)
            if farm_error is error:
                raise
            raise farm_error from error
        finally:
            # Of a run that failed as well: the steps say how far it came.
            note_steps(journal, run.id, job.outcomes)
        journal.finish_run(run.id, "success", ExitCode.DONE)
        return job.outcomes


def create(workspace: Workspace, journal: Journal, plan: Plan, request: Request) -> Run:
    """A new run; the wheel of an earlier one of the same plan that did not come to its end is taken
    over.
    """
    run = journal.create_run(plan.digest, request, json.loads(plan.to_json()))
    if not request.detached:  # else the dispatcher does it, who may have the run already
        resume.adopt_previous_build(workspace, journal, run.id, plan.digest)
    return run


def request_for(plan: Plan, **how: Any) -> Request:
    """The request that a plan was made for."""
    return Request(package=plan.package, variant=plan.variant, platform=plan.platform, **how)


def note_error(journal: Journal, run_id: str, error: FarmError) -> None:
    """Record an error in the journal."""
    journal.event(run_id, EventKind.ERROR, text=str(error)[:KEPT_TEXT], hint=error.hint)


def note_steps(journal: Journal, run_id: str, outcomes: Outcomes) -> None:
    """The steps that were done, into the journal."""
    for step in outcomes.steps:
        journal.event(
            run_id,
            EventKind.STEP,
            name=step.name,
            seconds=round(step.seconds, 3),
            outcome=step.outcome,
            result=step.result,
        )


def finish(journal: Journal, run_id: str, error: FarmError) -> None:
    """Ends a run that failed."""
    # A cancelled run counts as infrastructure too: nothing is said about the build.
    infra = (
        isinstance(error, InfrastructureError | NoRunnerError)
        or error.exit_code == ExitCode.INTERRUPTED
    )
    result: Result = "infra" if infra else "failure"
    journal.finish_run(run_id, result, error.exit_code)


def plan_of(run: Run) -> Plan:
    """The plan of a run; UsageError: it was made by another version of the farm."""
    try:
        return Plan.model_validate(
            {key: value for key, value in run.plan.items() if key != "digest"}
        )
    except ValidationError as error:
        raise UsageError(
            f"the plan of run {run.id} is of another version of the farm: {first_fault(error)}",
            hint="submit the variant again",
        ) from error


def check_detached(workspace: Workspace, wanted: Sequence[tuple[Plan, Request]]) -> None:
    """Check everything that can be known before builds are queued.

    Raises:
        UsageError: There is no such engine, or a needed wheel is not published and no run makes it.
        NoRunnerError: The engine cannot carry one out.
        PublishRefusedError: The name of a wheel is taken.
    """
    for plan, request in wanted:
        check_engine(workspace, request.on, plan)
    warn_of_place(workspace)
    with open_journal(workspace.project, workspace.settings) as journal:
        if wanted:
            preflight.check_index(workspace, wanted[0][1])
        makes = {
            f"{plan.package}=={plan.version} {plan.variant}"
            for plan, request in wanted
            if request.publishes
        }
        for plan, request in wanted:
            preflight.check_plan(workspace, plan, request)
            elsewhere = [need for need in plan.needs if f"{need} {plan.variant}" not in makes]
            missing = needs.not_being_built(journal, plan, elsewhere)
            needs.published_needs(workspace, plan, missing)


def create_detached(workspace: Workspace, wanted: Sequence[tuple[Plan, Request]]) -> list[Run]:
    """Create the runs of checked builds in the journal, for the dispatcher to carry out."""
    requests = {plan.digest: request for plan, request in wanted}
    with open_journal(workspace.project, workspace.settings) as journal:
        # A run finds the makers of what it needs among the runs before it.
        return [
            create(workspace, journal, plan, replace(requests[plan.digest], detached=True))
            for plan in makers_first([plan for plan, _ in wanted])
        ]


@dataclass(frozen=True)
class Cancelled:
    """What `cancel` did: `ended` were cancelled; `too_late` says of each other run why it was not.

    A run that was too late is going on to its end, or has come to it; its wheel may be published.
    """

    ended: tuple[Run, ...]
    too_late: Mapping[str, str]


def cancel(workspace: Workspace, run_ids: Sequence[str]) -> Cancelled:
    """Ask for the end of runs, stop their builds, and wait until they have ended.

    Raises:
        InfrastructureError: An engine does not stop a build, or a run's controller does not end it.
    """
    with open_journal(workspace.project, workspace.settings) as journal:
        runs = [journal.run(run_id) for run_id in run_ids]
        too_late = {}
        to_stop = []
        # The requests first, all of them: a controller that is just submitting reads it after it
        # has a handle.
        for run in runs:
            if run.finished is not None:
                too_late[run.id] = f"it has ended: {state_of(journal, run).phase}"
            elif journal.event_unless(run.id, EventKind.CANCEL, EventKind.PUBLISHING):
                to_stop.append(run)
            else:
                too_late[run.id] = _why_too_late(journal, run)
        for run in to_stop:
            _stop(workspace, journal, run)
        ended = []
        for run in to_stop:
            now = _wait_for_end(journal, run)
            if now.exit_code == ExitCode.INTERRUPTED:
                ended.append(now)
            else:  # its controller had seen no request when the run came to its end
                too_late[run.id] = f"it has ended: {now.result}"
        return Cancelled(tuple(ended), too_late)


def _why_too_late(journal: Journal, run: Run) -> str:
    """Why a run whose wheel goes into the index is not cancelled; without a controller it ends."""
    if journal.claim(run.id):  # its controller is dead, so that nobody else would end the run
        journal.finish_run(run.id, "infra", ExitCode.INTERRUPTED)
        return "its wheel was being published when its controller died; the run is ended now"
    return "its wheel is being published, or is already; the run goes on to its end"


def _stop(workspace: Workspace, journal: Journal, run: Run) -> None:
    """Here, not only by the run's own controller: that may hang, or be gone."""
    for attempt in resume.build_state(workspace, journal, run.id).at_engines:
        try:
            backend = open_backend(workspace, attempt.engine, attempt.runner)
        except NoRunnerError as error:  # its machine is gone: the run ends without it
            text = f"cancelled; its build may go on to its time limit: {error}"
            note_error(journal, run.id, InfrastructureError(text, hint=error.hint))
            continue
        with contextlib.closing(backend):
            engine = backend.engine
            engine.cancel(str(attempt.handle))
            if journal.claim(run.id):  # its controller is dead: no one else will tell
                observed = engine.observe(str(attempt.handle))
                why = f"cancelled; the engine reports it as: {observed.state}"
                journal.set_state(attempt.id, "cancelled", why=why)
                engine.release(str(attempt.handle))
    if journal.claim(run.id):
        journal.finish_run(run.id, "infra", ExitCode.INTERRUPTED)


def _wait_for_end(journal: Journal, run: Run) -> Run:
    deadline = time.monotonic() + CANCEL_S
    while (run := journal.run(run.id)).finished is None:
        if journal.claim(run.id):  # its controller has died since
            journal.finish_run(run.id, "infra", ExitCode.INTERRUPTED)
        elif time.monotonic() > deadline:
            state = state_of(journal, run)
            raise InfrastructureError(
                f"run {run.id} has not ended within {CANCEL_S:.0f} s of the request; it is "
                f"{state.phase}" + (f": {state.text}" if state.text else ""),
                hint=f"the request is kept: process {run.owner.pid} ends the run after the step "
                "that it is at; "
                "where that process hangs, end it and cancel again",
            )
        time.sleep(0.2)
    return run
