"""How a wheel gets into the index: in an order that never shows a client what is not there.

1. The record claims the name for these bytes, or the publish is refused.
2. The wheel and its `.metadata` are stored.
3. The JSON page of the project takes the file in (compare and swap).
4. Its HTML page, its section of `links.html` and the list of projects follow.

Every step does nothing when it is done already, so a publisher that was killed anywhere is completed by
running it again, and publishers of the same or other wheels may run at the same time. The number of requests
does not depend on what is there: at most 11 for a new wheel, and one that reads the store's proof once a process.
A wheel that goes up in parts (`farm.index.multipart`) needs 5 more, and one for each part.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from farm.errors import InfrastructureError, PublishRefusedError
from farm.index import pages
from farm.index.probe import prove
from farm.index.records import Record, describe, parse_record, record_key
from farm.index.stores import Progress, Store

SWAP_TRIES = 60
"""32 writers of one page needed 9 tries at most on three servers; this bounds what is surely broken."""


@dataclass(frozen=True)
class PublishResult:
    """What came of it.

    Attributes:
        record: What the index holds about the wheel.
        changed: False when everything was in place before.
        wheel_url: Where the wheel lies.
        index_url: What to give to `pip --index-url`; a server must answer a folder with its index.html.
        links_url: What to give to `pip --find-links`.
    """

    record: Record
    changed: bool
    wheel_url: str
    index_url: str
    links_url: str


class NameTakenError(PublishRefusedError):
    """The name stands for other bytes already."""


class _LostRaceError(InfrastructureError):
    pass


def publish(
    store: Store,
    wheel: Path,
    *,
    group: str,
    metadata: bytes,
    upload_time: datetime,
    provenance: Mapping[str, Any],
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
        progress: Told how many bytes of the wheel are stored.
        single_writer: Nobody else writes there: see `farm.index.probe.prove`.

    Raises:
        PublishRefusedError: The name stands for other bytes, or for another group; or the wheel's name,
            METADATA and content disagree; or the store does not keep conditional writes. Nothing was changed.
        UsageError: A bad group, an unreadable wheel, no credentials.
        InfrastructureError: The store failed; run it again.
    """
    ours = describe(
        wheel,
        group=pages.check_group(group),
        metadata=metadata,
        upload_time=upload_time,
        provenance=provenance,
    )
    prove(store, single_writer=single_writer)
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
    listed = _list_file(store, record, group)
    return PublishResult(
        record=record,
        changed=claimed or any(stored) or listed,
        wheel_url=store.url(pages.wheel_key(record.filename)),
        index_url=store.url(pages.root_key(group).removesuffix("index.html")),
        links_url=store.url(pages.links_key(group)),
    )


def _claim(store: Store, ours: Record) -> tuple[Record, bool]:
    """The record that holds the name, ours or the same wheel's from before, and whether it is new."""
    key = record_key(ours.filename)
    if store.create(key, ours.render(), content_type="application/json"):
        return ours, True
    there = store.get(key)
    if there is None:
        raise InfrastructureError(f"{store.url(key)} exists and does not: the store contradicts itself")
    record = parse_record(there.data, key)
    if record.sha256 != ours.sha256:
        raise NameTakenError(
            f"{ours.filename} is taken: the index holds sha256 {record.sha256}, this file has {ours.sha256}",
            hint="published names never change their bytes; append .1 (.2 ...) to the local version",
        )
    if record.groups != ours.groups:
        raise PublishRefusedError(
            f"{ours.filename} is published in {', '.join(record.groups)}, not in {', '.join(ours.groups)}"
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
    there = None if fresh else store.stat(key)
    if there is None:
        if store.create(key, data, content_type="application/octet-stream", sha256=sha256, progress=progress):
            return True
        there = store.stat(key)  # the same wheel's other publisher was faster
    if there is None or there.size != size or there.sha256 not in {sha256, None}:
        raise InfrastructureError(
            f"{store.url(key)} holds other bytes than its record says",
            hint="somebody wrote there past the farm; `farm index check` tells what else is broken",
        )
    return False


def _list_file(store: Store, record: Record, group: str) -> bool:
    """Puts the file on all pages; False when all showed it."""
    project = record.project
    key = pages.json_key(group, project)

    def add(old: bytes | None) -> bytes | None:
        before = None if old is None else pages.parse_page(old, key)
        after = pages.with_file(before, project, record.file())
        return None if after is before else after.render()

    data, listed = _swap(store, key, add, pages.JSON)
    page = pages.parse_page(data, key)
    return any([listed, *_derive(store, group, page)])


def _derive(store: Store, group: str, page: pages.ProjectPage) -> list[bool]:
    """Brings HTML, `links.html` and the list of projects to at least this generation of a project's page."""
    html, links, root = pages.html_key(group, page.name), pages.links_key(group), pages.root_key(group)

    def new_html(old: bytes | None) -> bytes | None:
        if old is not None and pages.generation_of(old, html) >= page.generation:
            return None
        return pages.project_html(page)

    def new_links(old: bytes | None) -> bytes | None:
        sections = {} if old is None else pages.parse_links(old, links)
        if page.name in sections and sections[page.name].generation >= page.generation:
            return None
        return pages.links_html(group, sections | {page.name: pages.links_section(page)})

    def new_root(old: bytes | None) -> bytes | None:
        projects = set() if old is None else pages.parse_root(old, root)
        return None if page.name in projects else pages.root_html(group, projects | {page.name})

    return [
        _swap(store, html, new_html, pages.HTML)[1],
        _swap(store, links, new_links, pages.HTML)[1],
        _swap(store, root, new_root, pages.HTML)[1],
    ]


def _swap(
    store: Store, key: str, change: Callable[[bytes | None], bytes | None], content_type: str
) -> tuple[bytes, bool]:
    """Compare and swap: reads, changes, writes if nobody else wrote, again if somebody did.

    Args:
        store: Where.
        key: What.
        change: From the old content (None: absent) to the new (None: leave it). Called again after a
            lost race.
        content_type: The media type.

    Returns:
        The content that is there now, and whether we wrote it.
    """

    def once() -> tuple[bytes, bool]:
        old = store.get(key)
        new = change(None if old is None else old.data)
        if new is None:
            assert old is not None, "nothing can be left as it is where nothing is"
            return old.data, False
        if not store.replace(key, new, None if old is None else old.etag, content_type=content_type):
            raise _LostRaceError(f"{store.url(key)}: {SWAP_TRIES} times somebody else wrote first", hint="run it again")
        return new, True

    return Retrying(
        stop=stop_after_attempt(SWAP_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        retry=retry_if_exception_type(_LostRaceError),
        reraise=True,
    )(once)
