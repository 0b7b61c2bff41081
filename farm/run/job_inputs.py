"""The folders that a build's job is given: its sources, the wheels that it needs, the scripts."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.utils import canonicalize_name

from farm.base import resources
from farm.engines.base import Engine
from farm.plan.file import Plan, SourcePlan
from farm.plan.platforms.base import platform
from farm.run.download import fetch
from farm.run.needs import fetch_needs
from farm.run.sources import gather
from farm.run.workspace import Workspace
from farm.wheel.archive import Archive
from farm.wheel.metadata import read_dist_info
from farm.wheel.needs import required

SCRIPTS = "dockerfiles/scripts"


def library_wheels(workspace: Workspace, plan: Plan, wheel: Path, folder: Path) -> list[Path]:
    """Those of the plan's wheels of libraries that `wheel` requires, fetched; `[folder]` for
    `verify`, or nothing.
    """
    if not plan.library_wheels:
        return []
    cache = workspace.artifacts / "sources"
    with Archive(wheel) as archive:
        required_names = required(read_dist_info(archive))
    cache.mkdir(parents=True, exist_ok=True)
    # Made anew: verify reads every wheel that it holds.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for library in plan.library_wheels:
        if canonicalize_name(library.package) not in required_names:
            continue
        source = SourcePlan(
            kind="wheel", package=library.package, file=library.file, sha256=library.sha256
        )
        cached = fetch(source, cache, mirror=None, line=workspace.watcher.line)
        target = folder / library.file
        try:
            target.hardlink_to(cached)
        except OSError:  # another file system
            shutil.copyfile(cached, target)
    return [folder]


@dataclass
class JobInputs:
    """`folders`: in the job -> here; `wheels`: sha256 of the published wheels that it is built
    against, by name.
    """

    folders: dict[str, Path]
    wheels: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def gathered(workspace: Workspace, plan: Plan, engine: Engine, folder: Path) -> Iterator[JobInputs]:
    """The inputs of a build; its folders go at the end: sources have gigabytes, and `submit` has
    copied them.
    """
    system = platform(plan.platform)
    subfolders = [folder / name for name in ("sources", "needs")]
    sources, needed = subfolders
    job_inputs = JobInputs({"/farm/job": folder / "context" / "job"})
    try:
        if not engine.traits.gathers:
            if not system.self_contained:
                cache = workspace.artifacts / "sources"
                mirror = workspace.settings.debian_mirror
                gather(plan, cache, sources, mirror=mirror, line=workspace.watcher.line)
                job_inputs.folders["/farm/source"] = sources
            if plan.installs:
                job_inputs.wheels = fetch_needs(workspace, plan, needed)
                job_inputs.folders[system.needs_folder] = needed
        if not engine.traits.in_container:  # an image holds them
            job_inputs.folders["/farm/scripts"] = resources.path(workspace.project, SCRIPTS)
        yield job_inputs
    finally:
        for subfolder in subfolders:
            shutil.rmtree(subfolder, ignore_errors=True)
