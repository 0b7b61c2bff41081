"""Inputs of a build's job beside its plan: sources, needed wheels, and the record of them for the wheel's provenance.

Whoever runs a build knows them: the journal of this machine, or the farm on a runner, whose `farm build` leaves
`built/inputs.json` beside the wheel. A container cannot say it: the file is written after its output was taken.
"""

import contextlib
import hashlib
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pydantic import Field

from farm.base import resources as shipped
from farm.base.errors import BuildFailedError, InfrastructureError, UsageError
from farm.base.locks import retry_while_open
from farm.base.tags import serves
from farm.base.yamlfile import Model, load
from farm.engines.base import Engine
from farm.index.backends import open_store
from farm.index.layout import json_key, wheel_key
from farm.index.pages import File, parse_page
from farm.index.stores import Store
from farm.plan.file import Plan, SourcePlan
from farm.plan.matrix import load_matrix
from farm.plan.recipe import Recipe, names, recipe
from farm.platforms.base import platform
from farm.platforms.facts import facts
from farm.run import sources
from farm.run.journal import Journal, OpenRun
from farm.run.sources import fetch, gather
from farm.run.toolchain import SCRIPTS
from farm.run.workspace import Workspace
from farm.wheel.archive import Archive
from farm.wheel.metadata import read_dist_info
from farm.wheel.needs import required

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


def published_needs(workspace: Workspace, plan: Plan) -> dict[str, File]:
    """The wheel of each of the plan's needs, by its requirement, as the index offers it.

    Raises:
        UsageError: One is not published; the hint is the command that builds it.
        InfrastructureError: The index does not answer, or holds a page that is not one of ours.
    """
    if not plan.needs:
        return {}  # most builds: the index is not even opened
    return _wheels(open_store(workspace.index_url), plan, workspace.project)


def standing(index_url: str, plan: Plan, project: Path) -> list[tuple[str, str | None]]:
    """Each of the plan's needs; and where the index has no such wheel, what it costs and the command that builds it.

    Raises:
        InfrastructureError: The index does not answer.
    """
    store, found = open_store(index_url), list[tuple[str, str | None]]()
    for need in map(Requirement, plan.needs):
        try:
            _find(store, plan, need, project)
            text = None
        except UsageError:
            package, how = _how(plan, need, project)
            hours = _recipe_of(plan, package, project).cost_for(plan.parsed_variant.sms)
            text = f"{f'{hours[0]} {hours[1]:g} CPU hours' if hours else 'cost not measured'}: farm submit {how}"
        found.append((str(need), text))
    return found


def _wheels(store: Store, plan: Plan, project: Path) -> dict[str, File]:
    return {need: _find(store, plan, Requirement(need), project) for need in plan.needs}


def _find(store: Store, plan: Plan, need: Requirement, project: Path) -> File:
    key = json_key(plan.parsed_variant.group, canonicalize_name(need.name))
    page = store.get(key)
    # A page may list wheels of several Pythons, and yanked ones.
    for file in parse_page(page.data, key).files if page else ():
        if file.url is not None and file.yanked is False and _serves(file.filename, plan, need):
            return file
    raise UsageError(
        f"{plan.package} is built against {need}, and the index has no such wheel for {plan.variant}",
        hint=f"build it first: farm submit {_how(plan, need, project)[1]}",
    )


def _how(plan: Plan, need: Requirement, project: Path) -> tuple[str, str]:
    """The recipe that makes it, and the options: by the recipe's name, from the same channel where that has it."""
    channel = load_matrix(project).channels.get(plan.channel)
    called = [name for name in names() if recipe(name).package == need.name]
    listed = [name for name in called if channel and name in channel.packages]
    package = (listed or [name for name in called if name == need.name] or called or [need.name])[0]
    chosen = f"--variant {plan.variant} --package {package} --platform {plan.platform}"
    if listed:
        return package, f"{chosen} --channel {plan.channel}"
    torch = plan.options.get("torch")
    return package, f"{chosen} --torch {torch}" if need.name == "torch" and torch else chosen


def _recipe_of(plan: Plan, package: str, project: Path) -> Recipe:
    """The recipe of the channel that would build it: the plan's own, else the first that offers this release."""
    matrix = load_matrix(project)
    for channel in [c for c in (matrix.channels.get(plan.channel), *matrix.channels.values()) if c]:
        if package in channel.packages and plan.options.get("torch") == channel.text.options["torch"]:
            return recipe(channel.text.recipes.get(package, package))
    return recipe(package)


def _serves(filename: str, plan: Plan, need: Requirement) -> bool:
    _, version, _, tags = parse_wheel_filename(filename)
    return need.specifier.contains(version) and any(
        serves(tag.interpreter, tag.abi, plan.parsed_variant.python)
        and facts(plan.platform).fits(tag.platform, plan.machine)
        for tag in tags
    )


def fetch_needs(workspace: Workspace, plan: Plan, dest: Path) -> dict[str, str]:
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
    wheels = _wheels(store, plan, workspace.project)
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


def library_wheels(workspace: Workspace, plan: Plan, wheel: Path, folder: Path) -> list[Path]:
    """Those of the plan's wheels of libraries that `wheel` requires, in `folder`; fetched once a host.

    Returns `[folder]` for `verify`; nothing where the plan has none.

    Raises:
        InfrastructureError: One cannot be fetched.
        BuildFailedError: What was fetched is not what the plan names.
    """
    if not plan.library_wheels:
        return []
    cache = workspace.artifacts / "sources"
    with Archive(wheel) as archive:
        wanted = required(read_dist_info(archive))
    cache.mkdir(parents=True, exist_ok=True)
    # Made anew: verify reads every wheel that it holds.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in plan.library_wheels:
        if canonicalize_name(each.package) not in wanted:
            continue
        source = SourcePlan(kind="wheel", package=each.package, file=each.file, sha256=each.sha256)
        found = fetch(source, cache, mirror=None, line=workspace.watcher.line)
        target = folder / each.file
        try:
            target.hardlink_to(found)
        except OSError:  # another file system
            shutil.copyfile(found, target)
    return [folder]


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
                given.wheels = fetch_needs(workspace, plan, needed)
                given.folders[system.needs_folder] = needed
        if not engine.traits.in_container:  # an image holds them
            given.folders["/farm/scripts"] = shipped.path(workspace.project, SCRIPTS)
        yield given
    finally:
        for each in made:
            shutil.rmtree(each, ignore_errors=True)


INPUTS_FILE = "inputs.json"
MAX_INPUTS = 1 << 20
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]{1,300}$")]


class BuildInputs(Model):
    """The inputs of one build.

    Attributes:
        image: The id of the image that it ran in.
        wheels: The published wheels that it was built against: sha256 by name.
        cache: The compiler cache of the build's own machine; what was in it is not known by digest.
    """

    image: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    wheels: dict[Name, Sha256] = {}
    cache: Annotated[str, Field(max_length=300)] | None = None


def read_inputs(file: Path) -> BuildInputs:
    """The inputs that another machine's build noted.

    Raises:
        BuildFailedError: The file is none of ours.
    """
    try:
        # A runner wrote it: a link could lead to any file of this machine.
        if file.is_symlink() or file.stat().st_size > MAX_INPUTS:
            raise UsageError(f"{file}: more than {MAX_INPUTS >> 20} MiB")
        return load(file, BuildInputs)
    except (UsageError, OSError) as error:
        raise BuildFailedError(f"the inputs that the build noted cannot be used: {error}") from error
