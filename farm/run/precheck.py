"""The end of a run, tried before its build begins: hours of compiling are not lost to a name that is taken."""

import shutil
import uuid

from farm.base.errors import FarmError, InfrastructureError, PublishRefusedError
from farm.index.backends import open_store
from farm.index.layout import record_key
from farm.index.records import parse_record
from farm.index.stores import SCRATCH
from farm.plan.file import Plan
from farm.plan.recipe import recipe
from farm.run.backends import engine_kind
from farm.run.journal import Request
from farm.run.published import listed
from farm.run.smoke import serves_plan
from farm.run.workspace import Workspace

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
    """Whether there is room for a build, and its wheel's name is free in the index.

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
