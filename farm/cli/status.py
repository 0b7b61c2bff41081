"""`farm status`: the newest runs, one run, or how many there are in each state."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from farm.base.errors import UsageError
from farm.base.project import LOCAL
from farm.base.text import duration, plain
from farm.cli import show
from farm.cli.selection import journal_of
from farm.run.journal import Journal
from farm.run.journal_records import EventKind, Job, Run
from farm.run.run_state import Phase, Progress, RunState, progress, state_of
from farm.run.set_aside import set_aside

COLUMNS = ("run", "package", "variant", "state", "started", "took", "engine", "why")
WHY_WIDTH = 200


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
            _newest(args, journal)
    return 0


def _newest(args: argparse.Namespace, journal: Journal) -> None:
    """Print the newest runs, a line each."""
    rows = [summary(journal, run) for run in journal.runs(args.limit)]
    if args.json:
        show.json_document(rows)
        return
    show.table("", COLUMNS, map(_cells, rows))
    for name, machine in set_aside(journal, datetime.now(UTC)).items():
        show.note(f"farm: runner {name} is {machine.text}")


def _counts(args: argparse.Namespace, journal: Journal) -> None:
    """Print how many runs are in each state: few numbers, for a scraper."""
    phases: Counter[str] = Counter()
    abandoned = 0
    longest_wait = 0.0
    for run in journal.open_runs():
        state = state_of(journal, run)
        phases[str(state.phase)] += 1
        abandoned += state.abandoned
        if state.phase == Phase.QUEUED:
            longest_wait = max(longest_wait, _age_s(run))
    results = journal.results()
    open_counts = {str(phase): phases[str(phase)] for phase in Phase if not phase.ended}
    ended_counts = {result: results[result] for result in ("success", "failure", "infra")}
    resting = set_aside(journal, datetime.now(UTC))
    if args.json:
        document = {
            "open": open_counts,
            "ended": ended_counts,
            "abandoned": abandoned,
            "longest_wait_s": round(longest_wait, 1),
            "machines_set_aside": {name: machine.text for name, machine in resting.items()},
        }
        show.json_document(document)
        return
    show.say(f"open: {_counts_text(open_counts)}")
    show.say(f"ended: {_counts_text(ended_counts)}")
    show.say(f"abandoned: {abandoned}")
    show.say(f"longest wait: {duration(longest_wait)}")
    for name, machine in resting.items():
        show.say(f"runner {name} is {machine.text}")


def _counts_text(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in numbers.items())


def _age_s(run: Run) -> float:
    return (datetime.now(UTC) - _time(run.created)).total_seconds()


def summary(journal: Journal, run: Run) -> dict[str, Any]:
    """One run in a line: its state, and for what has not ended or failed a why.

    `seconds`, since it was `started`, do not count waiting in the queue.
    """
    return summary_in(journal, run, state_of(journal, run))


def summary_in(journal: Journal, run: Run, state: RunState) -> dict[str, Any]:
    """The summary of a run whose state was read already."""
    started = _started(journal, run)
    took = 0.0
    if started:
        took = (_time(run.finished) - _time(started)).total_seconds()
    engine = run.request.on
    runner = None
    if state.build:
        engine = state.build.engine
        runner = state.build.runner
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
        "engine": engine,
        "runner": runner,
        "attempts": len(state.attempts),
        "why": state.text,
    }


def _started(journal: Journal, run: Run) -> str | None:
    """When work on a run began; None while it waits for a dispatcher."""
    if not run.request.detached:
        return run.created
    began = journal.happened(run.id, EventKind.BEGUN, first=True)
    if began is None:
        return None
    return began.time


def _time(text: str | None) -> datetime:
    """A time of the journal; now where there is none yet."""
    if text is None:
        return datetime.now(UTC)
    return datetime.fromisoformat(text)


def _local_time(text: str) -> str:
    return _time(text).astimezone().strftime("%Y-%m-%d %H:%M")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    engine = row["engine"]
    if row["runner"] not in (None, LOCAL):
        engine = f"{engine}: {row['runner']}"
    started = ""
    took = ""
    if row["started"]:
        started = _local_time(row["started"])
        took = duration(row["seconds"])
    why = first_reason(row["why"] or "")[:WHY_WIDTH]
    return (row["id"], row["package"], row["variant"], row["state"], started, took, engine, why)


def first_reason(why: str) -> str:
    """The first line of an error; where that only announces what follows, with the first line of
    that.
    """
    first, *further_lines = [plain(text) for text in why.splitlines()] or [""]
    if further_lines and first.endswith(":"):
        return f"{first} {further_lines[0].strip(' -')}"
    return first


def _one(args: argparse.Namespace, journal: Journal) -> None:
    """Print what the journal has of one run."""
    run = journal.run(args.run)
    jobs = journal.jobs(run.id)
    events = journal.events(run.id)
    line = summary(journal, run)
    reached = progress(events)
    if args.json:
        job_documents = []
        for job in jobs:
            job_documents.append({"kind": job.kind, "attempts": list(map(vars, job.attempts))})
        document = {
            **line,
            "progress": None,
            "exit_code": run.exit_code,
            "jobs": job_documents,
            "events": list(map(vars, events)),
        }
        if reached:
            document["progress"] = vars(reached)
        show.json_document(document)
        return

    _print_head(run, line, reached)
    show.table("", ("job", "engine", "runner", "state", "result", "why"), _attempt_rows(jobs))
    step_rows = []
    for event in events:
        if event.kind == EventKind.STEP:
            step = event.data
            seconds = f"{step['seconds']:.1f}"
            step_rows.append((step["name"], seconds, step["outcome"], step["result"]))
    show.table("", ("step", "seconds", "outcome", "result"), step_rows)


def _print_head(run: Run, line: Mapping[str, Any], reached: Progress | None) -> None:
    """The lines above the tables of one run: its state, its times and why it is so."""
    show.say(f"run {run.id}: {line['state']}, {run.plan['package']} {run.plan['version']}")
    if line["started"]:
        verb = "so far"
        if run.finished:
            verb = "took"
        show.say(f"started {_local_time(line['started'])}, {verb} {duration(line['seconds'])}")
    if run.finished is None and reached:
        show.say(f"build: {reached}")
    start = "why: "
    for text in (line["why"] or "").splitlines():
        show.say(f"{start}{text}")
        start = "    "


def _attempt_rows(jobs: Sequence[Job]) -> Iterator[tuple[str, ...]]:
    for job in jobs:
        for attempt in job.attempts:
            yield (
                job.kind,
                attempt.engine,
                attempt.runner,
                attempt.state,
                attempt.result or "",
                attempt.why or "",
            )
