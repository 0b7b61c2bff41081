"""Publishing many wheels: files and folders of them, or all wheels of other indexes.

A wheel that may not be published is left out, with the reason; run again, the command takes what is
missing. Nothing is known about how a file was built: its provenance says where it came from, and no
more. A wheel of another index keeps the provenance of its record.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import (
    InfrastructureError,
    PublishRefusedError,
    UsageError,
    VerificationFailedError,
)
from farm.base.temporary import temporary_folder
from farm.index import pages
from farm.index.admission import PYPI_RULES, Admission, Checked, check_name, describe
from farm.index.layout import SMOKE, check_group, parse_wheel_name, wheel_key
from farm.index.page_writer import PageWriter
from farm.index.pages import ProjectPage, read_page
from farm.index.publish import check_place, check_store, claim, delete_removed
from farm.index.records import PREDICATE, Record, Wheel, WheelsByPlace, read_all
from farm.index.stores import Store

MIN_BATCH = 16
"""Wheels are listed together once there are that many, and as many as were listed before. Each
change writes a page whole, so the bytes written grow with the number of wheels and not with its
square.
"""


class Offer(NamedTuple):
    """A wheel that may be published.

    Attributes:
        path: The file, or the name of a wheel in `source`.
        group: Where to list it.
        channel: The channel that it was built for.
        record: What the other index says about it.
        source: The other index.
        reports: Keys of its smoke tests in `source`.
    """

    path: Path
    group: str
    channel: str | None = None
    record: Record | None = None
    source: Store | None = None
    reports: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Wheels that were published, and those that were left out, each with the reason."""

    wheels: tuple[str, ...]
    left_out: Mapping[str, str]


def in_folders(
    places: Iterable[Path], group: str, channel: str | None = None
) -> tuple[list[Offer], dict[str, str]]:
    """Offers for named wheels and all wheels below folders.

    Returns:
        The offers, and what is left out, each with the reason.

    Raises:
        UsageError: A place does not exist or has no wheels.
    """
    offers: dict[str, Offer] = {}
    left_out: dict[str, str] = {}
    for place in places:
        for path in _wheel_files(place):
            earlier = offers.get(path.name)
            if not path.is_file():  # a pipe would be waited for
                left_out[path.name] = f"{path} is {_file_kind(path)}"
            elif earlier is None:
                offers[path.name] = Offer(path, group, channel)
            elif earlier.path.resolve() != path.resolve():
                left_out[path.name] = f"{earlier.path} and {path} have the same name"
    return list(offers.values()), left_out


def _wheel_files(place: Path) -> list[Path]:
    paths = [place]
    if place.is_dir() and place.suffix != ".whl":
        paths = sorted(place.rglob("*.whl"))
    if paths and (place.exists() or place.is_symlink()):
        return paths
    if place.is_dir():
        raise UsageError(f"no wheels in {place}")
    raise UsageError(f"{place}: no such file or folder")


def _file_kind(path: Path) -> str:
    if path.is_symlink():
        return "a dangling link"
    if path.is_dir():
        return "a folder"
    return "not a file"


def in_index(source: Store, group: str | None = None) -> tuple[list[Offer], dict[str, str]]:
    """Offers for the wheels of another index, with their groups, records and smoke tests.

    Returns:
        The offers, and those that are yanked or removed there, each with the reason.
    """
    wheels = read_all(source, [*source.list("records/"), *source.list("events/")])
    reports: dict[str, list[str]] = defaultdict(list)
    for key in source.list(SMOKE):
        reports[key.split("/")[1]].append(key)
    offers = list[Offer]()
    left_out = dict[str, str]()
    for name, (record, state) in wheels.items():
        if state.removed is not None:
            left_out[name] = f"{name} is removed there"
        elif state.yanked is not False:
            left_out[name] = f"{name} is yanked there"
        else:
            place = group or record.groups[0]
            keys = tuple(reports[name])
            offers.append(Offer(Path(name), place, record.channel, record, source, keys))
    return offers, left_out


def publish_all(
    store: Store,
    offers: Iterable[Offer],
    *,
    policy: Admission = PYPI_RULES,
    progress: Callable[[str], None] = lambda _name: None,
) -> Batch:
    """Publish wheels, and leave out those that may not be published.

    Args:
        store: The index.
        offers: The wheels.
        policy: Exceptions from PyPI's rules.
        progress: Called with the name of each wheel that was published.
    """
    offers = list(offers)
    for offer in offers:
        check_group(offer.group)
        if offer.channel is not None:
            check_group(offer.channel)
    publisher = _BatchPublisher(store, policy, progress)
    for offer in offers:
        try:
            publisher.add(offer)
        except (PublishRefusedError, VerificationFailedError) as error:
            publisher.left_out[offer.path.name] = str(error)
        except (InfrastructureError, UsageError):
            publisher.flush()  # what was claimed before
            raise
    publisher.flush()
    return Batch(tuple(publisher.listed), publisher.left_out)


class _BatchPublisher:
    """Wheels that are stored and wait to be listed together."""

    def __init__(self, store: Store, policy: Admission, progress: Callable[[str], None]) -> None:
        self.store = store
        self.policy = policy
        self.progress = progress
        self.writer = PageWriter(store, check_store(store))
        self.expected: dict[tuple[str, str], ProjectPage] = {}
        """The pages as they will be, with the wheels that wait."""
        self.waiting: WheelsByPlace = {}
        self.listed: list[str] = []
        self.left_out: dict[str, str] = {}

    def add(self, offer: Offer) -> None:
        """Claim the name and store the files; what is listed already is not fetched again."""
        try:
            project, _version = parse_wheel_name(offer.path.name)
        except ValueError as error:
            raise PublishRefusedError(str(error)) from error
        page = self._page(offer.group, project)
        listed_sha256 = _listed_sha256(page, offer.path.name)
        projects = self.waiting.setdefault(offer.group, {})
        if offer.record is not None and offer.record.sha256 == listed_sha256:
            self._copy_reports(offer)
            # What follows from the page is written again: an earlier call may have been killed.
            projects.setdefault(project, [])
            return
        with temporary_folder("farm-publish-") as folder:
            checked = self._describe(offer, folder)
            if checked.record.sha256 == listed_sha256:
                projects.setdefault(project, [])
                return
            waiting_projects = {name for _, name in self.expected}
            check_name(project, self.writer.catalogue.names | waiting_projects, self.policy)
            check_place(page, Wheel(checked.record))
            claimed = claim(self.store, checked)
        self._copy_reports(offer)
        projects.setdefault(project, []).append(claimed.wheel)
        update = pages.updated(page, project, [claimed.wheel])
        self.expected[offer.group, project] = update.page
        if self._waiting_count() >= max(MIN_BATCH, len(self.listed)):
            self.flush()

    def _waiting_count(self) -> int:
        count = 0
        for projects in self.waiting.values():
            count += sum(map(len, projects.values()))
        return count

    def _describe(self, offer: Offer, folder: Path) -> Checked:
        """The wheel, fetched if it is in another index.

        Its provenance and upload time are those of its record.
        """
        now = datetime.now(UTC)
        if offer.source is None or offer.record is None:
            checked = describe(
                offer.path,
                group=offer.group,
                upload_time=now,
                provenance={},
                channel=offer.channel,
                policy=self.policy,
            )
            provenance = {PREDICATE: _adoption_predicate(checked.record)}
            record = checked.record.model_copy(update={"provenance": provenance})
            return checked._replace(record=record)
        return describe(
            _fetch(offer.source, offer.record, folder),
            group=offer.group,
            upload_time=min(datetime.fromisoformat(offer.record.upload_time), now),
            provenance=offer.record.provenance,
            channel=offer.channel,
            policy=self.policy,
        )

    def _copy_reports(self, offer: Offer) -> None:
        for key in offer.reports:
            if offer.source is None:
                continue
            report = offer.source.get(key)
            if report is not None:
                self.store.create(key, report.data, content_type="application/json")

    def flush(self) -> None:
        """List all wheels that wait."""
        waiting = self.waiting
        self.waiting = {}
        for group, projects in waiting.items():
            if not projects:
                continue
            self.writer.refused = {}
            self.writer.write(group, projects)
            self.left_out |= self.writer.refused
            delete_removed(self.store, self.writer.refused)
            for wheels in projects.values():
                for wheel in wheels:
                    if wheel.name not in self.writer.refused:
                        self.listed.append(wheel.name)
                        self.progress(wheel.name)

    def _page(self, group: str, project: str) -> ProjectPage | None:
        if (group, project) not in self.expected:
            page = read_page(self.store, group, project)
            if page is None:
                return None
            self.expected[group, project] = page
        return self.expected[group, project]


def _listed_sha256(page: ProjectPage | None, name: str) -> str | None:
    """The digest that a page states of a wheel; None if it does not list it."""
    if page is None or name not in page.entries:
        return None
    return page.entries[name].hashes.sha256


def _fetch(source: Store, record: Record, folder: Path) -> Path:
    """Download a wheel of another index; VerificationFailedError if it is not as recorded."""
    digest = hashlib.sha256()
    path = folder / record.filename
    with path.open("wb") as file:
        for chunk in source.chunks(wheel_key(record.filename)):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != record.sha256:
        raise VerificationFailedError(
            f"{source.url(wheel_key(record.filename))} is not as its record says"
        )
    return path


def _adoption_predicate(record: Record) -> dict[str, Any]:
    """The SLSA predicate of a wheel that was not built here: what it was taken from."""
    definition = {
        "buildType": "urn:torch-farm:adopted:v1",
        "externalParameters": {"wheel": record.filename},
        "resolvedDependencies": [{"uri": record.filename, "digest": {"sha256": record.sha256}}],
    }
    return {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:torch-farm"}}}
