"""The wheel of an earlier run of the same plan: a new run goes on from there instead of compiling once more."""

import os
import shutil
from pathlib import Path

from farm.run.backends import IMAGE
from farm.run.build import the_wheel
from farm.run.journal import EventKind, Journal, Run, Until
from farm.run.workspace import Workspace

ORDER: tuple[Until, ...] = ("build", "verify", "publish", "smoke")


def take_over(workspace: Workspace, journal: Journal, run_id: str, plan_digest: str) -> Run | None:
    """Puts the build of an earlier run into the folder of a new one; the run that it came from, or None.

    Not of a run that came as far as this one is to come: whoever submits that again wants it built again.
    """
    earlier = journal.of_plan(plan_digest)
    if not earlier:
        return None
    run = journal.run(run_id)
    if run.request.rebuild:
        return None
    for old in earlier:
        folder = workspace.run_folder(old.id)
        same = bool(old.plan.get("library_wheels")) == bool(run.plan.get("library_wheels"))
        if not same or not list((folder / "built/wheel").glob("*.whl")):
            continue
        if old.result == "success" and ORDER.index(old.request.until) >= ORDER.index(run.request.until):
            return None
        _take(folder, workspace.run_folder(run.id))
        if given := journal.happened(old.id, EventKind.INPUTS):
            journal.event(run.id, EventKind.INPUTS, **given.data)
        journal.event(run.id, EventKind.RESUMED, run=old.id)
        return old
    return None


def _take(old: Path, new: Path) -> None:
    """Links where the file system has them; `built` gets its name last, when it is whole."""
    part = new / "built.part"
    shutil.rmtree(part, ignore_errors=True)
    new.mkdir(parents=True, exist_ok=True)
    the_wheel(old / "built/wheel")
    for name in ("build.log", IMAGE):
        if (old / name).exists():
            _link(str(old / name), str(new / name))
    shutil.copytree(old / "built", part, copy_function=_link)
    part.rename(new / "built")


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
    return target
