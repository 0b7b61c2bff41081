"""Publishes many wheels: files and folders of them, or all wheels of other indexes. Run again it takes what is missing.

A wheel that may not be published is left out, with the reason; the others are published. How a file was built nobody
can say here: its provenance says where it came from, and no more. Of another index its record says it.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.index import pages
from farm.index.admission import PYPI_RULES, Admission, Checked, check_name, describe
from farm.index.layout import SMOKE, check_group, parse_wheel_name, wheel_key
from farm.index.pages import ProjectPage, read_page
from farm.index.publish import Pages, check_place, check_store, claim, take_back
from farm.index.records import PREDICATE, Record, Wheel, read_all
from farm.index.stores import Store

FEWEST = 16
"""Wheels are listed together once there are that many, and as many as were listed before: each change writes a page
whole, and so the bytes written grow with the number of wheels and not with its square."""


class Offer(NamedTuple):
    """A wheel that may be published: a file, or the name of one in another index, `source`.

    `record` is what the other index says of it, `reports` are the keys of its smoke tests there.
    """

    path: Path
    group: str
    channel: str | None = None
    record: Record | None = None
    source: Store | None = None
    reports: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Wheels that were published (or would be), and those that were left out, each with the reason."""

    wheels: tuple[str, ...]
    left_out: Mapping[str, str]


def in_folders(places: Iterable[Path], group: str, channel: str | None = None) -> tuple[list[Offer], dict[str, str]]:
    """The wheels in folders and below them, and wheels that are named themselves; and what is none, with the reason."""
    offers: dict[str, Offer] = {}
    left_out: dict[str, str] = {}
    for place in places:
        found = sorted(place.rglob("*.whl")) if place.is_dir() and place.suffix != ".whl" else [place]
        if not found or not (place.exists() or place.is_symlink()):
            raise UsageError(f"no wheels in {place}" if place.is_dir() else f"{place}: no such file or folder")
        for path in found:
            before = offers.get(path.name)
            if not path.is_file():  # a pipe would be waited for
                kind = "a dangling link" if path.is_symlink() else "a folder" if path.is_dir() else "not a file"
                left_out[path.name] = f"{path} is {kind}"
            elif before is None:
                offers[path.name] = Offer(path, group, channel)
            elif before.path.resolve() != path.resolve():
                left_out[path.name] = f"{before.path} and {path} have the same name"
    return list(offers.values()), left_out


def in_index(source: Store, group: str | None = None) -> tuple[list[Offer], dict[str, str]]:
    """The wheels of another index, with their groups, records and smoke tests; not those that are yanked there."""
    wheels = read_all(source, [*source.list("records/"), *source.list("events/")])
    offers, left_out = list[Offer](), dict[str, str]()
    reports: dict[str, list[str]] = defaultdict(list)
    for key in source.list(SMOKE):
        reports[key.split("/")[1]].append(key)
    for name, (record, state) in wheels.items():
        if state.removed is not None or state.yanked is not False:
            left_out[name] = f"{name} is {'yanked' if state.removed is None else 'removed'} there"
        else:
            place = group or record.groups[0]
            offers.append(Offer(Path(name), place, record.channel, record, source, tuple(reports[name])))
    return offers, left_out


def publish_all(
    store: Store,
    offers: Iterable[Offer],
    *,
    policy: Admission = PYPI_RULES,
    progress: Callable[[str], None] = lambda _name: None,
) -> Batch:
    """Publishes wheels, and leaves out those that may not be published here; `progress` gets the name of each."""
    offers = list(offers)
    for name in {each for offer in offers for each in (offer.group, offer.channel) if each is not None}:
        check_group(name)
    writer = _Writer(store, policy, progress)
    for offer in offers:
        try:
            writer.add(offer)
        except (PublishRefusedError, VerificationFailedError) as error:
            writer.left_out[offer.path.name] = str(error)
        except (InfrastructureError, UsageError):
            writer.flush()  # what was claimed before
            raise
    writer.flush()
    return Batch(tuple(writer.listed), writer.left_out)


class _Writer:
    """Wheels that are stored and wait to be listed together."""

    def __init__(self, store: Store, policy: Admission, progress: Callable[[str], None]) -> None:
        self.store, self.policy, self.progress = store, policy, progress
        self.pages = Pages(store, check_store(store))
        self.shown: dict[tuple[str, str], ProjectPage] = {}
        """The pages as they will be, with those that wait."""
        self.waiting: dict[str, dict[str, list[Wheel]]] = {}
        self.listed: list[str] = []
        self.left_out: dict[str, str] = {}

    def add(self, offer: Offer) -> None:
        """Claims the name and stores the files; what is listed already is not fetched again."""
        try:
            project, _version = parse_wheel_name(offer.path.name)
        except ValueError as error:
            raise PublishRefusedError(str(error)) from error
        page = self._page(offer.group, project)
        there = None if page is None else page.entries.get(offer.path.name)
        projects = self.waiting.setdefault(offer.group, {})
        if there is not None and offer.record is not None and offer.record.sha256 == there.hashes.sha256:
            self._copy_reports(offer)
            projects.setdefault(project, [])  # all that follows from the page is looked at: a call may have been killed
            return
        with temporary_folder("farm-publish-") as folder:
            ours = self._describe(offer, folder)
            if there is not None and there.hashes.sha256 == ours.record.sha256:
                projects.setdefault(project, [])
                return
            check_name(project, self.pages.known.names | {name for _, name in self.shown}, self.policy)
            check_place(page, Wheel(ours.record))
            claimed = claim(self.store, ours)
        self._copy_reports(offer)
        projects.setdefault(project, []).append(claimed.wheel)
        self.shown[offer.group, project] = pages.updated(page, project, [claimed.wheel]).page
        if sum(len(each) for group in self.waiting.values() for each in group.values()) >= max(
            FEWEST, len(self.listed)
        ):
            self.flush()

    def _describe(self, offer: Offer, folder: Path) -> Checked:
        """The wheel, fetched where it is in another index; its provenance and upload time are those of its record."""
        before, now = offer.record, datetime.now(UTC)
        ours = describe(
            offer.path if offer.source is None or before is None else _fetched(offer.source, before, folder),
            group=offer.group,
            upload_time=now if before is None else min(datetime.fromisoformat(before.upload_time), now),
            provenance={} if before is None else before.provenance,
            channel=offer.channel,
            policy=self.policy,
        )
        if before is not None:
            return ours
        record = ours.record.model_copy(update={"provenance": {PREDICATE: _adopted(ours.record)}})
        return ours._replace(record=record)

    def _copy_reports(self, offer: Offer) -> None:
        for key in offer.reports:
            if offer.source is not None and (found := offer.source.get(key)) is not None:
                self.store.create(key, found.data, content_type="application/json")

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for group, projects in ((group, projects) for group, projects in waiting.items() if projects):
            self.pages.refused = {}
            self.pages.write(group, projects)
            self.left_out |= self.pages.refused
            take_back(self.store, self.pages.refused)
            names = [each.name for wheels in projects.values() for each in wheels]
            names = [name for name in names if name not in self.pages.refused]
            self.listed += names
            for name in names:
                self.progress(name)

    def _page(self, group: str, project: str) -> ProjectPage | None:
        if (group, project) not in self.shown:
            page = read_page(self.store, group, project)
            if page is None:
                return None
            self.shown[group, project] = page
        return self.shown[group, project]


def _fetched(source: Store, record: Record, folder: Path) -> Path:
    digest, path = hashlib.sha256(), folder / record.filename
    with path.open("wb") as file:
        for chunk in source.chunks(wheel_key(record.filename)):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != record.sha256:
        raise VerificationFailedError(f"{source.url(wheel_key(record.filename))} is not as its record says")
    return path


def _adopted(record: Record) -> dict[str, Any]:
    """The SLSA predicate of a wheel that was not built here: what it was taken from."""
    definition = {
        "buildType": "urn:torch-farm:adopted:v1",
        "externalParameters": {"wheel": record.filename},
        "resolvedDependencies": [{"uri": record.filename, "digest": {"sha256": record.sha256}}],
    }
    return {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:torch-farm"}}}
