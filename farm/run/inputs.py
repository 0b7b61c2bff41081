"""Inputs of a build's job: folders copied in before it starts, and its environment."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from farm.base import resources as shipped
from farm.engines.base import Engine
from farm.plan.file import Plan
from farm.platforms.registry import platform
from farm.run import needs
from farm.run.backends import SCRIPTS
from farm.run.sources import gather
from farm.run.workspace import Workspace


@dataclass
class Inputs:
    """`folders`: in the job -> here; `wheels`: sha256 of the published wheels that it is built against, by name."""

    folders: dict[str, Path]
    wheels: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def gathered(workspace: Workspace, plan: Plan, engine: Engine, folder: Path) -> Iterator[Inputs]:
    """The inputs of a build; its folders are removed when the block ends.

    Sources have gigabytes, and the engine has copied them when its `submit` returns.

    Raises:
        FarmError: A source or a needed wheel cannot be had.
    """
    system = platform(plan.platform)
    made = [folder / name for name in ("sources", "needs")]
    sources, needed = made
    given = Inputs({"/farm/job": folder / "context" / "job"})
    try:
        if not engine.traits.gathers:
            if not system.self_contained:
                cache, mirror = workspace.artifacts / "sources", workspace.settings.debian_mirror
                gather(plan, cache, sources, mirror=mirror, line=workspace.watcher.line)
                given.folders["/farm/source"] = sources
            if plan.installs:
                given.wheels = needs.fetch(workspace, plan, needed)
                given.folders[system.needs_folder] = needed
        if not engine.traits.in_container:  # an image holds them
            given.folders["/farm/scripts"] = shipped.path(workspace.project, SCRIPTS)
        yield given
    finally:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)
