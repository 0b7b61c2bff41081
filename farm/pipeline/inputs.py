"""What a build's job is given: folders copied in before it starts, and its environment."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from farm.engines.base import Engine
from farm.pipeline import needs, packs
from farm.pipeline.backends import SCRIPTS
from farm.pipeline.workspace import Workspace
from farm.plan import Plan
from farm.platforms.registry import platform
from farm.sources import gather


@contextlib.contextmanager
def gathered(
    workspace: Workspace, plan: Plan, engine: Engine, folder: Path, say: Callable[[str], None]
) -> Iterator[tuple[dict[str, Path], dict[str, str]]]:
    """The inputs of a build (folder in the job -> folder here) and its environment; removed when the block ends.

    Sources and packs have gigabytes, and the engine has copied them when its `submit` returns.

    Raises:
        FarmError: A source or a needed wheel cannot be had.
    """
    system = platform(plan.platform)
    made = [folder / name for name in ("sources", "needs", "packs")]
    sources, needed, shared = made
    inputs, environment = {"/farm/job": folder / "context" / "job"}, {}
    try:
        if not engine.traits.gathers:
            if not system.self_contained:
                cache, mirror = workspace.artifacts / "sources", workspace.settings.debian_mirror
                gather(plan, cache, sources, mirror=mirror, line=workspace.watcher.line)
                inputs["/farm/source"] = sources
            if plan.needs:
                needs.fetch(workspace, plan, needed)
                inputs[system.needs_folder] = needed
            if packs.wanted(workspace, plan):
                packs.prepare(workspace, plan, engine, shared, say)
                inputs[packs.INPUT] = shared
                environment = dict(packs.ENVIRONMENT)
        if not engine.traits.in_container:  # an image holds them
            inputs["/farm/scripts"] = workspace.project / SCRIPTS
        yield inputs, environment
    finally:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)
