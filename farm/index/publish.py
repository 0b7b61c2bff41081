"""How a wheel gets into the index: in an order that never shows a client what is not there.

1. The record claims the name for these bytes, or the publish is refused. It holds the attestation when there is a key.
2. The wheel and its `.metadata` are stored.
3. The JSON page of the project takes the file in (compare and swap).
4. Its HTML pages follow, the lists of projects if something is new, then its section of `links.html`, which also holds
   the signed digests of all these pages when there is a key.
5. The list of groups and the catalogue follow if something is new.

Every step does nothing when it is done already, so a publisher that was killed anywhere is completed by
running it again, and publishers of the same or other wheels may run at the same time. The number of requests
does not depend on what is there; `docs/wheel-index.md` has it.
A wheel that goes up in parts (`farm.index.multipart`) needs 5 more, and one for each part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index import naming, pages
from farm.index.admission import PYPI_RULES, Admission, check_name, check_place
from farm.index.events import list_wheels, state_of
from farm.index.lifecycle import delete_bytes
from farm.index.listing import Listed, Listing, Look
from farm.index.probe import proved_catalogue
from farm.index.provenance import attest, attested
from farm.index.records import Record, describe, parse_record, record_key
from farm.index.signing import Signer
from farm.index.stores import Progress, Store
from farm.index.swap import Prediction


@dataclass(frozen=True)
class PublishResult:
    """What came of it.

    Attributes:
        record: What the index holds about the wheel.
        changed: False when everything was in place before.
        wheel_url: Where the wheel lies.
        index_url: What to give to `pip --index-url`; a server must answer a folder with its index.html.
        pages: The keys of the pages that show it.
        unsigned: The index is signed, and this was published without a key (`farm.index.roles.UNSIGNED`).
    """

    record: Record
    changed: bool
    wheel_url: str
    index_url: str
    pages: tuple[str, ...]
    unsigned: bool


class NameTakenError(PublishRefusedError):
    """The name stands for other bytes already."""


def publish(
    store: Store,
    wheel: Path,
    *,
    group: str,
    metadata: bytes,
    upload_time: datetime,
    provenance: Mapping[str, Any],
    channel: str | None = None,
    signer: Signer | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
    single_writer: bool = False,
) -> PublishResult:
    """Publishes a wheel, or completes what an earlier call began.

    Args:
        store: Where to; it is proved first unless that was done on this object.
        wheel: The file; its name is the name in the index.
        group: The root under which clients find it, `sm35-avx` for one.
        metadata: The bytes of the wheel's METADATA.
        upload_time: With a time zone. The first publish of a file decides.
        provenance: Digests of plan and reports, as JSON; kept in the record of the first publish.
        channel: The channel that built it, if it is to be in that channel's root as well.
        signer: Signs the attestation of the wheel and the pages.
        policy: What is taken beyond PyPI's rules.
        progress: Gets how many bytes of the wheel are stored.
        single_writer: Nobody else writes there: see `farm.index.probe.prove`.

    Raises:
        PublishRefusedError: The name stands for other bytes, or for another group; or the wheel's name, METADATA and
            content disagree; or METADATA is unsound; or the project's name can be mistaken for another's; or the store
            does not keep conditional writes. Nothing was changed.
        UsageError: A bad group or channel, an unreadable wheel, no credentials.
        InfrastructureError: The store failed; run it again.
    """
    ours = describe(
        wheel,
        group=naming.check_group(group),
        metadata=metadata,
        upload_time=upload_time,
        provenance=provenance,
        channel=None if channel is None else naming.check_group(channel),
        policy=policy,
    )
    return put(
        store, ours, wheel, metadata, signer=signer, policy=policy, progress=progress, single_writer=single_writer
    )


def put(
    store: Store,
    ours: Record,
    wheel: Path,
    metadata: bytes,
    *,
    signer: Signer | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
    single_writer: bool = False,
) -> PublishResult:
    """Publishes a wheel that `describe` has read; arguments and errors are those of `publish`."""
    (group,) = ours.groups
    # Everything that can refuse comes before the claim: a refused wheel must not take the name.
    catalogue = Prediction(proved_catalogue(store, single_writer=single_writer))
    listing = Listing(store, signer, catalogue)  # refuses another key before anything is claimed
    check_name(ours.project, listing.known.names, policy)
    look = listing.look(group, ours.project)
    page = None if look.page is None else pages.parse_page(look.page.data, pages.json_key(group, ours.project))
    check_place(page, ours.project, ours.filename)
    record, claimed, stored = take(store, ours, wheel, metadata, signer=signer, progress=progress)
    listed = list_taken(listing, record, look if claimed else None)
    changed = claimed or stored or listed.changed
    return PublishResult(
        record=record,
        changed=changed,
        wheel_url=store.url(pages.wheel_key(record.filename)),
        index_url=store.url(pages.root_key(group).removesuffix("index.html")),
        pages=tuple(sorted(listed.pages)),
        unsigned=changed and signer is None and listing.known.keys is not None,
    )


class Taken(NamedTuple):
    """A wheel that has its name and lies in the store, and is on no page yet.

    Attributes:
        record: What the index holds about it.
        claimed: Its name was free before.
        stored: Something of it was not there before.
    """

    record: Record
    claimed: bool
    stored: bool


def take(
    store: Store,
    ours: Record,
    wheel: Path,
    metadata: bytes,
    *,
    signer: Signer | None = None,
    progress: Progress | None = None,
) -> Taken:
    """Claims the name and stores the files. All that could refuse the wheel was asked before.

    Raises:
        PublishRefusedError: The name stands for other bytes, for another group, or was removed.
    """
    if signer is not None:
        ours = attested(ours, signer)
    # The first write. From here on a kill leaves a publish that the same call completes.
    record, claimed = _claim(store, ours)
    stored = [
        _store_file(
            store,
            pages.wheel_key(record.filename),
            wheel,
            record.size,
            record.sha256,
            fresh=claimed,
            progress=progress,
        ),
        _store_file(
            store,
            pages.metadata_key(record.filename),
            metadata,
            len(metadata),
            record.metadata_sha256,
            fresh=claimed,
        ),
    ]
    if signer is not None:
        stored.append(attest(store, record, signer))
    return Taken(record, claimed, any(stored))


def list_taken(listing: Listing, record: Record, look: Look | None = None) -> Listed:
    """Puts a wheel that was taken on the pages of its group.

    Raises:
        PublishRefusedError: Somebody else removed it, or it cannot be on this page.
    """
    try:
        return _list(listing, record, record.groups[0], look)
    except PublishRefusedError:
        # Whoever removed the wheel meanwhile may have deleted its bytes before they were stored.
        if state_of(listing.store, record).removed is not None:
            delete_bytes(listing.store, record.filename)
        raise


def _list(listing: Listing, record: Record, group: str, look: Look | None) -> Listed:
    if record.source is None:
        return list_wheels(listing, [record], group, look=look)
    # Of the wheel that it is a copy of something may be said while nothing leads from it to the copy: so read again.
    state = None
    while state != (state := state_of(listing.store, record)):
        listed = list_wheels(listing, [record], group, {record.filename: state}, look=look)
    if state.removed is not None:
        raise PublishRefusedError(f"{record.source} was removed")
    return listed


def _claim(store: Store, ours: Record) -> tuple[Record, bool]:
    """The record that holds the name, ours or the same wheel's from before, and whether it is new."""
    key = record_key(ours.filename)
    if store.create(key, ours.render(), content_type="application/json"):
        return ours, True
    there = store.get(key)
    if there is None:
        raise InfrastructureError(
            f"{store.url(key)} was refused as existing and cannot be read: the store contradicts itself"
        )
    record = parse_record(there.data, key)
    if record.sha256 != ours.sha256:
        raise NameTakenError(
            f"{ours.filename} is taken: the index holds sha256 {record.sha256}, this file has {ours.sha256}",
            hint="published names never change their bytes; append .1 (.2 ...) to the local version",
        )
    if record.source != ours.source:
        raise PublishRefusedError(f"{ours.filename} is a copy of {record.source}, not of {ours.source}")
    # Same bytes, other root: a record is never rewritten, and `farm index promote` is the way into another group.
    if record.groups != ours.groups:
        raise PublishRefusedError(
            f"{ours.filename} is published in {', '.join(record.groups)}, not in {', '.join(ours.groups)}"
        )
    removed = state_of(store, record).removed
    if removed is not None:
        raise PublishRefusedError(
            f"{record.filename} was removed ({removed or 'no reason given'}); its name stays taken",
            hint="append .1 (.2 ...) to the local version: --rebuild 1",
        )
    return record, False


def _store_file(
    store: Store,
    key: str,
    data: bytes | Path,
    size: int,
    sha256: str,
    *,
    fresh: bool,
    progress: Progress | None = None,
) -> bool:
    """Stores a file of a claimed wheel; False when it was there. Looks first unless the claim is new."""
    # A new claim means that nobody stored the file yet: one request less in the usual case.
    there = None if fresh else store.stat(key)
    if there is None:
        if store.create(key, data, content_type="application/octet-stream", sha256=sha256, progress=progress):
            return True
        there = store.stat(key)  # the same wheel's other publisher was faster
    if there is None or there.size != size or there.sha256 not in {sha256, None}:
        raise InfrastructureError(
            f"{store.url(key)} holds other bytes than its record says",
            hint="something other than the farm changed it; `farm index check` lists what else is broken",
        )
    return False
