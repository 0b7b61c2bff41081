"""Commands that end runs or wait for them, by the journal: `farm cancel`, `farm wait`. Engines do
not matter here.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from farm.base.errors import ExitCode, InfrastructureError, UsageError
from farm.base.interrupts import OutputClosed
from farm.cli import show
from farm.cli.selection import journal_with_a_run, runs_of, workspace_of
from farm.cli.status import first_reason, summary_in
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Run
from farm.run.run_state import WINDOW, progress, state_of

if TYPE_CHECKING:
    from farm.cli.live_runs import LiveRuns

POLL_S = 0.3


def ids_of(runs: Iterable[Run]) -> list[str]:
    return [run.id for run in runs]


def run_cancel(args: argparse.Namespace) -> int:
    from farm.run.run import cancel

    with journal_with_a_run(args) as journal:  # `cancel` would make a journal where there is none
        run_ids = ids_of(runs_of(args, journal))
    cancelled = cancel(workspace_of(args), run_ids)
    _print_cancelled(args, cancelled.ended)
    if not run_ids and not args.json:
        show.say("no run is queued")
    if cancelled.too_late:
        texts = [f"run {run_id}: {why}" for run_id, why in cancelled.too_late.items()]
        raise UsageError(
            "too late to cancel: " + "\n".join(texts),
            hint="`farm status RUN` shows how far it is; `farm index yank` hides a wheel that is "
            "published",
        )
    return 0


def _print_cancelled(args: argparse.Namespace, ended: Iterable[Run]) -> None:
    """Print the runs that were cancelled; in JSON one document if one was named, else a list."""
    documents = []
    lines = []
    for run in ended:
        documents.append({"id": run.id, "result": run.result, "exit_code": run.exit_code})
        lines.append(f"run {run.id} is cancelled")
    one_named = len(args.run) == 1 and not args.queued
    if not one_named:
        show.answer(args, documents, lines)
    elif documents:
        show.answer(args, documents[0], lines)


def say_what_goes_on(journal: Journal, run_ids: Iterable[str]) -> int:
    """Say after Ctrl-C which runs go on without this command, and how to follow and end them.

    Returns:
        The exit code of an interrupted command.
    """
    open_ids = [run_id for run_id in run_ids if journal.run(run_id).finished is None]
    names = " ".join(open_ids)
    if not open_ids:
        show.note("farm: interrupted; every run had ended")
        return ExitCode.INTERRUPTED
    if len(open_ids) == 1:
        show.note(f"farm: interrupted; run {names} goes on without this command")
        follow = "farm logs -f"
    else:
        show.note(f"farm: interrupted; {len(open_ids)} runs go on without this command")
        follow = "farm wait"
    show.next_step(f"`{follow} {names}` follows, `farm cancel {names}` ends")
    return ExitCode.INTERRUPTED


def run_wait(args: argparse.Namespace) -> int:
    with journal_with_a_run(args) as journal:
        if args.run:
            run_ids = ids_of(runs_of(args, journal))
        else:
            run_ids = ids_of(journal.open_runs())
        return wait_for_ends(args, journal, run_ids)


def wait_for_ends(args: argparse.Namespace, journal: Journal, run_ids: Iterable[str]) -> int:
    """Wait until runs have ended, and print a line for each that ends.

    Returns:
        The highest of their exit codes; of an interrupted command after Ctrl-C, which ends no run.
    """
    run_ids = list(run_ids)
    try:
        return _wait_for_ends(args, journal, run_ids)
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        return say_what_goes_on(journal, run_ids)


def _wait_for_ends(args: argparse.Namespace, journal: Journal, run_ids: Iterable[str]) -> int:
    waiting = list(run_ids)
    ended = []
    worst = 0
    with _report_of(args) as report:
        while waiting:
            rows = []
            abandoned = []
            for run_id in list(waiting):
                run = journal.run(run_id)
                state = state_of(journal, run)
                row = summary_in(journal, run, state)
                if run.finished is None:
                    rows.append(_with_progress(journal, row))
                    if state.abandoned:
                        abandoned.append(run_id)
                    continue
                waiting.remove(run_id)
                ended.append(row)
                worst = max(worst, int(run.exit_code or 0))
                if not args.json:
                    show.say(_last_line(run, row))
                    sys.stdout.flush()
            report.update(rows)
            if abandoned:
                raise InfrastructureError(
                    f"no dispatcher carries out run {', '.join(abandoned)}",
                    hint="farm dispatch continues detached runs",
                )
            if waiting:
                time.sleep(POLL_S)
    if args.json:
        show.json_document(ended)
    return worst


def _report_of(args: argparse.Namespace) -> "LineReport | LiveRuns":
    """The way in which a command shows what it waits for: a table in a terminal, else lines."""
    quiet = getattr(args, "quiet", False)
    if quiet or args.json or getattr(args, "verbose", False) or not show.on_terminal():
        return LineReport(quiet=quiet)
    from farm.cli.live_runs import LiveRuns  # it imports Rich

    return LiveRuns()


def _last_line(run: Run, row: Mapping[str, Any]) -> str:
    """How a run of a batch ended, and why."""
    text = f"{run.id}  {run.request.package} {run.request.variant}  {row['state']}"
    if run.exit_code and row["why"]:
        text += f": {first_reason(row['why'])}"
    return text


def _with_progress(journal: Journal, row: dict[str, Any]) -> dict[str, Any]:
    """The summary of an open run; where it explains nothing, with how far its build is."""
    text = None
    if row["why"] is None:
        reached = progress(journal.newest(row["id"], EventKind.PROGRESS, WINDOW))
        if reached:
            text = str(reached)
    return {**row, "progress": text}


class LineReport:
    """A line for each new state or reason of a run, for logs; a context manager as the table."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._shown: dict[str, str] = {}  # the newest text of each run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """It holds nothing."""

    def update(self, rows: Iterable[dict[str, Any]]) -> None:
        """Print what is new in the summaries of the runs that have not ended."""
        for row in rows:
            text = row["state"]
            if row["why"]:
                text += f": {row['why']}"
            if text == self._shown.get(row["id"]):
                continue
            self._shown[row["id"]] = text
            if not self._quiet:
                show.note(f"{row['id']}  {row['package']} {row['variant']}  {text}")
