"""`farm cancel`: stop a run."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="run id or a unique prefix of one")


def run(args: argparse.Namespace) -> int:
    from farm.base.errors import ExitCode
    from farm.cli import show
    from farm.cli.project import journal_with_a_run, workspace_of
    from farm.run.run import cancel

    with journal_with_a_run(args):  # `cancel` would make a journal where there is none
        ended = cancel(workspace_of(args), args.run)
    if args.json:
        show.json_document({"id": ended.id, "result": ended.result, "exit_code": ended.exit_code})
    else:
        # What is published is not taken back: such a run goes on to its end.
        late = "" if ended.exit_code == ExitCode.INTERRUPTED else f" before it was cancelled: {ended.result}"
        show.say(f"run {ended.id} has ended{late}")
    return 0
