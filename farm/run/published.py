"""Wheels that the index has already: whether one is of this very plan, and what is left to do
with it.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator

from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.base.errors import (
    PublishRefusedError,
    SmokeFailedError,
)
from farm.index.layout import json_key, record_key
from farm.index.page_writer import complete_publish
from farm.index.pages import parse_page
from farm.index.records import Record, parse_record
from farm.index.store_urls import open_store
from farm.index.stores import Store, data_of
from farm.plan.file import Plan
from farm.run.pip_commands import pip_line, pip_request, public_url, words_of
from farm.run.smoke import SmokeOptions, passed_mark, smoke
from farm.run.workspace import Outcomes, Step, Workspace
from farm.wheel.metadata import parse_wheel_name


def published_wheel(workspace: Workspace, plan: Plan) -> Record | None:
    """Return the record of the wheel that was built by this very plan and verified.

    None where there is none, where its bytes are not those that were verified, or where it is
    yanked.

    Raises:
        PublishRefusedError: It is there in the other form, with CUDA's libraries where this plan
            needs NVIDIA's wheels or the other way round.
    """
    store = open_store(workspace.index_url)
    record = _record_of(store, plan)
    if record is None:
        return None
    # `verified` is the sha256 that verify read: a file that was replaced since has another.
    is_verified = record.provenance.get("verified") == record.sha256
    if not is_verified or not _is_offered(store, plan, record):
        return None
    # A record of an earlier version of the farm does not say which form it is.
    form = record.provenance.get("cuda-libraries", plan.cuda_libraries)
    if form != plan.cuda_libraries:
        raise PublishRefusedError(
            f"{record.filename} is published with `cuda_libraries: {form}`, this plan has "
            f"{plan.cuda_libraries}",
            hint=f"run it again with --rebuild {int(plan.options['rebuild'] or 0) + 1}",
        )
    return record


def _record_of(store: Store, plan: Plan) -> Record | None:
    """The record of the wheel that this very plan made."""
    for record in records_of(store, plan):
        if record.provenance.get("plan") == plan.digest:
            return record
    return None


def listed(read: Callable[[str], bytes | None], plan: Plan, group: str) -> list[str]:
    """The file names of the plan's version on the page of its package in a group; makers of wheels
    spell names differently.
    """
    key = json_key(group, canonicalize_name(plan.package))
    page = read(key)
    if not page:
        return []
    version = str(Version(plan.version))  # `2024.01` of a recipe is `2024.1` in the name of a file
    names = []
    for file in parse_page(page, key).files:
        if str(parse_wheel_name(file.filename).version) == version:
            names.append(file.filename)
    return names


def records_of(store: Store, plan: Plan) -> Iterator[Record]:
    """The records of the files of the plan's version."""

    def read(key: str) -> bytes | None:
        return data_of(store.get(key))

    for key in map(record_key, listed(read, plan, plan.parsed_variant.group)):
        if record_file := store.get(key):
            yield parse_record(record_file.data, key)


def _is_offered(store: Store, plan: Plan, record: Record) -> bool:
    """The page of the variant's group lists the wheel, with the same hash and not yanked, and the
    file is there.
    """
    key = json_key(plan.parsed_variant.group, record.project)
    page = store.get(key)
    if page is None or store.stat(f"whl/files/{record.filename}") is None:
        return False
    for file in parse_page(page.data, key).files:
        if file.filename == record.filename:
            return file.hashes.sha256 == record.sha256 and file.yanked is False
    return False


def offer(
    workspace: Workspace, plan: Plan, record: Record, outcomes: Outcomes
) -> tuple[str, tuple[str, ...]]:
    """Bring the pages to the end that a publisher who failed did not reach; returns what
    `pip_request` does.
    """
    group = plan.parsed_variant.group
    with outcomes.timed("publish", workspace.watcher) as step:
        complete_publish(open_store(workspace.index_url), group, record.project)
        address = public_url(workspace, f"whl/files/{record.filename}")
        step.result = f"already there, from the same plan: {address}"
    requirement, source = pip_request(workspace, plan, record.filename)
    outcomes.pip_line = pip_line(requirement, source)
    return requirement, source


def install_lines(workspace: Workspace, plans: Iterable[Plan]) -> list[str]:
    """The commands that install the published wheels of plans: one for each variant."""
    names: dict[tuple[str, str], list[str]] = {}
    groups = {}
    for plan in plans:
        record = published_wheel(workspace, plan)
        if record is not None:
            names.setdefault((plan.variant, plan.platform), []).append(record.filename)
            groups[plan.variant] = plan.parsed_variant.group
    lines = []
    for (variant, _), filenames in names.items():
        words = words_of(workspace, groups[variant], *filenames)
        lines.append(shlex.join(["pip", "install", *words]))
    return lines


def use_published(workspace: Workspace, plan: Plan, record: Record, *, test: bool) -> Outcomes:
    """The result of a run; with `test` its smoke test is run, unless it passed here;
    SmokeFailedError: it failed.
    """
    outcomes = Outcomes(wheel=None)
    requirement, source = offer(workspace, plan, record, outcomes)
    if not test:
        return outcomes
    folder = workspace.artifacts / "smoke" / f"{plan.package}-{plan.version}"
    if passed_mark(workspace, plan).is_file():
        outcomes.steps.append(
            Step("smoke", result="passed here before; `farm smoke` repeats it", under_way=False)
        )
        return outcomes
    folder.mkdir(parents=True, exist_ok=True)
    options = SmokeOptions(filenames=(record.filename,))
    failed = smoke(workspace, plan, folder, outcomes, requirement, source, options)
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    return outcomes
