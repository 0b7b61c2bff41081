"""The main job in the foreground, with its progress and its table."""

import argparse
import os
from pathlib import Path

from farm.cli import show
from farm.pipeline.backends import engine_for
from farm.pipeline.report import Outcomes
from farm.pipeline.run import submit
from farm.pipeline.workspace import Workspace
from farm.plan import Plan
from farm.runs import Until
from farm.settings import Settings


def watched(
    args: argparse.Namespace, project: Path, settings: Settings, plan: Plan, until: Until, pieces: Path | None = None
) -> int:
    """Run the main job up to a step and print its table."""
    terminal = show.ERR.is_terminal and not os.environ.get("CI")
    watcher = show.TerminalWatcher() if terminal else show.LogWatcher()
    try:
        workspace = Workspace(project, settings, watcher)
        result = submit(workspace, plan, until=until, on=engine_for(plan, args.on), pieces=pieces)
    finally:
        if isinstance(watcher, show.TerminalWatcher):
            watcher.close()
    return shown(args, result)


def shown(args: argparse.Namespace, result: Outcomes) -> int:
    """The table at the end, or JSON."""
    if args.json:
        show.json_document(result.to_json())
    else:
        show.outcomes(result)
    return 0
