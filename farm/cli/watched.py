"""The main job in the foreground, with its progress and its table."""

import argparse
from pathlib import Path

from farm.cli import show
from farm.cli.watchers import watching
from farm.plan.file import Plan
from farm.plan.settings import Settings
from farm.run.backends import engine_for
from farm.run.journal import EventKind, Until
from farm.run.report import Outcomes
from farm.run.run import submit
from farm.run.workspace import Workspace, journal_path, open_journal

LOOKED_AT = 50
"""The newest runs among which one of the same package is looked for."""


def watched(
    args: argparse.Namespace, project: Path, settings: Settings, plan: Plan, until: Until, pieces: Path | None = None
) -> int:
    """Run the main job up to a step and print its table."""
    with watching(args, usual(project, settings, plan)) as watcher:
        workspace = Workspace(project, settings, watcher)
        result = submit(workspace, plan, until=until, on=engine_for(plan, args.on), pieces=pieces)
    return shown(args, result)


def usual(project: Path, settings: Settings, plan: Plan) -> dict[str, float]:
    """Seconds of each step in the newest run of the package that succeeded; of the same variant where there is one."""
    if not journal_path(project, settings).is_file():
        return {}
    with open_journal(project, settings) as journal:
        # A run that failed took as long as it took to fail: it says nothing of the next.
        same = [r for r in journal.runs(LOOKED_AT) if r.result == "success" and r.request.package == plan.package]
        found = next((r for r in same if r.request.variant == plan.variant), same[0] if same else None)
        if found is None:
            return {}
        steps = [event.data for event in journal.events(found.id) if event.kind == EventKind.STEP]
        return {str(step["name"]): float(step["seconds"]) for step in steps}


def shown(args: argparse.Namespace, result: Outcomes) -> int:
    """The table at the end, JSON, or with --quiet the one line that matters."""
    if args.json:
        show.json_document(result.to_json())
    elif args.quiet:
        show.say(result.pip_line or result.wheel or "")
    else:
        show.outcomes(result)
    return 0
