"""`farm cancel`: stop runs."""

import argparse

from farm.cli.selection import add_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, queued=True)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import ExitCode
    from farm.cli import show
    from farm.cli.project import journal_with_a_run, workspace_of
    from farm.cli.selection import runs_of
    from farm.run.run import cancel

    with journal_with_a_run(args) as journal:  # `cancel` would make a journal where there is none
        named = [run.id for run in runs_of(args, journal)]
    ended = cancel(workspace_of(args), named)
    documents = [{"id": run.id, "result": run.result, "exit_code": run.exit_code} for run in ended]
    if args.json:
        show.json_document(documents[0] if len(args.run) == 1 and not args.queued else documents)
        return 0
    for run in ended:
        # What is published is not taken back: such a run goes on to its end.
        late = "" if run.exit_code == ExitCode.INTERRUPTED else f" before it was cancelled: {run.result}"
        show.say(f"run {run.id} has ended{late}")
    return 0
