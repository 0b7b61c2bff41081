"""`farm retry`: the plan of a run that has ended, as a new run."""

import argparse
from dataclasses import replace

from farm.cli.options import add_detach, add_verbosity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="run id or a unique prefix of one")
    add_detach(parser)
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import UsageError
    from farm.cli.followed import detached, follow
    from farm.cli.project import journal_with_a_run, workspace_of
    from farm.run.journal import state_of
    from farm.run.run import create_detached, plan_of

    workspace = workspace_of(args)
    with journal_with_a_run(args) as journal:
        old = journal.run(args.run)
        state = state_of(journal, old)
    if old.finished is None:
        hint = state.text if state.abandoned else f"farm cancel {old.id}"
        raise UsageError(f"run {old.id} has not ended", hint=hint)
    # The plan as it was, not resolved anew: the matrix may have changed since.
    new = create_detached(workspace, plan_of(old), replace(old.request, retry_of=old.id))
    return detached(args, workspace, new) if args.detach else follow(args, workspace, new)
