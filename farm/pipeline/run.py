"""The main job: from a plan to a smoke-tested wheel in the index, every step in the journal.

A run whose controller was killed is found again by its plan: the container that still builds, or the wheel that
was collected, is taken up; the short steps after it are done again, since each is idempotent.
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Never

from pydantic import ValidationError

from farm.engines.base import FINAL
from farm.errors import FarmError, InfrastructureError, NoRunnerError, UsageError
from farm.pipeline import needs
from farm.pipeline.backends import check_engine, open_backend
from farm.pipeline.mainjob import CANCEL, MainJob, StillRunningError, Until
from farm.pipeline.report import Outcomes
from farm.pipeline.workspace import Workspace, open_journal
from farm.plan import Plan
from farm.runs import Journal, Result, Run

INTERRUPTED = 130
CANCEL_S = 60.0
KEPT_TEXT = 8000


def submit(
    workspace: Workspace,
    plan: Plan,
    *,
    selectors: Mapping[str, Any],
    until: Until = "smoke",
    on: str = "docker",
    carried: Path | None = None,
) -> Outcomes:
    """Do everything for one plan up to a step; the journal keeps what happened whatever happens.

    `carried`: the folder with the pieces of the wheel, where a bundle's `run` built it on another machine.

    Raises:
        FarmError: A step failed; the class says which, the text says why. A UsageError: a wheel that the build needs
            is not published.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the container was removed.
    """
    check_supported(plan, on)
    needs.published(workspace, plan)
    with open_journal(workspace.project, workspace.settings) as journal:
        run = _take_up(journal, plan) or journal.create_run(plan.digest, selectors, json.loads(plan.to_json()))
        outcomes = Outcomes(run=run.id)
        job = MainJob(workspace, plan, journal, run, outcomes, lambda: open_backend(workspace, on), carried=carried)
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            job.steps(until)
        except FarmError as error:
            note_error(journal, run, error)
            if not isinstance(error, StillRunningError):
                finish(journal, run, error)
            raise
        except KeyboardInterrupt:
            journal.finish_run(run.id, "infra", INTERRUPTED)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
            note_steps(journal, run, job.outcomes)
        journal.finish_run(run.id, "success", 0)
        return job.outcomes


def note_error(journal: Journal, run: Run, error: FarmError) -> None:
    """What went wrong, into the journal."""
    journal.event(run.id, "error", text=str(error)[:KEPT_TEXT], hint=error.hint)


def note_steps(journal: Journal, run: Run, outcomes: Outcomes) -> None:
    """The steps that were done, into the journal."""
    for step in outcomes.steps:
        data: dict[str, Any] = {
            "name": step.name,
            "seconds": round(step.seconds, 3),
            "outcome": step.outcome,
            "result": step.result,
        }
        journal.event(run.id, "step", None, None, **data)


def finish(journal: Journal, run: Run, error: FarmError) -> None:
    """Ends a run that failed."""
    infra = isinstance(error, InfrastructureError | NoRunnerError) or error.exit_code == INTERRUPTED
    result: Result = "infra" if infra else "failure"
    journal.finish_run(run.id, result, error.exit_code)


def check_supported(plan: Plan, on: str = "docker") -> None:
    """Refuses what the engine `on` cannot carry out.

    Raises:
        NoRunnerError: It is built on a Mac, or on Windows, and is not asked for on this Windows machine itself.
    """
    if plan.base is None and not (plan.windows and on == "host" and sys.platform == "win32"):
        script = "build.cmd, which builds it on that machine" if plan.windows else "build.sh, which builds it on a Mac"
        raise NoRunnerError(
            f"{plan.variant} is built on a {plan.platform} host, and no runner of the farm is one",
            hint=f"`farm render` writes job/{script}" + ("; there, `--on host` does" if plan.windows else ""),
        )


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _take_up(journal: Journal, plan: Plan) -> Run | None:
    """The run of a dead controller with the same plan, now ours."""
    run = journal.unfinished(plan.digest)
    if run is not None and run.selectors.get("detached"):
        return None  # the dispatcher's
    return run if run is not None and journal.claim(run.id) else None


def plan_of(run: Run) -> Plan:
    """The plan of a run.

    Raises:
        UsageError: It was made by another version of the farm.
    """
    try:
        return Plan.model_validate({key: value for key, value in run.plan.items() if key != "digest"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"the plan of run {run.id} is of another version of the farm: {where}: {first['msg']}",
            hint="submit the variant again",
        ) from error


def create_detached(
    workspace: Workspace, plan: Plan, *, selectors: Mapping[str, Any], until: Until, on: str, priority: int = 0
) -> Run:
    """A run in the journal for the dispatcher to carry out.

    Raises:
        UsageError: A wheel that the build needs is not published, and no run is at work on it.
        NoRunnerError: No engine can carry it out.
    """
    check_engine(workspace, on)
    check_supported(plan, on)
    asked = {**selectors, "until": until, "on": on, "priority": priority, "detached": True}
    with open_journal(workspace.project, workspace.settings) as journal:
        if not needs.builders(journal.open_runs(), plan):
            needs.published(workspace, plan)
        return journal.create_run(plan.digest, asked, json.loads(plan.to_json()))


def cancel(workspace: Workspace, run_id: str) -> Run:
    """Asks for the end of a run, stops what runs of it, and returns it when it is seen to have ended.

    Raises:
        UsageError: There is no such run, or it has ended.
        InfrastructureError: What runs of it does not stop, or its owner does not notice.
    """
    with open_journal(workspace.project, workspace.settings) as journal:
        run = journal.run(run_id)
        if run.finished is not None:
            raise UsageError(f"run {run.id} has ended: {run.result}")
        journal.event(run.id, CANCEL)
        live = [a for job in journal.jobs(run.id) for a in job.attempts if a.handle and a.state not in FINAL]
        for attempt in live:
            with contextlib.closing(open_backend(workspace, attempt.engine)) as backend:
                engine = backend.engine
                engine.cancel(str(attempt.handle))
                if journal.claim(run.id):  # its controller is dead: nobody else will tell
                    seen = engine.observe(str(attempt.handle))
                    why = f"cancelled; it was seen to have ended: {seen.state}"
                    journal.set_state(attempt.id, "cancelled", why=why)
                    engine.release(str(attempt.handle))
        if journal.claim(run.id):
            journal.finish_run(run.id, "infra", INTERRUPTED)
        deadline = time.monotonic() + CANCEL_S
        while (run := journal.run(run.id)).finished is None:
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"run {run.id}: what ran of it has ended, but its controller ({run.owner.pid}) says nothing",
                    hint="is that process stuck? end it, then cancel again",
                )
            time.sleep(0.2)
        return run
