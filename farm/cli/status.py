"""`farm status`: the runs, their steps, and why a run waits. It goes by the journal, so engines do not matter."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from farm.base.text import duration, plain
from farm.cli import show

if TYPE_CHECKING:
    from farm.run.journal import Journal, Run

COLUMNS = ("run", "package", "variant", "state", "started", "took", "engine", "why")
WHY_WIDTH = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", help="run id or a unique prefix of one (default: the newest runs)")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="number of runs to show (default: 20)")


def run(args: argparse.Namespace) -> int:
    from farm.cli.project import journal_of

    with journal_of(args) as journal:
        if journal is None or not (args.run or journal.runs(1)):
            _nothing(args)
        elif args.run:
            _one(args, journal)
        else:
            rows = [summary(journal, each) for each in journal.runs(args.limit)]
            if args.json:
                show.json_document(rows)
            else:
                show.table("", COLUMNS, map(_cells, rows))
    return 0


def _nothing(args: argparse.Namespace) -> None:
    """No run was made here: that is an answer, and no file is written for it."""
    from farm.base.errors import UsageError

    if args.run:
        raise UsageError(f"no run {args.run!r}: there is no run yet", hint="farm submit --variant …")
    if args.json:
        show.json_document([])
    else:
        show.say("no runs yet")


def summary(journal: "Journal", run: "Run") -> dict[str, Any]:
    """One run in a line: its state, and for what has not ended or failed a why.

    `seconds`, since it was `started`, do not count waiting in the queue.
    """
    from farm.run.journal import EventKind, state_of

    state = state_of(journal, run)
    built = state.build
    began = journal.happened(run.id, EventKind.BEGUN, first=True) if run.request.detached else None
    started = began.time if began else None if run.request.detached else run.created
    took = (_time(run.finished) - _time(started)).total_seconds() if started else 0.0
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
    """Now where there is none."""
    return datetime.now(UTC) if text is None else datetime.fromisoformat(text)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from farm.base.project import LOCAL

    engine = row["engine"] if row["runner"] in (None, LOCAL) else f"{row['engine']}: {row['runner']}"
    started = _time(row["started"]).astimezone().strftime("%Y-%m-%d %H:%M") if row["started"] else ""
    took = duration(row["seconds"]) if row["started"] else ""
    why = _short(row["why"] or "")[:WHY_WIDTH]
    return (row["id"], row["package"], row["variant"], row["state"], started, took, engine, why)


def _short(why: str) -> str:
    """The first line of an error; where that only announces what follows, with the first line of that."""
    first, *more = [plain(text) for text in why.splitlines()] or [""]
    return f"{first} {more[0].strip(' -')}" if more and first.endswith(":") else first


def _one(args: argparse.Namespace, journal: "Journal") -> None:
    from farm.run.journal import EventKind, progress

    found = journal.run(args.run)
    jobs, events, line = journal.jobs(found.id), journal.events(found.id), summary(journal, found)
    reached = progress(events)
    if args.json:
        show.json_document(
            {
                **line,
                "progress": vars(reached) if reached else None,
                "exit_code": found.exit_code,
                "jobs": [{"kind": j.kind, "attempts": [vars(a) for a in j.attempts]} for j in jobs],
                "events": [vars(event) for event in events],
            }
        )
        return
    show.say(f"run {found.id}: {line['state']}, {found.plan['package']} {found.plan['version']}")
    if line["started"]:
        show.say(f"started {_cells(line)[4]}, {'took' if found.finished else 'so far'} {duration(line['seconds'])}")
    if found.finished is None and reached:
        show.say(f"build: {reached}")
    for number, text in enumerate((line["why"] or "").splitlines()):
        show.say(f"why: {text}" if number == 0 else f"    {text}")
    attempts = [(j.kind, a.engine, a.runner, a.state, a.result or "", a.why or "") for j in jobs for a in j.attempts]
    show.table("", ("job", "engine", "runner", "state", "result", "why"), attempts)
    steps = [e.data for e in events if e.kind == EventKind.STEP]
    rows = [(s["name"], f"{s['seconds']:.1f}", s["outcome"], s["result"]) for s in steps]
    show.table("", ("step", "seconds", "outcome", "result"), rows)
