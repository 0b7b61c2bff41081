"""`farm dispatch`: the scheduler in the foreground."""

import argparse
import contextlib

PATIENCE_S = 3.0
"""How long a new dispatcher waits for the lock, which a submit holds for a moment to see whether it is held."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options of its own."""


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.project import workspace_of
    from farm.run.dispatch import AlreadyDispatchingError, Dispatcher, exclusive
    from farm.run.workspace import open_journal

    workspace = workspace_of(args)
    workspace.artifacts.mkdir(parents=True, exist_ok=True)
    try:
        while True:
            with (
                exclusive(workspace.artifacts, PATIENCE_S),
                open_journal(workspace.project, workspace.settings) as journal,
            ):
                Dispatcher(workspace, journal, warn=_warn).drain()
            # Whoever saw the lock held has left its run to us, so look once more now that it is not.
            with open_journal(workspace.project, workspace.settings) as journal:
                if not any(run.request.detached for run in journal.open_runs()):
                    return 0
    except AlreadyDispatchingError as error:
        show.say(str(error))
    return 0


def _warn(text: str) -> None:
    """Write to the dispatcher's own log where the journal cannot be written; on a full disk the runs go on without."""
    from farm.cli import output, show

    with contextlib.suppress(output.OutputFailedError):
        show.note(f"farm: {text}")
