"""`farm retry`: the plans of runs that have ended, as new runs; each goes on from the wheel that is there."""

import argparse
from dataclasses import replace

from farm.cli.options import add_detach, add_verbosity
from farm.cli.selection import add_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_runs(parser, failed=True)
    parser.add_argument("--rebuild", action="store_true", help="build again even where the wheel is there")
    add_detach(parser)
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli.execution import hand_over
    from farm.cli.project import journal_with_a_run, workspace_of
    from farm.cli.selection import runs_of
    from farm.run.journal import state_of
    from farm.run.run import create_detached, plan_of

    workspace = workspace_of(args)
    with journal_with_a_run(args) as journal:
        runs = runs_of(args, journal)
        for old in runs:
            if old.finished is None:
                state = state_of(journal, old)
                hint = state.text if state.abandoned else f"farm cancel {old.id}"
                raise UsageError(f"run {old.id} has not ended", hint=hint)
    # The plans as they were, not resolved anew: the matrix may have changed since.
    wanted = [(plan_of(old), replace(old.request, retry_of=old.id, rebuild=args.rebuild)) for old in runs]
    return hand_over(args, workspace, create_detached(workspace, wanted), several=len(args.run) != 1 or args.failed)
