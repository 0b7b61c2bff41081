"""A run that the dispatcher carries out: left to it, or followed until it ends."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from farm.base import processes
from farm.base.errors import ExitCode, FarmError, InfrastructureError
from farm.cli import show
from farm.cli.logs import POLL_S, lines
from farm.cli.status import summary
from farm.run.dispatch import AlreadyDispatchingError, exclusive
from farm.run.journal import EventKind, Journal, Run, state_of
from farm.run.workspace import Workspace, open_journal


def detached(args: argparse.Namespace, workspace: Workspace, run: Run) -> int:
    """Leaves a run to a dispatcher, which is started if none is at work, and prints its id."""
    start_dispatcher(workspace)
    if args.json:
        show.json_document({"run": run.id})
    else:
        show.say(run.id)
    return 0


def follow(args: argparse.Namespace, workspace: Workspace, run: Run) -> int:
    """Shows why a run waits and then its log, and ends as it ends; Ctrl-C leaves it to the dispatcher.

    Raises:
        InfrastructureError: The dispatcher cannot be started.
    """
    dispatcher = start_dispatcher(workspace)
    log = workspace.run_folder(run.id) / "build.log"
    with open_journal(workspace.project, workspace.settings) as journal:
        try:
            show.note(f"run {run.id}")
            _wait_for(journal, run, log, dispatcher)
            for line in lines(journal, run, log, follow=True):
                if not args.quiet:
                    show.note(f"    {line}")
        except KeyboardInterrupt:
            show.note(
                f"run {run.id} continues without this command: `farm logs -f {run.id}` follows it again, "
                f"`farm cancel {run.id}` ends it"
            )
            return ExitCode.INTERRUPTED
        ended, error = journal.run(run.id), journal.happened(run.id, EventKind.ERROR)
        if args.json:
            show.json_document(summary(journal, ended))
        if ended.exit_code and error:
            show.explain(FarmError(error.data["text"], hint=error.data["hint"]))
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
            show.note(f"    {text}")
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
