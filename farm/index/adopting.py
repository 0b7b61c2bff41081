"""Takes wheels that lie in another index or in a folder into this one. Run again it takes what is missing.

Each wheel must be what `publish` asks: its name, METADATA and bytes must agree, and its name must be free. What another
index says of a wheel is believed in two things: its sha256, which the bytes must have, and its upload time.
How it was built nobody can say here: its provenance says where it came from, and no more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError, VerificationFailedError
from farm.base.hashes import sha256_of
from farm.base.temporary import temporary_folder
from farm.index import naming, pages
from farm.index.admission import PYPI_RULES, Admission, check_name, check_place
from farm.index.events import list_wheels, read_state, state_of
from farm.index.listing import Listing
from farm.index.pages import File
from farm.index.probe import prove
from farm.index.provenance import made_from
from farm.index.publish import Taken, list_taken, take
from farm.index.records import Record, describe, metadata_inside, parse_record, record_key
from farm.index.signing import Signer
from farm.index.simple import check_source, download, project_files
from farm.index.stores import Store

BUILD_TYPE = "urn:torch-farm:adopted:v1"


class Offer(NamedTuple):
    """A wheel that lies elsewhere.

    Attributes:
        filename: Its name, there and here.
        sha256: What its bytes must hash to; empty where the other index does not say.
        path: The file, if it lies on this machine.
        link: The entry of the other index, if it lies there.
    """

    filename: str
    sha256: str
    path: Path | None = None
    link: File | None = None

    @property
    def uri(self) -> str:
        """Where it came from, for its provenance: without credentials, and without a path of this machine."""
        parts = urlsplit(self.link.url or "") if self.link else None
        if parts is None or parts.scheme == "file":
            return self.filename
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def upload_time(self) -> datetime:
        """What the other index says, if it is a time that has been; else now."""
        now = datetime.now(UTC)
        try:
            time = datetime.fromisoformat((self.link.upload_time if self.link else None) or "")
            return time if time <= now else now
        except (ValueError, TypeError):  # no time, or one without a zone
            return now


class Adopted(NamedTuple):
    """Wheels that were taken in (or would be), and those that were left out, each with the reason."""

    wheels: tuple[str, ...]
    left_out: Mapping[str, str]


def in_folder(*places: Path) -> Iterator[Offer]:
    """The wheels in folders and below them, and wheels that are named themselves; one that is met twice counts once.

    Raises:
        UsageError: A place has none, two have the same name, or one cannot be read.
    """
    found: dict[str, Path] = {}
    for path in (each for place in places for each in _wheels(place)):
        before = found.setdefault(path.name, path)
        if before != path and before.resolve() != path.resolve():
            raise UsageError(f"{before} and {path} have the same name", hint="name the right one, or its folder")
    for path in found.values():
        try:
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise UsageError(f"{path} is not a file", hint="take it out of the folder")
            digest = sha256_of(path)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        yield Offer(path.name, digest, path=path)


def _wheels(place: Path) -> list[Path]:
    found = [place] if place.is_file() else sorted(place.rglob("*.whl"))
    if not found:
        raise UsageError(f"no wheels in {place}" if place.is_dir() else f"{place}: no such file or folder")
    return found


def in_index(source: str, projects: Iterable[str]) -> Iterator[Offer]:
    """The wheels of some projects in another index, but for those that are yanked there.

    Args:
        source: The root of its simple API: http(s):// or file://.
        projects: Their names; one that is named twice, or in two spellings, counts once.

    Raises:
        UsageError: The source is not a URL of an index, or has no such project, or no wheel of it.
        InfrastructureError: It does not answer.
    """
    check_source(source)
    for project in {canonicalize_name(each): each for each in projects}.values():
        unhashed: list[str] = []
        files = project_files(source, project, unhashed.append)
        if not files and not unhashed:  # a page that asks for a login has none either
            raise UsageError(
                f"{source} has no wheel of {project!r} that is not yanked",
                hint="open its page in a browser: does it list the wheels, without a login?",
            )
        for file in {(each.filename, each.hashes): each for each in files}.values():
            yield Offer(file.filename, file.hashes.sha256, link=file)
        for name in unhashed:
            yield Offer(name, "")


def adopt(
    store: Store,
    offers: Iterable[Offer],
    *,
    group: str,
    channel: str | None = None,
    signer: Signer | None = None,
    policy: Admission = PYPI_RULES,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _name: None,
) -> Adopted:
    """Publishes wheels that lie elsewhere, and leaves out what may not be published here.

    Args:
        store: Where to.
        offers: What there is: `in_folder`, `in_index`.
        group: The root under which clients find them, `sm35-avx` for one.
        channel: The channel in whose root they are to be as well.
        signer: Signs their attestations and the pages.
        policy: What is taken beyond PyPI's rules.
        dry_run: Only say what would be taken in; wheels in another index are not downloaded for that.
        progress: Gets the name of each wheel that is listed now.

    Raises:
        PublishRefusedError: The index is signed with another key, or the store does not keep conditional writes.
        InfrastructureError: A store or the other index failed; run it again.
    """
    for name in (group, channel):
        if name is not None:
            naming.check_group(name)
    if not dry_run:
        prove(store)
    Listing(store, signer)  # refuses another key before anything is downloaded
    present = _Present(store, group, None if dry_run else lambda: Listing(store, signer))
    taken: list[str] = []
    left_out: dict[str, str] = {}
    batch = _Batch(store, group, signer, policy)

    def flush() -> None:
        listed, refused = batch.flush()
        left_out.update(refused)
        taken.extend(listed)
        for name in listed:
            progress(name)

    def take_in(offer: Offer) -> None:
        if present.has(offer):
            return
        with temporary_folder("farm-adopt-") as folder:
            if dry_run and offer.path is None:
                taken.append(offer.filename)
                return
            wheel, metadata = _fetched(offer, folder)
            record = describe(
                wheel,
                group=group,
                metadata=metadata,
                upload_time=offer.upload_time,
                provenance=made_from(BUILD_TYPE, offer.filename, offer.uri, offer.sha256),
                channel=channel,
                policy=policy,
            )
            if dry_run:
                taken.append(offer.filename)
                return
            if not batch.fits(record):
                flush()
            batch.add(record, wheel, metadata)

    try:
        for offer in offers:
            try:
                take_in(offer)
            except (PublishRefusedError, VerificationFailedError) as error:
                left_out[offer.filename] = str(error)
    except (InfrastructureError, UsageError):  # of what comes later
        flush()
        raise
    flush()
    return Adopted(tuple(taken), left_out)


class _Batch:
    """Wheels of one project that lie in the store and are not on its pages yet.

    Each change writes a project's pages whole, so wheels are listed a quarter of the page at a time: the bytes written
    grow with the number of wheels, not with its square. One that was not listed when the command was killed is listed
    by the next call, as after a publish that was killed.
    """

    def __init__(self, store: Store, group: str, signer: Signer | None, policy: Admission) -> None:
        self.store, self.group, self.signer, self.policy = store, group, signer, policy
        self.project: str | None = None
        self.names: dict[naming.Identity, str] = {}
        self.waiting: list[Taken] = []

    def fits(self, record: Record) -> bool:
        """May the wheel wait with those that wait?"""
        return record.project == self.project and 4 * len(self.waiting) < len(self.names)

    def add(self, record: Record, wheel: Path, metadata: bytes) -> None:
        """Claims the name and stores the files.

        Raises:
            PublishRefusedError: As by `publish`; nothing was changed.
        """
        if record.project != self.project:
            self._open(record.project)
        identity = naming.wheel_identity(record.filename)
        check_place(None, record.project, self.names.get(identity, record.filename), record.filename)
        taken = take(self.store, record, wheel, metadata, signer=self.signer)
        self.names[identity] = record.filename
        self.waiting.append(taken)

    def flush(self) -> tuple[list[str], dict[str, str]]:
        """Lists those that wait: their names, and those that cannot be listed, each with the reason."""
        records, left_out = [taken.record for taken in self.waiting], dict[str, str]()
        said = {each.record.filename: state_of(self.store, each.record) for each in self.waiting if not each.claimed}
        self.waiting = []
        if not records:
            return [], left_out
        listing = Listing(self.store, self.signer)
        try:
            list_wheels(listing, records, self.group, said)
        except PublishRefusedError:  # one of them: somebody removed it meanwhile
            for record in records:
                try:
                    list_taken(listing, record)
                except PublishRefusedError as error:
                    left_out[record.filename] = str(error)
        return [record.filename for record in records if record.filename not in left_out], left_out

    def _open(self, project: str) -> None:
        check_name(project, Listing(self.store, self.signer).known.names, self.policy)
        page = self._page(project)
        check_place(page, project)
        self.project = project
        self.names = {naming.wheel_identity(file.filename): file.filename for file in page.ever} if page else {}

    def _page(self, project: str) -> pages.ProjectPage | None:
        key = pages.json_key(self.group, project)
        found = self.store.get(key)
        return pages.parse_page(found.data, key) if found else None


class _Present:
    """What a group has of each project before anything is taken in; nothing of it is downloaded again.

    An earlier call may have been killed between a project's page and what follows from it: `listing` completes that.
    """

    def __init__(self, store: Store, group: str, listing: Callable[[], Listing] | None) -> None:
        self.store, self.group, self.listing = store, group, listing
        self.names: dict[str, frozenset[str]] = {}

    def has(self, offer: Offer) -> bool:
        """Is just this wheel listed? PublishRefusedError if nothing says its bytes, or its name stands for others."""
        if not offer.sha256:
            raise PublishRefusedError(f"{offer.filename} has no sha256 on its page; download it and adopt the file")
        try:
            project, _version = naming.parse_wheel_name(offer.filename)
        except ValueError as error:
            raise PublishRefusedError(str(error)) from error
        found = self.store.get(record_key(offer.filename))
        if found is None:
            return False
        record = parse_record(found.data, record_key(offer.filename))
        if record.sha256 != offer.sha256:
            raise PublishRefusedError(
                f"{offer.filename} is in this index already, with other content: sha256 {record.sha256}"
            )
        if project not in self.names:
            key = pages.json_key(self.group, project)
            page = self.store.get(key)
            self.names[project] = frozenset(pages.parse_page(page.data, key).entries if page else ())
            if offer.filename in self.names[project] and self.listing is not None:
                state = {offer.filename: read_state(self.store, offer.filename)}
                list_wheels(self.listing(), [record], self.group, state)
        return offer.filename in self.names[project]


def _fetched(offer: Offer, folder: Path) -> tuple[Path, bytes]:
    """The file and its METADATA."""
    wheel = offer.path or folder / offer.filename
    if offer.link is not None:
        download(offer.link, wheel)
    return wheel, metadata_inside(wheel)
