"""The wheels of the farm's own that a build is made against: which runs make them, which the index
has, and how they come into the build.
"""

import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from farm.base.errors import InfrastructureError, UsageError
from farm.base.locks import retry_while_open
from farm.base.requirement import serves
from farm.index.layout import json_key, wheel_key
from farm.index.pages import File, parse_page
from farm.index.store_urls import open_store
from farm.index.stores import Store
from farm.plan.file import Plan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import Recipe, names, recipe
from farm.platforms.facts import facts
from farm.run.download import fetch
from farm.run.journal import Journal
from farm.run.journal_records import OpenRun
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
        makers = set[str]()
        for need in needs:
            makers |= self._runs.get((need, variant, platform), set())
        return frozenset(makers)


def not_being_built(journal: Journal, plan: Plan, needs: Sequence[str]) -> list[str]:
    """Return those of a plan's needs that no open run will publish."""
    if not needs:
        return []  # most builds: no run is read
    makers = Makers()
    for run in journal.open_after("", PRODUCT):
        makers.add(run)
    return [need for need in needs if not makers.of([need], plan.variant, plan.platform)]


def published_needs(
    workspace: Workspace, plan: Plan, needs: Sequence[str] | None = None
) -> dict[str, File]:
    """The wheel of each of the plan's needs in the index, or of some of them.

    Raises:
        UsageError: One is missing; the hint builds it.
    """
    if needs is None:
        needs = plan.needs
    if not needs:
        return {}  # most builds: the index is not even opened
    store = open_store(workspace.index_url)
    return {need: _find(store, plan, Requirement(need), workspace.project) for need in needs}


def standing(index_url: str, plan: Plan, project: Path) -> list[tuple[str, str | None]]:
    """Each of the plan's needs; and where the index has no such wheel, what it costs and the
    command that builds it.
    """
    store = open_store(index_url)
    needs = list[tuple[str, str | None]]()
    for need in map(Requirement, plan.needs):
        try:
            _find(store, plan, need, project)
            text = None
        except UsageError:
            package, how = _how(plan, need, project)
            hours = _recipe_of(plan, package, project).cost_for(plan.parsed_variant.sms)
            cost = "cost not measured"
            if hours:
                cost = f"{hours[0]} {hours[1]:g} CPU hours"
            text = f"{cost}: farm submit {how}"
        needs.append((str(need), text))
    return needs


def _find(store: Store, plan: Plan, need: Requirement, project: Path) -> File:
    key = json_key(plan.parsed_variant.group, canonicalize_name(need.name))
    page = store.get(key)
    if page is not None:
        # It may list wheels of several Pythons, and yanked ones.
        for file in parse_page(page.data, key).files:
            is_offered = file.url is not None and file.yanked is False
            if is_offered and _serves(file.filename, plan, need):
                return file
    raise UsageError(
        f"{plan.package} is built against {need}, and the index has no such wheel for "
        f"{plan.variant}",
        hint=f"build it first: farm submit {_how(plan, need, project)[1]}",
    )


def _how(plan: Plan, need: Requirement, project: Path) -> tuple[str, str]:
    """The recipe that makes it, and the options: by the recipe's name, from the same channel where
    that has it.
    """
    recipes = [name for name in names() if recipe(name).package == need.name]
    channel = load_matrix(project).channels.get(plan.channel)
    in_channel: list[str] = []
    if channel:
        in_channel = [name for name in recipes if name in channel.packages]
    if in_channel:
        package = in_channel[0]
    elif need.name in recipes:
        package = need.name
    else:
        package = next(iter(recipes), need.name)
    options = f"--variant {plan.variant} --package {package} --platform {plan.platform}"
    torch = plan.options.get("torch")
    if in_channel:
        options += f" --channel {plan.channel}"
    elif need.name == "torch" and torch:
        options += f" --torch {torch}"
    return package, options


def _recipe_of(plan: Plan, package: str, project: Path) -> Recipe:
    """The recipe of the channel that would build it: the plan's own, else the first that offers
    this release.
    """
    channels = load_matrix(project).channels
    torch = plan.options.get("torch")
    for channel in (channels.get(plan.channel), *channels.values()):
        if channel is None or package not in channel.packages:
            continue
        if channel.text.options["torch"] == torch:
            return recipe(channel.text.recipe_of(package))
    return recipe(package)


def _serves(filename: str, plan: Plan, need: Requirement) -> bool:
    _, version, _, tags = parse_wheel_filename(filename)
    if not need.specifier.contains(version):
        return False
    python = plan.parsed_variant.python
    system = facts(plan.platform)
    for tag in tags:
        if serves(tag.interpreter, tag.abi, python) and system.fits(tag.platform, plan.machine):
            return True
    return False


def fetch_needs(workspace: Workspace, plan: Plan, dest: Path) -> dict[str, str]:
    """Put the wheels that the build imports into the folder `dest`; returns the sha256 of the
    farm's own by file name.

    UsageError: one is not published; InfrastructureError: an index does not answer, or a wheel
    there does not match its page; BuildFailedError: one of the Python index is not the one that the
    plan names.
    """
    dest.mkdir(parents=True, exist_ok=True)
    cache = workspace.artifacts / "sources"
    cache.mkdir(parents=True, exist_ok=True)
    for wheel in plan.build_requires:
        fetched_file = fetch(wheel, cache, mirror=None, line=workspace.watcher.line)
        shutil.copyfile(fetched_file, dest / str(wheel.file))
    wheels = published_needs(workspace, plan)
    if not wheels:
        return {}
    store = open_store(workspace.index_url)
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
