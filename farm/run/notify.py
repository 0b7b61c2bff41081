"""The command of `notify:` in ci/farm.yaml, which hears of each run that ends."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farm.base import processes
from farm.run.journal import Journal
from farm.run.journal_records import EventKind
from farm.run.run_state import state_of

LOG = "notify.log"


def document(journal: Journal, run_id: str, folder: Path) -> dict[str, Any]:
    """Return what the command reads: one JSON document on its standard input."""
    run = journal.run(run_id)
    state = state_of(journal, run)
    return {
        "run": run.id,
        "package": run.request.package,
        "version": run.plan.get("version"),
        "variant": run.request.variant,
        "platform": run.request.platform,
        "engine": run.request.on,
        "created": run.created,
        "finished": run.finished,
        "state": str(state.phase),
        "result": run.result,
        "exit_code": run.exit_code,
        "why": state.text,
        "folder": str(folder),
    }


def notify(command: Sequence[str], journal: Journal, run_id: str, artifacts: Path) -> None:
    """Start the command, without a shell and without waiting for it.

    Its output goes to `artifacts/notify.log`. A command that cannot be started is an event of the
    run: it changes nothing about the run's end.
    """
    text = json.dumps(document(journal, run_id, artifacts / "runs" / run_id)) + "\n"
    try:
        with tempfile.TemporaryFile() as stdin, (artifacts / LOG).open("ab") as log:
            stdin.write(text.encode())
            stdin.seek(0)
            process = subprocess.Popen(
                list(command), stdin=stdin, stdout=log, stderr=log, **processes.APART
            )
    except OSError as error:
        journal.event(run_id, EventKind.NOTIFY, error=f"{command[0]} cannot be started: {error}")
    else:
        # Nobody waits for it here; a process that is never waited for would stay as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        journal.event(run_id, EventKind.NOTIFY, command=list(command))
