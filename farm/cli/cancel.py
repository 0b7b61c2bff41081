"""`farm cancel`: stop a run."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="run id or a unique prefix of one")


def run(args: argparse.Namespace) -> int:
    from farm.cli import show
    from farm.cli.project import workspace_of
    from farm.pipeline.run import cancel

    ended = cancel(workspace_of(args), args.run)
    if args.json:
        show.json_document({"id": ended.id, "result": ended.result, "exit_code": ended.exit_code})
    else:
        show.say(f"run {ended.id} has ended")
    return 0
