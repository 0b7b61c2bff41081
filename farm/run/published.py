"""The index before a build: is the wheel of the plan there already, is its name free, can it be written?"""

import json
import shutil
import uuid
from collections.abc import Callable

from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.base.errors import FarmError, InfrastructureError, PublishRefusedError, SmokeFailedError
from farm.index.backends import open_store
from farm.index.layout import json_key, record_key
from farm.index.pages import parse_page
from farm.index.publish import finish
from farm.index.records import Record, parse_record
from farm.index.stores import SCRATCH, Store
from farm.plan.file import Plan
from farm.plan.recipe import recipe
from farm.run.backends import engine_kind
from farm.run.journal import Request, Run
from farm.run.release import pip_line, pip_request, public_url
from farm.run.smoke import SmokeOptions, passed_mark, serves_plan, smoke
from farm.run.workspace import Outcomes, Step, Workspace, journal_path, open_journal
from farm.wheel.metadata import parse_wheel_name


def find_published(workspace: Workspace, plan: Plan) -> Record | None:
    """The record of the wheel that was built by this very plan and verified, and that users can install now.

    None where there is none, where a run of the plan has not ended, where its bytes are not those that were verified,
    or where it is yanked.

    Raises:
        PublishRefusedError: It is there in the other form, with CUDA's libraries where this plan needs NVIDIA's wheels
            or the other way round. One version has one form.
    """
    if journal_path(workspace.project, workspace.settings).exists():  # asking makes no folder
        with open_journal(workspace.project, workspace.settings) as journal:
            if journal.unfinished(plan.digest, of_same_form(plan)):
                return None  # a run whose controller was killed is resumed and ended first
    return record_of(workspace, plan)


def record_of(workspace: Workspace, plan: Plan) -> Record | None:
    """A published wheel of the plan, whatever runs there are.

    Raises:
        PublishRefusedError: As `find_published`.
    """
    store = open_store(workspace.index_url)
    for filename in listed(store, plan):
        key = record_key(filename)
        found = store.get(key)
        record = parse_record(found.data, key) if found else None
        if record is None or record.provenance.get("plan") != plan.digest:
            continue
        # `verified` is the sha256 that verify read: a file that was replaced since has another.
        if record.provenance.get("verified") != record.sha256 or not _is_offered(store, plan, record):
            return None
        # A record of an earlier version of the farm does not say which form it is.
        form = record.provenance.get("cuda-libraries", plan.cuda_libraries)
        if form != plan.cuda_libraries:
            raise PublishRefusedError(
                f"{record.filename} is published with `cuda_libraries: {form}`, this plan has {plan.cuda_libraries}",
                hint=f"run it again with --rebuild {int(plan.options['rebuild'] or 0) + 1}",
            )
        return record
    return None


def of_same_form(plan: Plan) -> Callable[[Run], bool]:
    """Picks the runs that make the wheel with CUDA's libraries from where this plan has them from."""
    return lambda run: bool(run.plan.get("library_wheels")) == bool(plan.library_wheels)


def listed(store: Store, plan: Plan) -> list[str]:
    """The file names of the plan's version on the page of its package; makers of wheels spell names differently."""
    key = json_key(plan.parsed_variant.group, canonicalize_name(plan.package))
    page = store.get(key)
    names = [file.filename for file in parse_page(page.data, key).files] if page else []
    version = str(Version(plan.version))  # `2024.01` of a recipe is `2024.1` in the name of a file
    return [name for name in names if str(parse_wheel_name(name).version) == version]


def _is_offered(store: Store, plan: Plan, record: Record) -> bool:
    """The page of the variant's group lists the wheel, with the same hash and not yanked, and the file is there."""
    page = store.get(f"whl/{plan.parsed_variant.group}/v1-json/{record.project}/index.json")
    if page is None or store.stat(f"whl/files/{record.filename}") is None:
        return False
    files = json.loads(page.data).get("files", [])
    return any(
        file["filename"] == record.filename and file["hashes"].get("sha256") == record.sha256 and not file.get("yanked")
        for file in files
    )


def offer(workspace: Workspace, plan: Plan, record: Record, outcomes: Outcomes) -> tuple[str, tuple[str, ...]]:
    """Bring the pages to the end that a publisher who failed did not reach: the wheel is listed, and not everywhere.

    Returns the requirement and the options by which pip installs it, which are in `outcomes` then.
    """
    group = plan.parsed_variant.group
    with outcomes.timed("publish", workspace.watcher) as step:
        finish(open_store(workspace.index_url), group, record.project)
        step.result = f"already there, from the same plan: {public_url(workspace, f'whl/files/{record.filename}')}"
    requirement, source = pip_request(workspace, plan, record.filename)
    outcomes.pip_line = pip_line(requirement, source)
    return requirement, source


def use_published(workspace: Workspace, plan: Plan, record: Record, *, test: bool) -> Outcomes:
    """The result of a run; the smoke test is run where `test` is set and it never passed here.

    Raises:
        SmokeFailedError: It failed.
    """
    outcomes = Outcomes(wheel=None)
    requirement, source = offer(workspace, plan, record, outcomes)
    if not test:
        return outcomes
    folder = workspace.artifacts / "smoke" / f"{plan.package}-{plan.version}"
    if passed_mark(workspace, plan).is_file():
        outcomes.steps.append(Step("smoke", result="passed here before; `farm smoke` repeats it"))
        return outcomes
    folder.mkdir(parents=True, exist_ok=True)
    options = SmokeOptions(filenames=(record.filename,))
    failed = smoke(workspace, plan, folder, outcomes, requirement, source, options)
    if failed:
        raise SmokeFailedError("\n".join(failed), hint=f"reports: {folder}/smoke*.json")
    return outcomes


ROOM = 1 << 30
"""Bytes that this machine keeps free for a run that builds elsewhere: its wheel, twice, and its logs."""


def check_index(workspace: Workspace, request: Request) -> None:
    """Refuses an index that cannot be written; once for all runs of a command.

    Raises:
        InfrastructureError: Nothing can be put into the index.
    """
    if not request.publishes:
        return
    store = open_store(workspace.index_url)
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        store.create(key, b"", content_type="application/octet-stream")
        store.discard(key)
    except (OSError, FarmError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise InfrastructureError(
            f"the index {workspace.index_url} cannot be written: {why}",
            hint="correct its rights or `index` in ci/farm.yaml, or submit with --no-publish",
        ) from error


def check_plan(workspace: Workspace, plan: Plan, request: Request) -> None:
    """Check that there is room for a build, and that its wheel's name is free in the index.

    Raises:
        InfrastructureError: This machine's disk has no room.
        PublishRefusedError: Another build has published a wheel of that name.
    """
    needed = ROOM
    if engine_kind(request.on).traits.on_this_machine:
        needed = max(needed, int(recipe(plan.recipe).disk_gb * 1e9))
    folder = next(place for place in (workspace.artifacts, *workspace.artifacts.absolute().parents) if place.exists())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InfrastructureError(
            f"{folder}: {free / 1e9:.1f} GB are free, and a run of {plan.package} needs {needed / 1e9:.1f}",
            hint="`farm clean --dry-run` shows what can go; or name another folder in ci/farm.yaml (artifacts)",
        )
    if request.publishes:
        _check_name(workspace, plan)


def _check_name(workspace: Workspace, plan: Plan) -> None:
    store = open_store(workspace.index_url)
    for filename in listed(store, plan):
        if not serves_plan(filename, plan):
            continue
        key = record_key(filename)
        found = store.get(key)
        built = parse_record(found.data, key).provenance.get("plan") if found else None
        if built not in (None, plan.digest):
            raise PublishRefusedError(
                f"{filename} is in the index already, from another build (plan {str(built)[:12]}, this one is "
                f"{plan.digest[:12]}); nothing was built",
                hint=f"run it again with --rebuild {int(plan.options.get('rebuild') or 0) + 1}",
            )
