"""Publishing a wheel, so that it may be killed anywhere and run any number of times at once.

The order keeps readers safe:

1. Everything that can refuse the wheel is asked.
2. The record claims the name for these bytes, or the publish is refused.
3. The wheel and its `.metadata` are stored.
4. The pages follow (`farm.index.page_writer`).

Every step does nothing if it is done already, so a publisher that was killed anywhere is completed
by running it again, and publishers of the same or other wheels may run at the same time. The number
of requests does not depend on the size of the index; `docs/reference/wheel-index.md` lists them. A
wheel that is uploaded in parts needs 5 more, and one for each part.
"""

import contextlib
import hashlib
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.base.interrupts import deferred_interrupts
from farm.index import pages
from farm.index.admission import PYPI_RULES, Admission, Checked, check_name, describe
from farm.index.layout import (
    CATALOGUE,
    check_group,
    json_key,
    metadata_key,
    record_key,
    simple_root,
    wheel_key,
)
from farm.index.page_writer import PageWriter
from farm.index.pages import ProjectPage, parse_catalogue, parse_page
from farm.index.records import (
    ForeignObjectError,
    NewerObjectError,
    Record,
    Wheel,
    parse_record,
    read_state,
    there,
)
from farm.index.stores import (
    SCRATCH,
    Prediction,
    Progress,
    Stat,
    Store,
    data_of,
    stored_sha256,
    swap,
)

REBUILD = "append .1 (.2 ...) to the local version: --rebuild 1"


class NameTakenError(PublishRefusedError):
    """The name stands for other bytes already."""


def check_store(store: Store) -> Prediction:
    """Make sure that something may be published in a store; costs one request after the first time.

    At the first publish a page is created on a scratch key, created again and replaced by a stale
    tag. A store that does either of the last two would lose wheels.

    Returns:
        The catalogue as it is.

    Raises:
        PublishRefusedError: The store does not keep conditional writes.
    """
    catalogue = store.get(CATALOGUE)
    # A bucket that was copied brings its catalogue along, but not the promises of its server.
    name = hashlib.sha256(store.url("").encode()).hexdigest()
    try:
        if parse_catalogue(data_of(catalogue)).tried == name:
            return Prediction(catalogue)
        fault = _conditional_write_fault(store)
        if fault:
            raise PublishRefusedError(
                f"{store.url('')} does not keep conditional writes: {fault}",
                hint="publishing there would lose wheels; use a folder, or a server that honours "
                "If-Match and "
                "If-None-Match (Ceph: in buckets without versioning and object lock)",
            )

        def note(old: bytes | None) -> bytes:
            return parse_catalogue(old).model_copy(update={"tried": name}).render()

        swap(store, CATALOGUE, note, pages.CATALOGUE_TYPE, prediction=Prediction(catalogue))
        catalogue = store.get(CATALOGUE)
    except NewerObjectError:
        raise
    except ForeignObjectError:
        pass  # reported by those who need the catalogue
    return Prediction(catalogue)


def _conditional_write_fault(store: Store) -> str:
    """What a store does wrong with conditional writes; empty if nothing."""
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        if not store.replace(key, b"first", None, content_type=pages.HTML):
            return "a new object was refused as existing"
        if store.create(key, b"second", content_type=pages.HTML):
            return "an object that exists was created again (If-None-Match)"
        stored = store.get(key)
        if stored is None or stored.data != b"first":
            return "an object that was just stored is not there"
        if not store.replace(key, b"third", stored.etag, content_type=pages.HTML):
            return "an object was not replaced by the tag that it has (If-Match)"
        if store.replace(key, b"fourth", stored.etag, content_type=pages.HTML):
            return "an object was replaced by a tag that it does not have (If-Match)"
    finally:
        # A policy may forbid deletes; an object that stays there harms nobody.
        with deferred_interrupts(), contextlib.suppress(InfrastructureError):
            store.discard(key)
    return ""


class Claimed(NamedTuple):
    """A wheel that has its name and is stored.

    Attributes:
        wheel: The wheel as the index holds it.
        changed: Something of it was not there before.
        fresh: This call made the claim.
    """

    wheel: Wheel
    changed: bool
    fresh: bool


class PublishResult(NamedTuple):
    """What the index holds about the wheel, and where; `changed` is False if it was all there."""

    record: Record
    changed: bool
    wheel_url: str
    index_url: str


def publish(
    store: Store,
    wheel: Path,
    *,
    group: str,
    upload_time: datetime,
    provenance: Mapping[str, Any],
    channel: str | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
) -> PublishResult:
    """Publish a wheel, or complete what an earlier call began.

    The first publish of a file decides about `upload_time` and `provenance`; `progress` gets the
    bytes that are stored.

    Raises:
        PublishRefusedError: The name stands for other bytes, another group or nearly another
            project; the wheel is not admitted; or the store does not keep conditional writes.
            Nothing was changed.
        UsageError: A bad group or channel, an unreadable wheel, no credentials.
        InfrastructureError: The store failed; run it again.
    """
    if channel is not None:
        check_group(channel)
    checked = describe(
        wheel,
        group=check_group(group),
        upload_time=upload_time,
        provenance=provenance,
        channel=channel,
        policy=policy,
    )
    writer = PageWriter(store, check_store(store))
    project = checked.record.project
    # Everything that can refuse comes before the claim: a refused wheel must not take the name.
    check_name(project, writer.catalogue.names, policy)
    read_before = Prediction(store.get(json_key(group, project)))
    page = None
    if read_before.stored is not None:
        page = parse_page(read_before.stored.data, json_key(group, project))
    check_place(page, Wheel(checked.record))
    claimed = claim(store, checked, progress)
    # A wheel that was promoted and lost comes back in all its groups.
    for place in claimed.wheel.groups:
        prediction = None
        if claimed.fresh and place == group:
            prediction = read_before
        writer.write(place, {project: [claimed.wheel]}, seen=prediction)
    delete_removed(store, writer.refused)
    if writer.refused:
        raise PublishRefusedError(writer.refused[checked.record.filename], hint=REBUILD)
    changed = claimed.changed or bool(writer.written)
    url = store.url(wheel_key(checked.record.filename))
    return PublishResult(claimed.wheel.record, changed, url, store.url(simple_root(group)))


def check_place(page: ProjectPage | None, wheel: Wheel) -> None:
    """Refuse a wheel that cannot be on the page, such as another spelling of one that is there.

    Raises:
        PublishRefusedError: It cannot be listed there.
    """
    if page is None:
        return
    refused = pages.updated(page, page.name, [wheel]).refused
    if refused:
        raise PublishRefusedError(refused[wheel.name], hint=REBUILD)


def claim(store: Store, checked: Checked, progress: Progress | None = None) -> Claimed:
    """Claim the name of a wheel and store its files.

    Raises:
        PublishRefusedError: The name is taken, or other bytes lie under it.
    """
    record = checked.record
    key = record_key(record.filename)
    _check_orphans(store, record)
    # The first write. From here on a kill leaves a publish that the same call completes.
    wheel = Wheel(record)
    fresh = store.create(key, record.render(), content_type="application/json")
    if not fresh:
        wheel = _claimed_before(store, parse_record(there(store, key).data, key), record)
        record = wheel.record
    wheel_stored = store_file(
        store,
        wheel_key(record.filename),
        checked.path,
        Stat(record.size, record.sha256),
        fresh=fresh,
        progress=progress,
    )
    metadata_stored = store_file(
        store,
        metadata_key(record.filename),
        checked.metadata,
        Stat(len(checked.metadata), record.metadata_sha256),
        fresh=fresh,
    )
    return Claimed(wheel, fresh or wheel_stored or metadata_stored, fresh)


def _check_orphans(store: Store, record: Record) -> None:
    """Refuse a name under which other bytes lie that no record claims: it would promise them."""
    key = wheel_key(record.filename)
    stat = store.stat(key)
    if stat is None or _is_same(store, key, stat, Stat(record.size, record.sha256)):
        return
    if store.get(record_key(record.filename)) is None:
        raise PublishRefusedError(
            f"{store.url(key)} holds other bytes, which no record claims",
            hint=f"farm index reconcile --take-back deletes files without a record; or {REBUILD}",
        )


def _claimed_before(store: Store, record: Record, ours: Record) -> Wheel:
    """The wheel whose record holds the name, if it is this very one."""
    if record.sha256 != ours.sha256:
        raise NameTakenError(
            f"{ours.filename} is taken: the index holds sha256 {record.sha256}, this file has "
            f"{ours.sha256}",
            hint="published names never change their bytes; append .1 (.2 ...) to the local "
            "version",
        )
    wheel = Wheel(record, read_state(store, record.filename))
    if wheel.state.removed is not None:
        raise PublishRefusedError(
            f"{record.filename} was removed ({wheel.state.removed or 'no reason given'}); its name "
            "stays taken",
            hint=REBUILD,
        )
    # Same bytes in another group: a record is never rewritten.
    group = ours.groups[0]
    if group not in wheel.groups:
        raise PublishRefusedError(
            f"{ours.filename} is published in {', '.join(wheel.groups)}, not in {group}",
            hint=f"farm index promote {ours.filename} --to {group} lists it there too; if its file "
            f"was lost, first: farm publish {ours.filename} --to {record.groups[0]}",
        )
    return wheel


def store_file(
    store: Store,
    key: str,
    data: bytes | Path,
    promised: Stat,
    *,
    fresh: bool,
    progress: Progress | None = None,
) -> bool:
    """Store a file of a claimed wheel.

    Args:
        store: The index.
        key: Where.
        data: The bytes, or the file that holds them.
        promised: Size and digest that the record states.
        fresh: The claim is new, so nobody stored the file yet; saves a request.
        progress: Called while a file is stored.

    Returns:
        False if it was there already.

    Raises:
        InfrastructureError: Other bytes are there.
    """
    stat = None if fresh else store.stat(key)
    if stat is None:
        created = store.create(
            key,
            data,
            content_type="application/octet-stream",
            sha256=promised.sha256,
            progress=progress,
        )
        if created:
            return True
        stat = store.stat(key)  # another publisher of the same wheel was faster
    if stat is None or not _is_same(store, key, stat, promised):
        raise InfrastructureError(
            f"{store.url(key)} holds other bytes than its record says",
            hint="something other than the farm changed it; `farm index check` lists what else is "
            "broken",
        )
    return False


def _is_same(store: Store, key: str, stat: Stat, promised: Stat) -> bool:
    """Does the stored object have the promised size and bytes? Hashes it if the store has no
    digest.
    """
    return stat.size == promised.size and stored_sha256(store, key, stat) == promised.sha256


def delete_removed(store: Store, filenames: Iterable[str]) -> None:
    """Delete the files of wheels that were removed while they were being published."""
    for filename in filenames:
        if read_state(store, filename).removed is not None:
            delete_files(store, filename)


def delete_files(store: Store, filename: str) -> None:
    """Delete the files of a removed wheel, once no page leads to them."""
    store.discard(wheel_key(filename))
    store.discard(metadata_key(filename))
