"""The wheels of libraries that a built wheel needs: fetched by file and hash, for verify to follow imports into."""

import shutil
from pathlib import Path

from farm.plan.file import Plan, SourcePlan
from farm.run.sources import fetch
from farm.run.workspace import Workspace


def library_wheels(workspace: Workspace, plan: Plan, folder: Path) -> list[Path]:
    """The plan's wheels of libraries in `folder` under their own names; fetched into the cache of sources once a host.

    Returns `[folder]` for `verify`, which reads those that the wheel requires; nothing where the plan has none.

    Raises:
        InfrastructureError: One cannot be fetched.
        BuildFailedError: What was fetched is not what the plan names.
    """
    if not plan.library_wheels:
        return []
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    # Made anew: verify reads every wheel that it holds.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for wheel in plan.library_wheels:
        source = SourcePlan(kind="wheel", package=wheel.package, file=wheel.file, sha256=wheel.sha256)
        found = fetch(source, cache, mirror=None, line=workspace.watcher.line)
        target = folder / wheel.file
        try:
            target.hardlink_to(found)
        except OSError:  # another file system
            shutil.copyfile(found, target)
    return [folder]
