"""`farm logs`: the build log of a run."""

import argparse
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from farm.base.text import log_line
from farm.cli import show

if TYPE_CHECKING:
    from farm.base.errors import UsageError
    from farm.run.journal import Journal, Run

POLL_S = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from farm.cli.selection import add_runs

    add_runs(parser, failed=True)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new lines until the run ends, and exit with its code"
    )


def run(args: argparse.Namespace) -> int:
    """0, or with `--follow` the highest exit code of the runs."""
    from farm.cli.project import journal_with_a_run, workspace_of
    from farm.cli.selection import runs_of

    with journal_with_a_run(args) as journal:
        newest = not args.run and not args.failed
        runs = journal.runs(1) if newest else runs_of(args, journal)
        worst = 0
        for found in runs:
            if len(runs) > 1:
                show.say(f"==> {found.id}: {found.request.package} {found.request.variant}")
            folder = workspace_of(args).run_folder(found.id)
            log = folder / "build.log"
            if not log.exists() and not (args.follow and found.finished is None):
                if len(runs) == 1:
                    raise _no_log(journal, found, folder)
                show.note(f"farm: {_no_log(journal, found, folder)}")
                continue
            for line in lines(journal, found, log, follow=args.follow):
                show.say(log_line(line))
                sys.stdout.flush()
            if args.follow:
                ended = journal.run(found.id)
                explain_end(journal, ended)
                worst = max(worst, int(ended.exit_code or 0))
    return worst


def explain_end(journal: "Journal", run: "Run") -> None:
    """The error of a run that failed, on standard error."""
    from farm.base.errors import FarmError
    from farm.run.journal import EventKind

    error = journal.happened(run.id, EventKind.ERROR)
    if run.exit_code and error:
        show.explain(FarmError(error.data["text"], hint=error.data["hint"]))


def _no_log(journal: "Journal", run: "Run", folder: Path) -> "UsageError":
    """Why a run has no log: it is gone, or there was none."""
    from farm.base.errors import UsageError
    from farm.run.journal import EventKind

    began = any(attempt.handle for job in journal.jobs(run.id) for attempt in job.attempts)
    began = began or any(e.kind == EventKind.STEP and e.data["name"] == "build" for e in journal.events(run.id))
    hint = f"`farm status {run.id}` shows its steps"
    if began:
        return UsageError(f"the log of run {run.id} was removed with its folder, as `farm clean` does", hint=hint)
    image = folder / "image.log"
    return UsageError(
        f"run {run.id} has no build log: it did not come to the build",
        hint=hint + (f"; the log of its image is {image}" if image.exists() else ""),
    )


def lines(journal: "Journal", run: "Run", log: Path, *, follow: bool) -> Iterator[str]:
    """The lines of a log; one that is written anew after a restart, up to the same place, is not shown twice."""
    rest, offset, alone = b"", 0, False
    while True:
        # Asked before the log is read: what was written up to the end is then printed below.
        now = journal.run(run.id)
        ended = not follow or now.finished is not None
        if log.exists() and log.stat().st_size > offset:
            with log.open("rb") as stream:
                stream.seek(offset)
                rest, more = yield from _whole(stream, rest)
                offset += more
        if ended:
            break
        alone = _warn(journal, now, alone)
        time.sleep(POLL_S)
    if rest:
        yield rest.decode("utf-8", "replace")


def _warn(journal: "Journal", run: "Run", alone: bool) -> bool:
    """Say once that no one carries the run out: its log then stands still until someone goes on with it."""
    from farm.run.journal import state_of

    state = state_of(journal, run)
    if state.abandoned and not alone:
        show.note(f"run {run.id}: {state.text}")
    return state.abandoned


def _whole(stream: IO[bytes], rest: bytes) -> Generator[str, None, tuple[bytes, int]]:
    """Yields whole lines; returns what is left of the last one, and how many bytes were read."""
    count = 0
    while piece := stream.read(1 << 20):
        count += len(piece)
        *whole, rest = (rest + piece).split(b"\n")
        # Of a line without end only the end is kept: it would fill the memory.
        rest = rest[-65536:]
        for line in whole:
            yield line.decode("utf-8", "replace")
    return rest, count
