"""Commands about runs, by the journal: `farm status`, `logs`, `cancel`, `wait`. Engines do not
matter here.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from farm.base.errors import ExitCode, FarmError, InfrastructureError, UsageError
from farm.base.interrupts import OutputClosed
from farm.base.project import LOCAL
from farm.base.text import duration, log_line, plain
from farm.cli import show
from farm.cli.selection import journal_of, journal_with_a_run, runs_of, workspace_of
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Run
from farm.run.run_state import WINDOW, Phase, RunState, progress, state_of
from farm.run.set_aside import set_aside

if TYPE_CHECKING:
    from farm.cli.live_runs import LiveRuns

COLUMNS = ("run", "package", "variant", "state", "started", "took", "engine", "why")
WHY_WIDTH = 200
POLL_S = 0.3


def run_status(args: argparse.Namespace) -> int:
    with journal_of(args) as journal:
        if journal is None or not (args.run or journal.runs(1)):
            if args.run:
                raise UsageError(
                    f"no run {args.run!r}: there is no run yet", hint="farm submit --variant …"
                )
            show.answer(args, [], ["no runs yet"])  # an answer, for which no file is written
        elif args.run:
            _one(args, journal)
        elif args.counts:
            _counts(args, journal)
        else:
            rows = [summary(journal, run) for run in journal.runs(args.limit)]
            if args.json:
                show.json_document(rows)
            else:
                show.table("", COLUMNS, map(_cells, rows))
                for name, machine in set_aside(journal, datetime.now(UTC)).items():
                    show.note(f"farm: runner {name} is {machine.text}")
    return 0


def _counts(args: argparse.Namespace, journal: Journal) -> None:
    """Print how many runs are in each state: few numbers, for a scraper."""
    open_runs = [(run, state_of(journal, run)) for run in journal.open_runs()]
    states = Counter(str(state.phase) for _, state in open_runs)
    ended = journal.results()
    waits = [_age_s(run) for run, state in open_runs if state.phase == Phase.QUEUED]
    resting = set_aside(journal, datetime.now(UTC))
    document = {
        "open": {str(phase): states[str(phase)] for phase in Phase if not phase.ended},
        "ended": {result: ended[result] for result in ("success", "failure", "infra")},
        "abandoned": sum(state.abandoned for _, state in open_runs),
        "longest_wait_s": round(max(waits, default=0.0), 1),
        "machines_set_aside": {name: machine.text for name, machine in resting.items()},
    }
    if args.json:
        show.json_document(document)
        return
    for name in ("open", "ended"):
        numbers = document[name]
        assert isinstance(numbers, dict)
        show.say(f"{name}: " + ", ".join(f"{count} {state}" for state, count in numbers.items()))
    show.say(f"abandoned: {document['abandoned']}")
    show.say(f"longest wait: {duration(max(waits, default=0.0))}")
    for name, machine in resting.items():
        show.say(f"runner {name} is {machine.text}")


def _age_s(run: Run) -> float:
    return (datetime.now(UTC) - _time(run.created)).total_seconds()


def summary(journal: Journal, run: Run) -> dict[str, Any]:
    """One run in a line: its state, and for what has not ended or failed a why.

    `seconds`, since it was `started`, do not count waiting in the queue.
    """
    return _summary(journal, run, state_of(journal, run))


def _summary(journal: Journal, run: Run, state: RunState) -> dict[str, Any]:
    built = state.build
    if run.request.detached:
        began = journal.happened(run.id, EventKind.BEGUN, first=True)
    else:
        began = None
    if began:
        started = began.time
    elif run.request.detached:
        started = None
    else:
        started = run.created
    if started:
        took = (_time(run.finished) - _time(started)).total_seconds()
    else:
        took = 0.0
    return {
        "id": run.id,
        "created": run.created,
        "finished": run.finished,
        "started": started,
        "seconds": round(took, 3),
        "package": run.request.package,
        "variant": run.request.variant,
        "result": run.result,
        "state": str(state.phase),
        "engine": built.engine if built else run.request.on,
        "runner": built.runner if built else None,
        "attempts": len(state.attempts),
        "why": state.text,
    }


def _time(text: str | None) -> datetime:
    return datetime.now(UTC) if text is None else datetime.fromisoformat(text)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["runner"] in (None, LOCAL):
        engine = row["engine"]
    else:
        engine = f"{row['engine']}: {row['runner']}"
    if row["started"]:
        started = _time(row["started"]).astimezone().strftime("%Y-%m-%d %H:%M")
    else:
        started = ""
    took = duration(row["seconds"]) if row["started"] else ""
    why = _short(row["why"] or "")[:WHY_WIDTH]
    return (row["id"], row["package"], row["variant"], row["state"], started, took, engine, why)


def _short(why: str) -> str:
    """The first line of an error; where that only announces what follows, with the first line of
    that.
    """
    first, *further_lines = [plain(text) for text in why.splitlines()] or [""]
    if further_lines and first.endswith(":"):
        return f"{first} {further_lines[0].strip(' -')}"
    return first


def _one(args: argparse.Namespace, journal: Journal) -> None:
    run = journal.run(args.run)
    jobs = journal.jobs(run.id)
    events = journal.events(run.id)
    line = summary(journal, run)
    reached = progress(events)
    if args.json:
        show.json_document(
            {
                **line,
                "progress": vars(reached) if reached else None,
                "exit_code": run.exit_code,
                "jobs": [{"kind": j.kind, "attempts": [vars(a) for a in j.attempts]} for j in jobs],
                "events": [vars(event) for event in events],
            }
        )
        return
    show.say(f"run {run.id}: {line['state']}, {run.plan['package']} {run.plan['version']}")
    if line["started"]:
        show.say(
            f"started {_cells(line)[4]}, {'took' if run.finished else 'so far'} "
            f"{duration(line['seconds'])}"
        )
    if run.finished is None and reached:
        show.say(f"build: {reached}")
    for number, text in enumerate((line["why"] or "").splitlines()):
        show.say(f"why: {text}" if number == 0 else f"    {text}")
    attempts = [
        (j.kind, a.engine, a.runner, a.state, a.result or "", a.why or "")
        for j in jobs
        for a in j.attempts
    ]
    show.table("", ("job", "engine", "runner", "state", "result", "why"), attempts)
    steps = [e.data for e in events if e.kind == EventKind.STEP]
    rows = [(s["name"], f"{s['seconds']:.1f}", s["outcome"], s["result"]) for s in steps]
    show.table("", ("step", "seconds", "outcome", "result"), rows)


def run_logs(args: argparse.Namespace) -> int:
    """0, or with `--follow` the highest exit code of the runs."""
    with journal_with_a_run(args) as journal:
        newest = not args.run and not args.failed
        runs = journal.runs(1) if newest else runs_of(args, journal)
        worst = 0
        for followed_run in runs:
            if len(runs) > 1:
                show.say(
                    f"==> {followed_run.id}: {followed_run.request.package} "
                    f"{followed_run.request.variant}"
                )
            folder = workspace_of(args).run_folder(followed_run.id)
            log = folder / "build.log"
            if not log.exists() and not (args.follow and followed_run.finished is None):
                if len(runs) == 1:
                    raise _no_log(journal, followed_run, folder)
                show.note(f"farm: {_no_log(journal, followed_run, folder)}")
                continue
            try:
                for line in lines(journal, followed_run, log, follow=args.follow):
                    show.say(log_line(line))
                    sys.stdout.flush()
            except OutputClosed:
                raise
            except KeyboardInterrupt:
                return say_what_goes_on(journal, [run.id for run in runs])
            if args.follow:
                ended = journal.run(followed_run.id)
                explain_end(journal, ended)
                worst = max(worst, int(ended.exit_code or 0))
    return worst


def explain_end(journal: Journal, run: Run) -> None:
    """The error of a run that failed, on standard error."""
    error = journal.happened(run.id, EventKind.ERROR)
    if run.exit_code and error:
        show.explain(FarmError(error.data["text"], hint=error.data["hint"]))


def _no_log(journal: Journal, run: Run, folder: Path) -> UsageError:
    """Why a run has no log: it is gone, or there was none."""
    began = any(attempt.handle for job in journal.jobs(run.id) for attempt in job.attempts)
    began = began or any(
        e.kind == EventKind.STEP and e.data["name"] == "build" for e in journal.events(run.id)
    )
    hint = f"`farm status {run.id}` shows its steps"
    if began:
        return UsageError(
            f"the log of run {run.id} was removed with its folder, as `farm clean` does", hint=hint
        )
    image = folder / "image.log"
    return UsageError(
        f"run {run.id} has no build log: it did not come to the build",
        hint=hint + (f"; the log of its image is {image}" if image.exists() else ""),
    )


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
        if (
            state.abandoned and not alone
        ):  # said once: the log stands still until someone goes on with the run
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


def run_cancel(args: argparse.Namespace) -> int:
    from farm.run.run import cancel

    with journal_with_a_run(args) as journal:  # `cancel` would make a journal where there is none
        run_ids = [run.id for run in runs_of(args, journal)]
    cancelled = cancel(workspace_of(args), run_ids)
    one_named = len(args.run) == 1 and not args.queued
    lines = [f"run {run.id} is cancelled" for run in cancelled.ended]
    documents = [
        {"id": run.id, "result": run.result, "exit_code": run.exit_code} for run in cancelled.ended
    ]
    if not run_ids:
        lines = ["no run is queued"]
    if documents or not one_named:
        show.answer(args, documents[0] if one_named else documents, lines)
    if cancelled.too_late:
        texts = [f"run {run_id}: {why}" for run_id, why in cancelled.too_late.items()]
        raise UsageError(
            "too late to cancel: " + "\n".join(texts),
            hint="`farm status RUN` shows how far it is; `farm index yank` hides a wheel that is "
            "published",
        )
    return 0


def say_what_goes_on(journal: Journal, run_ids: Iterable[str]) -> int:
    """Say after Ctrl-C which runs go on without this command, and how to follow and end them.

    Returns:
        The exit code of an interrupted command.
    """
    open_ids = [run_id for run_id in run_ids if journal.run(run_id).finished is None]
    names = " ".join(open_ids)
    if len(open_ids) == 1:
        show.note(f"farm: interrupted; run {names} goes on without this command")
    elif open_ids:
        show.note(f"farm: interrupted; {len(open_ids)} runs go on without this command")
    else:
        show.note("farm: interrupted; every run had ended")
    if open_ids:
        follow = "farm logs -f" if len(open_ids) == 1 else "farm wait"
        show.note(f"  next: `{follow} {names}` follows, `farm cancel {names}` ends")
    return ExitCode.INTERRUPTED


def run_wait(args: argparse.Namespace) -> int:
    with journal_with_a_run(args) as journal:
        runs = runs_of(args, journal) if args.run else journal.open_runs()
        return wait_for_ends(args, journal, [run.id for run in runs])


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
                row = _summary(journal, run, state)
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
                    f"nobody carries out run {', '.join(abandoned)}",
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
        text += f": {_short(row['why'])}"
    return text


def _with_progress(journal: Journal, row: dict[str, Any]) -> dict[str, Any]:
    """The summary of an open run; where it explains nothing, with how far its build is."""
    if row["why"] is None:
        reached = progress(journal.newest(row["id"], EventKind.PROGRESS, WINDOW))
        return {**row, "progress": str(reached) if reached else None}
    return {**row, "progress": None}


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
            text = f"{row['state']}: {row['why']}" if row["why"] else row["state"]
            if text == self._shown.get(row["id"]):
                continue
            self._shown[row["id"]] = text
            if not self._quiet:
                show.note(f"{row['id']}  {row['package']} {row['variant']}  {text}")
