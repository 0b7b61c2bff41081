"""`farm logs`: the logs of builds, as they are written."""

import argparse
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from farm.base.errors import FarmError, UsageError
from farm.base.interrupts import OutputClosed
from farm.base.text import log_line
from farm.cli import show
from farm.cli.runs import POLL_S, ids_of, say_what_goes_on
from farm.cli.selection import journal_with_a_run, runs_of, workspace_of
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Run
from farm.run.run_state import state_of


def run_logs(args: argparse.Namespace) -> int:
    """0, or with `--follow` the highest exit code of the runs."""
    with journal_with_a_run(args) as journal:
        runs = list(journal.runs(1))
        if args.run or args.failed:
            runs = runs_of(args, journal)
        worst = 0
        try:
            for run in runs:
                if len(runs) > 1:
                    show.say(f"==> {run.id}: {run.request.package} {run.request.variant}")
                worst = max(worst, _print_log(args, journal, run, alone=len(runs) == 1))
        except OutputClosed:
            raise
        except KeyboardInterrupt:
            return say_what_goes_on(journal, ids_of(runs))
    return worst


def _print_log(args: argparse.Namespace, journal: Journal, run: Run, *, alone: bool) -> int:
    """Print the log of one run.

    Returns:
        The exit code of the run with `--follow`, else 0.

    Raises:
        UsageError: It has no log, and no other run is shown.
    """
    folder = workspace_of(args).run_folder(run.id)
    log = folder / "build.log"
    may_come = args.follow and run.finished is None
    if not log.exists() and not may_come:
        error = _no_log(journal, run, folder)
        if alone:
            raise error
        show.note(f"farm: {error}")
        return 0
    for line in lines(journal, run, log, follow=args.follow):
        show.say(log_line(line))
        sys.stdout.flush()
    if not args.follow:
        return 0
    ended = journal.run(run.id)
    explain_end(journal, ended)
    return int(ended.exit_code or 0)


def explain_end(journal: Journal, run: Run) -> None:
    """The error of a run that failed, on standard error."""
    error = journal.happened(run.id, EventKind.ERROR)
    if run.exit_code and error:
        show.explain(FarmError(error.data["text"], hint=error.data["hint"]))


def _no_log(journal: Journal, run: Run, folder: Path) -> UsageError:
    """Why a run has no log: it is gone, or there was none."""
    hint = f"`farm status {run.id}` shows its steps"
    if _began_to_build(journal, run):
        return UsageError(
            f"the log of run {run.id} was removed with its folder, as `farm clean` does", hint=hint
        )
    image = folder / "image.log"
    if image.exists():
        hint += f"; the log of its image is {image}"
    return UsageError(f"run {run.id} has no build log: it did not come to the build", hint=hint)


def _began_to_build(journal: Journal, run: Run) -> bool:
    for job in journal.jobs(run.id):
        if any(attempt.handle for attempt in job.attempts):
            return True
    for event in journal.events(run.id):
        if event.kind == EventKind.STEP and event.data["name"] == "build":
            return True
    return False


def lines(journal: Journal, run: Run, log: Path, *, follow: bool) -> Iterator[str]:
    """The lines of a log; one that is written anew after a restart, up to the same place, is not
    shown twice.
    """
    partial_line = b""
    offset = 0
    alone = False
    while True:
        # Asked before the log is read: what was written up to the end is then printed below.
        now = journal.run(run.id)
        ended = not follow or now.finished is not None
        if log.exists() and log.stat().st_size > offset:
            with log.open("rb") as stream:
                stream.seek(offset)
                partial_line, consumed = yield from _whole(stream, partial_line)
                offset += consumed
        if ended:
            break
        state = state_of(journal, now)
        # Once: the log stands still until something carries on with the run.
        if state.abandoned and not alone:
            show.note(f"run {run.id}: {state.text}")
        alone = state.abandoned
        time.sleep(POLL_S)
    if partial_line:
        yield partial_line.decode("utf-8", "replace")


def _whole(stream: IO[bytes], partial: bytes) -> Generator[str, None, tuple[bytes, int]]:
    """Yields whole lines; returns what is left of the last one, and how many bytes were read."""
    count = 0
    while piece := stream.read(1 << 20):
        count += len(piece)
        *full_lines, partial = (partial + piece).split(b"\n")
        # Of a line without end only the end is kept: it would fill the memory.
        partial = partial[-65536:]
        for line in full_lines:
            yield line.decode("utf-8", "replace")
    return partial, count
