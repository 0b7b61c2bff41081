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
    from farm.run.journal import Journal, Run

POLL_S = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="run id or a unique prefix of one (default: the newest run)")
    parser.add_argument("-f", "--follow", action="store_true", help="print new lines until the run has ended")


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli.project import journal_with_a_run, workspace_of

    with journal_with_a_run(args) as journal:
        found = journal.run(args.run) if args.run else journal.runs(1)[0]
        log = workspace_of(args).run_folder(found.id) / "build.log"
        if not log.exists() and not (args.follow and found.finished is None):
            image = log.with_name("image.log")
            raise UsageError(
                f"run {found.id} has no build log yet: it did not come to the build",
                hint=f"`farm status {found.id}` shows its steps"
                + (f"; the log of its image is {image}" if image.exists() else ""),
            )
        for line in lines(journal, found, log, follow=args.follow):
            show.say(log_line(line))
            sys.stdout.flush()
    return 0


def lines(journal: "Journal", run: "Run", log: Path, *, follow: bool) -> Iterator[str]:
    """The lines of a log; one that is written anew after a restart, up to the same place, is not shown twice."""
    rest, offset, told = b"", 0, False
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
        told = _tell(journal, now, told)
        time.sleep(POLL_S)
    if rest:
        yield rest.decode("utf-8", "replace")


def _tell(journal: "Journal", run: "Run", told: bool) -> bool:
    """Says once that no one carries the run out: its log then stands still until someone goes on with it."""
    from farm.run.journal import state_of

    state = state_of(journal, run)
    if state.abandoned and not told:
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
