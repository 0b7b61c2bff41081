"""The published wheels that a build needs, of the same variant: torch for torchvision and torchaudio."""

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from farm.base.errors import InfrastructureError, UsageError
from farm.base.retries import retry_while_open
from farm.base.tags import serves
from farm.index.backends import open_store
from farm.index.layout import json_key, wheel_key
from farm.index.pages import File, parse_page
from farm.index.stores import Store
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import names, recipe
from farm.platforms.facts import facts
from farm.run import sources
from farm.run.journal import Journal, OpenRun
from farm.run.workspace import Workspace

PRODUCT = ("package", "version", "variant", "platform")
"""The fields of a plan by which another plan's need finds its run."""


class Makers:
    """Which of the open runs will publish what a plan needs."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, Any, Any], set[str]] = defaultdict(set)

    def add(self, run: OpenRun) -> None:
        if run.request.publishes:
            package, version, variant, platform = (run.about.get(field) for field in PRODUCT)
            self._runs[f"{package}=={version}", variant, platform].add(run.id)

    def of(self, needs: Iterable[str], variant: str, platform: str) -> frozenset[str]:
        """The ids of the runs that make the needs (`torch==2.0.1+…`) of a plan."""
        return frozenset(run for need in needs for run in self._runs.get((need, variant, platform), ()))


def is_being_built(journal: Journal, plan: Plan) -> bool:
    """True if an open run will publish what the plan needs."""
    if not plan.needs:
        return False
    makers = Makers()
    for run in journal.open_after("", PRODUCT):
        makers.add(run)
    return bool(makers.of(plan.needs, plan.variant, plan.platform))


def published(workspace: Workspace, plan: Plan) -> dict[str, File]:
    """The wheel of each of the plan's needs, by its requirement, as the index offers it.

    Raises:
        UsageError: One is not published; the hint is the command that builds it.
        InfrastructureError: The index does not answer, or holds a page that is not one of ours.
    """
    if not plan.needs:
        return {}  # most builds: the index is not even opened
    return _published(open_store(workspace.index_url), plan, workspace.project)


def _published(store: Store, plan: Plan, project: Path) -> dict[str, File]:
    return {need: _find(store, plan, Requirement(need), project) for need in plan.needs}


def _find(store: Store, plan: Plan, need: Requirement, project: Path) -> File:
    key = json_key(plan.parsed_variant.group, canonicalize_name(need.name))
    page = store.get(key)
    # A page may list wheels of several Pythons, and yanked ones.
    for file in parse_page(page.data, key).files if page else ():
        if file.url is not None and file.yanked is False and _fits(file.filename, plan, need):
            return file
    raise UsageError(
        f"{plan.package} is built against {need}, and the index has no such wheel for {plan.variant}",
        hint=f"build it first: farm submit {_how(plan, need, project)}",
    )


def _how(plan: Plan, need: Requirement, project: Path) -> str:
    """The options that make it: by the name of its recipe, from the same channel where that has it."""
    channel = load_matrix(project).channels.get(plan.channel)
    called = [name for name in names() if recipe(name).package == need.name]
    listed = [name for name in called if channel and name in channel.packages]
    package = (listed or [name for name in called if name == need.name] or called or [need.name])[0]
    chosen = f"--variant {plan.variant} --package {package} --platform {plan.platform}"
    if listed:
        return f"{chosen} --channel {plan.channel}"
    torch = plan.options.get("torch")
    return f"{chosen} --torch {torch}" if need.name == "torch" and torch else chosen


def _fits(filename: str, plan: Plan, need: Requirement) -> bool:
    _, version, _, tags = parse_wheel_filename(filename)
    return need.specifier.contains(version) and any(
        serves(tag.interpreter, tag.abi, plan.parsed_variant.python)
        and facts(plan.platform).fits(tag.platform, plan.machine)
        for tag in tags
    )


def fetch(workspace: Workspace, plan: Plan, dest: Path) -> dict[str, str]:
    """Put the wheels that the build imports into the folder `dest`; returns the sha256 of the farm's own by file name.

    Raises:
        UsageError: One is not published.
        InfrastructureError: An index does not answer, or a wheel there does not match its page.
        BuildFailedError: A wheel of the Python index is not the one that the plan names.
    """
    dest.mkdir(parents=True, exist_ok=True)
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    for wheel in plan.build_requires:
        shutil.copyfile(sources.fetch(wheel, cache, mirror=None, line=workspace.watcher.line), dest / str(wheel.file))
    if not plan.needs:
        return {}
    store = open_store(workspace.index_url)
    wheels = _published(store, plan, workspace.project)
    for need, file in wheels.items():
        workspace.watcher.line(f"{need}: {file.filename} of the index")
        # By the page's hash, not the record's: it is what pip would check.
        digest = hashlib.sha256()
        part = dest / f"{file.filename}.part"
        with part.open("wb") as stream:
            for chunk in store.chunks(wheel_key(file.filename)):
                digest.update(chunk)
                stream.write(chunk)
        if digest.hexdigest() != file.hashes.sha256:
            part.unlink()
            raise InfrastructureError(
                f"{file.filename}: the index holds other bytes than its page says",
                hint="farm index check says more",
            )
        retry_while_open(part.replace, dest / file.filename)
    return {file.filename: file.hashes.sha256 for file in wheels.values()}
