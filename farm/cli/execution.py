"""Runs as a command carries them out: here, with progress and a table; or left to the dispatcher, and followed."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from farm.base import processes
from farm.base.errors import ExitCode, InfrastructureError
from farm.base.text import plain
from farm.cli import show
from farm.cli.logs import POLL_S, explain_end, lines
from farm.cli.progress import watching
from farm.cli.status import summary
from farm.plan.file import Plan
from farm.plan.settings import Settings
from farm.run.backends import engine_for
from farm.run.dispatch import AlreadyDispatchingError, exclusive
from farm.run.journal import Journal, Run, Until, state_of
from farm.run.run import submit
from farm.run.workspace import Outcomes, Workspace, open_journal


def carry_out(
    args: argparse.Namespace,
    project: Path,
    settings: Settings,
    plan: Plan,
    until: Until,
    *,
    pieces: Path | None = None,
    rebuild: bool = False,
) -> int:
    """Runs the main job here up to a step and prints its table."""
    with watching(args) as watcher:
        workspace = Workspace(project, settings, watcher)
        on = engine_for(plan, args.on)
        result = submit(workspace, plan, until=until, on=on, pieces=pieces, rebuild=rebuild)
    return print_outcomes(args, result)


def print_outcomes(args: argparse.Namespace, result: Outcomes) -> int:
    """The table at the end, JSON, or with --quiet the one line that matters."""
    if args.json:
        show.json_document(result.to_json())
    elif args.quiet:
        show.say(result.pip_line or result.wheel or "")
    else:
        show.outcomes(result)
    return 0


def hand_over(args: argparse.Namespace, workspace: Workspace, runs: Sequence[Run], *, several: bool = False) -> int:
    """Leaves runs to a dispatcher, which is started if none is at work; then prints their ids, or follows them.

    `several`: the command may make several runs, so that its JSON is a list.
    """
    dispatcher = start_dispatcher(workspace)
    if args.detach:
        if args.json:
            several_runs = [{"run": r.id, "package": r.request.package, "variant": r.request.variant} for r in runs]
            show.json_document(several_runs if several else {"run": runs[0].id})
        else:
            for run in runs:
                show.say(run.id)
        return 0
    if not several:
        return follow(args, workspace, runs[0], dispatcher)
    with open_journal(workspace.project, workspace.settings) as journal:
        return wait_for_ends(args, journal, [run.id for run in runs])


def follow(
    args: argparse.Namespace, workspace: Workspace, run: Run, dispatcher: subprocess.Popen[bytes] | None = None
) -> int:
    """Shows why a run waits and then its log, and ends as it ends; Ctrl-C leaves it to the dispatcher.

    Raises:
        InfrastructureError: The dispatcher cannot be started.
    """
    log = workspace.run_folder(run.id) / "build.log"
    with open_journal(workspace.project, workspace.settings) as journal:
        try:
            show.note(f"run {run.id}")
            _wait_for_log(journal, run, log, dispatcher)
            for line in lines(journal, run, log, follow=True):
                if not args.quiet:
                    show.note(f"    {line}")
        except KeyboardInterrupt:
            show.note(
                f"run {run.id} continues without this command: `farm logs -f {run.id}` follows it again, "
                f"`farm cancel {run.id}` ends it"
            )
            return ExitCode.INTERRUPTED
        ended = journal.run(run.id)
        if args.json:
            show.json_document(summary(journal, ended))
        elif not ended.exit_code:
            show.say(f"run {run.id}: {ended.result}")
        explain_end(journal, ended)
    return int(ended.exit_code or 0)


def wait_for_ends(args: argparse.Namespace, journal: Journal, run_ids: Iterable[str]) -> int:
    """Waits until runs have ended, a line for each that ends; returns the highest of their exit codes."""
    waiting, ended, worst = list(run_ids), [], 0
    while waiting:
        for run_id in list(waiting):
            run = journal.run(run_id)
            if run.finished is None:
                continue
            waiting.remove(run_id)
            ended.append(summary(journal, run))
            worst = max(worst, int(run.exit_code or 0))
            if not args.json:
                why = f": {ended[-1]['why'].splitlines()[0]}" if run.exit_code and ended[-1]["why"] else ""
                show.say(f"{run.id}  {run.request.package} {run.request.variant}  {ended[-1]['state']}{why}")
                sys.stdout.flush()
        abandoned = [run_id for run_id in waiting if state_of(journal, journal.run(run_id)).abandoned]
        if abandoned:
            raise InfrastructureError(
                f"nobody carries out run {', '.join(abandoned)}", hint="farm dispatch continues detached runs"
            )
        if waiting:
            time.sleep(POLL_S)
    if args.json:
        show.json_document(ended)
    return worst


def _wait_for_log(journal: Journal, run: Run, log: Path, dispatcher: subprocess.Popen[bytes] | None) -> None:
    """Until the log begins or the run has ended; shows each new reason for the wait."""
    shown = None
    while not log.exists() and journal.run(run.id).finished is None:
        state = state_of(journal, journal.run(run.id))
        text = f"{state.phase}: {state.text}" if state.text else str(state.phase)
        if text != shown:
            shown = text
            show.note(f"    {plain(text)}")
        # Exit code 0 is no failure: it ends so where another dispatcher is at work.
        if dispatcher is not None and dispatcher.poll():
            where = journal.path.with_name("dispatch.log")
            raise InfrastructureError(
                f"run {run.id} is queued, but the dispatcher ended with exit code {dispatcher.returncode}",
                hint=f"{where} says why; then `farm dispatch` and `farm logs -f {run.id}`",
            )
        time.sleep(POLL_S)


def start_dispatcher(workspace: Workspace) -> subprocess.Popen[bytes] | None:
    """Starts a dispatcher, unless one is at work."""
    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        # Held for a moment only, to see whether it is held. A dispatcher that starts just now waits for it:
        # `PATIENCE_S`.
        with exclusive(workspace.artifacts, 0.0):
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
