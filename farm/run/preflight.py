"""What is looked at before hours of a build: can the index be written, is there room, is the
name free.
"""

import shutil
import uuid

from farm.base.errors import (
    FarmError,
    InfrastructureError,
    PublishRefusedError,
)
from farm.index.store_urls import open_store
from farm.index.stores import SCRATCH
from farm.plan.file import Plan
from farm.plan.recipe import recipe
from farm.run.backends import engine_kind
from farm.run.journal_records import Request
from farm.run.published import records_of
from farm.run.smoke import serves_plan
from farm.run.workspace import Workspace

MIN_FREE_BYTES = 1 << 30
"""Bytes that this machine keeps free for a run that builds elsewhere: its wheel, twice, and its
logs.
"""


def check_index(workspace: Workspace, request: Request) -> None:
    """InfrastructureError where nothing can be put into the index; once for all runs of a
    command.
    """
    if not request.publishes:
        return
    store = open_store(workspace.index_url)
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        store.create(key, b"", content_type="application/octet-stream")
        store.discard(key)
    except (OSError, FarmError) as error:
        if isinstance(error, OSError):
            why = f"{error.filename}: {error.strerror}"
        else:
            why = str(error)
        raise InfrastructureError(
            f"the index {workspace.index_url} cannot be written: {why}",
            hint="correct its rights or `index` in ci/farm.yaml, or submit with --no-publish",
        ) from error


def check_plan(workspace: Workspace, plan: Plan, request: Request) -> None:
    """Check that there is room for a build (InfrastructureError), and that its name is free
    (PublishRefusedError).
    """
    needed = MIN_FREE_BYTES
    if engine_kind(request.on).traits.on_this_machine:
        needed = max(needed, int(recipe(plan.recipe).disk_gb * 1e9))
    folder = next(
        place
        for place in (workspace.artifacts, *workspace.artifacts.absolute().parents)
        if place.exists()
    )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InfrastructureError(
            f"{folder}: {free / 1e9:.1f} GB are free, and a run of {plan.package} needs "
            f"{needed / 1e9:.1f}",
            hint="`farm clean --dry-run` shows what can go; or name another folder in "
            "ci/farm.yaml (artifacts)",
        )
    if request.publishes:
        _check_name(workspace, plan)


def _check_name(workspace: Workspace, plan: Plan) -> None:
    for record in records_of(open_store(workspace.index_url), plan):
        built = record.provenance.get("plan")
        if serves_plan(record.filename, plan) and built not in (None, plan.digest):
            raise PublishRefusedError(
                f"{record.filename} is in the index already, from another build (plan "
                f"{str(built)[:12]}, this one is "
                f"{plan.digest[:12]}); nothing was built",
                hint=f"run it again with --rebuild {int(plan.options.get('rebuild') or 0) + 1}",
            )
