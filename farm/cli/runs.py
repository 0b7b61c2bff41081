"""The commands about runs: status, logs, cancel, retry, dispatch. They go by the journal, so engines do not matter."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

from rich.table import Table
from rich.text import Text

from farm import processes
from farm.cli import show
from farm.cli.project import project_of
from farm.errors import ExitCode, FarmError, InfrastructureError, UsageError
from farm.pipeline.report import Silent
from farm.pipeline.workspace import Workspace, open_journal
from farm.runs import EventKind, Journal, Run, state_of
from farm.runs.progress import progress
from farm.text import plain

PATIENCE_S = 3.0
"""How long a new dispatcher waits for the lock, which a submit holds for a moment to see whether it is held."""
POLL_S = 0.3
COLUMNS = ("run", "package", "variant", "state", "engine", "runner", "why")


def _setting(args: argparse.Namespace) -> Workspace:
    return Workspace(*project_of(args), Silent())


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


# --- what state a run is in


def summary(journal: Journal, run: Run) -> dict[str, Any]:
    """One run in a line: its state, and for what has not ended always a why."""
    state = state_of(journal, run)
    last = state.last
    return {
        "id": run.id,
        "created": run.created,
        "package": run.request.package,
        "variant": run.request.variant,
        "result": run.result,
        "state": str(state.phase),
        "engine": last.engine if last else run.request.on,
        "runner": last.runner if last else None,
        "attempts": len(state.attempts),
        "why": state.text,
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(*COLUMNS, box=None)
    for row in rows:
        words = (row["id"], row["package"], row["variant"], row["state"], row["engine"], row["runner"], row["why"])
        table.add_row(*(Text(plain(str(word or "")).split("\n")[0][:200]) for word in words))
    return table


def cmd_status(args: argparse.Namespace) -> int:
    workspace = _setting(args)
    with open_journal(workspace.project, workspace.settings) as journal:
        if args.watch:
            return _watch(args, journal)
        if args.run:
            return _one(args, journal)
        rows = [summary(journal, run) for run in journal.runs(args.limit)]
        if args.json:
            _print_json(rows)
        else:
            show.OUT.print(_table(rows))
        return 0


def _watch(args: argparse.Namespace, journal: Journal) -> int:
    def rows() -> list[dict[str, Any]]:
        runs = (journal.run(args.run),) if args.run else journal.runs(args.limit)
        return [summary(journal, run) for run in runs]

    from rich.live import Live

    with Live(_table(rows()), console=show.ERR, refresh_per_second=4) as live:
        while any(row["result"] is None for row in rows()):
            live.update(_table(rows()))
            time.sleep(1)
        live.update(_table(rows()))
    if args.json:
        _print_json(rows())
    return 0


def _one(args: argparse.Namespace, journal: Journal) -> int:
    found = journal.run(args.run)
    jobs, events, line = journal.jobs(found.id), journal.events(found.id), summary(journal, found)
    if args.json:
        _print_json(
            {
                **line,
                "finished": found.finished,
                "progress": vars(reached) if (reached := progress(events)) else None,
                "exit_code": found.exit_code,
                "jobs": [{"kind": j.kind, "attempts": [vars(a) for a in j.attempts]} for j in jobs],
                "events": [vars(event) for event in events],
            }
        )
        return 0
    show.say(f"run {found.id}: {line['state']}, {found.plan['package']} {found.plan['version']}")
    if found.finished is None and (reached := progress(events)):
        show.say(f"build: {reached}")
    if found.finished is None and line["why"]:
        show.say(f"why: {plain(line['why'])}")
    attempts = [(j.kind, a.engine, a.runner, a.state, a.result or "", a.why or "") for j in jobs for a in j.attempts]
    show.table("", ("job", "engine", "runner", "state", "result", "why"), attempts)
    steps = [e.data for e in events if e.kind == EventKind.STEP]
    rows = [(s["name"], f"{s['seconds']:.1f}", s["outcome"], s["result"]) for s in steps]
    show.table("", ("step", "seconds", "outcome", "result"), rows)
    return 0


# --- logs


def cmd_logs(args: argparse.Namespace) -> int:
    workspace = _setting(args)
    with open_journal(workspace.project, workspace.settings) as journal:
        newest = journal.runs(1)
        if not args.run and not newest:
            raise UsageError("there is no run yet", hint="farm submit --variant sm35-avx-py311 --package canary")
        found = journal.run(args.run) if args.run else newest[0]
        log = workspace.run_folder(found.id) / "build.log"
        if not log.exists() and not (args.follow and found.finished is None):
            raise UsageError(f"run {found.id} has no build log yet: it did not come to the build")
        for line in _lines(journal, found, log, follow=args.follow):
            sys.stdout.write(plain(line) + "\n")
            sys.stdout.flush()
    return 0


def _lines(journal: Journal, run: Run, log: Path, *, follow: bool) -> Iterator[str]:
    """The lines of a log; one that is written anew after a restart, up to the same place, is not shown twice."""
    rest, offset = b"", 0
    while True:
        ended = not follow or journal.run(run.id).finished is not None
        if log.exists() and log.stat().st_size > offset:
            with log.open("rb") as stream:
                stream.seek(offset)
                rest, more = yield from _whole(stream, rest)
                offset += more
        if ended:
            break
        time.sleep(POLL_S)
    if rest:
        yield rest.decode("utf-8", "replace")


def _whole(stream: IO[bytes], rest: bytes) -> Generator[str, None, tuple[bytes, int]]:
    """Yields whole lines; returns what is left of the last one, and how many bytes were read."""
    count = 0
    while piece := stream.read(1 << 20):
        count += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[-65536:]
        for line in lines:
            yield line.decode("utf-8", "replace")
    return rest, count


# --- what changes a run


def cmd_cancel(args: argparse.Namespace) -> int:
    from farm.pipeline.run import cancel

    run = cancel(_setting(args), args.run)
    if args.json:
        _print_json({"id": run.id, "result": run.result, "exit_code": run.exit_code})
    else:
        show.say(f"run {run.id} has ended")
    return 0


def cmd_retry(args: argparse.Namespace) -> int:
    from farm.pipeline.run import create_detached, plan_of

    workspace = _setting(args)
    with open_journal(workspace.project, workspace.settings) as journal:
        old = journal.run(args.run)
    if old.finished is None:
        raise UsageError(f"run {old.id} has not ended", hint=f"farm cancel {old.id}")
    new = create_detached(workspace, plan_of(old), old.request.model_copy(update={"retry_of": old.id}))
    return detached(args, workspace, new) if args.detach else follow(args, workspace, new)


def cmd_dispatch(args: argparse.Namespace) -> int:
    from farm.pipeline.dispatch import Dispatcher
    from farm.pipeline.dispatch_lock import AlreadyDispatchingError, sole

    workspace = _setting(args)
    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        while True:
            with sole(workspace.artifacts, PATIENCE_S), open_journal(workspace.project, workspace.settings) as journal:
                Dispatcher(workspace, journal, warn=_warn).drain()
            # Whoever saw the lock held has left its run to us, so look once more now that it is not.
            with open_journal(workspace.project, workspace.settings) as journal:
                if not any(run.request.detached for run in journal.open_runs()):
                    return 0
    except AlreadyDispatchingError as error:
        show.say(str(error))
    return 0


def _warn(text: str) -> None:
    """What the journal cannot take goes to the dispatcher's own log."""
    print(f"farm: {plain(text)}", file=sys.stderr, flush=True)


def detached(args: argparse.Namespace, workspace: Workspace, run: Run) -> int:
    """Leaves a run to a dispatcher, which is started if none is at work, and prints its id."""
    _start_dispatcher(workspace)
    if args.json:
        _print_json({"run": run.id})
    else:
        show.say(run.id)
    return 0


def follow(args: argparse.Namespace, workspace: Workspace, run: Run) -> int:
    """Shows why a run waits and then its log, and ends as it ends; Ctrl-C leaves it to the dispatcher.

    Raises:
        InfrastructureError: The dispatcher cannot be started.
    """
    dispatcher = _start_dispatcher(workspace)
    log = workspace.run_folder(run.id) / "build.log"
    show.ERR.print(f"run {run.id}", highlight=False)
    with open_journal(workspace.project, workspace.settings) as journal:
        try:
            _wait_for(journal, run, log, dispatcher)
            for line in _lines(journal, run, log, follow=True):
                show.ERR.print(Text("    " + plain(line)), soft_wrap=True)
        except KeyboardInterrupt:
            show.ERR.print(
                f"run {run.id} continues without this command: `farm logs -f {run.id}` follows it again, "
                f"`farm cancel {run.id}` ends it",
                highlight=False,
                soft_wrap=True,  # commands are copied: no line break within
            )
            return ExitCode.INTERRUPTED
        ended, error = journal.run(run.id), journal.happened(run.id, EventKind.ERROR)
        if args.json:
            _print_json(summary(journal, ended))
        if ended.exit_code and error:
            failed = FarmError(error.data["text"], hint=error.data["hint"])
            show.explain(failed)
        elif not args.json:
            show.say(f"run {run.id}: {ended.result}")
    return int(ended.exit_code or 0)


def _wait_for(journal: Journal, run: Run, log: Path, dispatcher: subprocess.Popen[bytes] | None) -> None:
    """Until the log begins or the run has ended; shows each new reason for the wait."""
    shown = None
    while not log.exists() and journal.run(run.id).finished is None:
        state = state_of(journal, journal.run(run.id))
        text = f"{state.phase}: {state.text}" if state.text else str(state.phase)
        if text != shown:
            shown = text
            show.ERR.print(Text(f"    {plain(text)}"))
        if dispatcher is not None and dispatcher.poll():
            where = _dispatch_log(journal)
            raise InfrastructureError(
                f"run {run.id} is queued, but the dispatcher ended with exit code {dispatcher.returncode}",
                hint=f"{where} says why; then `farm dispatch` and `farm logs -f {run.id}`",
            )
        time.sleep(POLL_S)


def _dispatch_log(journal: Journal) -> Path:
    return journal.path.with_name("dispatch.log")


def _start_dispatcher(workspace: Workspace) -> subprocess.Popen[bytes] | None:
    """Starts a dispatcher, unless one is at work."""
    from farm.pipeline.dispatch_lock import AlreadyDispatchingError, sole

    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        with sole(workspace.artifacts, 0.0):
            pass
    except AlreadyDispatchingError:
        return None
    command = [sys.executable, "-m", "farm.cli.main", "--project", str(workspace.project), "dispatch"]
    with (workspace.artifacts / "dispatch.log").open("ab") as log:
        return subprocess.Popen(  # it outlives this command: a session of its own, no terminal
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(os.environ),
            **processes.APART,  # on Windows it would end with the console window, or by its Ctrl-C
        )
