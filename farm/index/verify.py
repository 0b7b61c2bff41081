"""Is an index what its owner signed? For users, with nothing but a public key and the index's URL.

The client of The Update Framework (`tuf.ngclient`) follows the root keys and refuses what is expired (a server that
shows an old state for ever) or older than what it saw before (a roll-back): it keeps that in a folder. Then every page
is compared with the signed digests, and every wheel's `.metadata`, record and attestation with its page.
"""

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    RepositoryError,
)
from tuf.api.metadata import Metadata, Root, Targets
from tuf.ngclient import FetcherInterface, Updater

from farm.base.errors import FarmError, InfrastructureError, UsageError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.index import html, pages
from farm.index.catalogue import CATALOGUE_KEY, Catalogue, parse_catalogue
from farm.index.keys import first_trusted, online_keys, revoked_keys, root_key
from farm.index.pages import File, ProjectPage
from farm.index.provenance import PAYLOAD_TYPE, PREDICATE, PREDICATE_TYPE, STATEMENT_TYPE, attestation_key
from farm.index.reader import Reader
from farm.index.records import Record, parse_record, record_key
from farm.index.roles import GROUPS_KEY, generation_of, is_page, page_generation, scope_of, signature_key, time_of
from farm.index.signing import Keys, opened

READERS = 16
"""Wheels are looked at side by side: each costs some round trips."""


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what does not fit; no problems mean that the index is what was signed.

    Attributes:
        time: When the oldest of the groups was signed; the signer's word.
        keys: The keyids that may publish, after rotation and revocation.
        pages: How many pages are signed.
        wheels: How many wheels are on these pages.
        problems: One line each.
    """

    time: str
    keys: tuple[str, ...]
    pages: int
    wheels: int
    problems: tuple[str, ...]


def verify_index(
    reader: Reader,
    given: Keys,
    *,
    state: Path | None = None,
    wheels: bool = False,
    max_age: timedelta | None = None,
) -> Verified:
    """Follows the keys, then compares every page with its signed digest, and every wheel with its page.

    Args:
        reader: The index.
        given: The public root keys that the user trusts.
        state: A folder in which is kept what was seen, so that nothing older is believed later; None: nothing is kept.
        wheels: Read and hash the wheels as well; clients compare them with the pages themselves.
        max_age: How long ago the pages may have been signed at most; by default until they expire.

    Raises:
        VerificationFailedError: No list of groups that a trusted key signed: there is nothing to verify by.
        InfrastructureError: The index cannot be read.
        UsageError: The folder cannot be written.
    """
    with nullcontext(state) if state is not None else temporary_folder() as folder:
        return _Verifier(reader, given, folder, wheels=wheels).run(max_age)


class _Verifier:
    def __init__(self, reader: Reader, given: Keys, state: Path, *, wheels: bool) -> None:
        self.reader, self.state, self.wheels = reader, state, wheels
        self.first = first_trusted(reader.get, given)
        self.root: Root = Metadata[Root].from_bytes(self.first).signed
        self.found: dict[str, File] = {}
        self.listed: dict[str, dict[str, ProjectPage]] = {}
        self.unsound = set[str]()
        self.pages, self.times = 0, list[str]()

    def run(self, max_age: timedelta | None) -> Verified:
        try:
            before = {each.name for each in self.state.iterdir() if each.is_dir()} if self.state.exists() else set()
            problems = list(self._signed_pages(GROUPS_KEY, fatal=True))
        except OSError as error:
            raise UsageError(
                f"cannot write the last verified state to {self.state}: {error.strerror or error}"
            ) from error
        groups = self._groups()
        for group in sorted(groups):
            problems += self._signed_pages(pages.links_key(group))
        # No group ever leaves the list: one that did is reported like a broken page.
        gone = before - {_folder(key) for key in (GROUPS_KEY, *map(pages.links_key, groups))}
        problems += [f"{GROUPS_KEY}: {name} was on it before, and is not now" for name in sorted(gone)]
        problems += self._catalogue()
        problems += self._age(max_age)
        with ThreadPoolExecutor(READERS) as pool:
            for each in pool.map(lambda name: list(self._wheel(self.found[name])), sorted(self.found)):
                problems += each
        return Verified(
            min(self.times, default=""),
            tuple(online_keys(self.root)),
            self.pages,
            len(self.found),
            tuple(problems),
        )

    def _groups(self) -> set[str]:
        page = self.reader.get(GROUPS_KEY)
        try:
            return set() if page is None else html.parse_root(page, GROUPS_KEY)
        except pages.ForeignObjectError:
            return set()  # then it is not what was signed either, and is reported there

    def _signed_pages(self, where: str, *, fatal: bool = False) -> Iterator[str]:
        """Compares the pages that a signature covers; what is wrong with the signature itself is one problem."""
        try:
            targets = self._targets(where)
        except VerificationFailedError as error:
            if fatal:
                raise
            yield str(error)
            return
        self.times.append(time_of(targets))
        for key, target in sorted(targets.targets.items()):
            self.pages += 1
            yield from self._page(key, generation_of(target), target.hashes.get("sha256", ""))

    def _targets(self, where: str) -> Targets:
        page = self.reader.get(where)
        signature = None if page is None else html.signature_of(page, where)
        if signature is None:
            raise VerificationFailedError(f"{where}: {'signed, and not there' if page is None else 'not signed'}")
        folder = self.state / _folder(where)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            # TUF's own client decides: it checks versions, expiry and the chain of roots, and keeps what it saw in the
            # folder.
            updater = Updater(
                str(folder), "https://index.invalid/", fetcher=_Parts(self.reader, signature), bootstrap=self.first
            )
            updater.refresh()
        except BadVersionNumberError as error:
            raise VerificationFailedError(f"{where}: older than what was there before: {error}") from error
        except ExpiredMetadataError as error:
            raise VerificationFailedError(
                f"{where}: its signature has expired: the owner does not renew it, or somebody shows an old state"
            ) from error
        except RepositoryError as error:
            raise VerificationFailedError(f"{where}: not signed by a trusted key: {error}{_revoked(folder)}") from error
        except DownloadError as error:
            if isinstance(error.__cause__, FarmError):  # what our reader says is more than TUF's "Failed to download"
                raise error.__cause__ from error
            raise InfrastructureError(f"{where}: {error}") from error
        self.root = Metadata[Root].from_file(str(folder / "root.json")).signed
        targets = Metadata[Targets].from_file(str(folder / "targets.json")).signed
        # A true signature of another group would pass all checks but this one.
        if scope_of(targets) != where or any(signature_key(key) != where for key in targets.targets):
            raise VerificationFailedError(f"{where}: its signature is about {scope_of(targets):.80}")
        return targets

    def _page(self, key: str, generation: int, digest: str) -> Iterator[str]:
        try:
            data = self.reader.get(key) if is_page(key) else None
        except UsageError:
            data = None
        if data is None:
            self.unsound.add(key)
            yield f"{key}: signed, and not there"
            return
        plain = html.without_signature(data) if signature_key(key) == key else data
        if hashlib.sha256(plain).hexdigest() != digest:
            self.unsound.add(key)
            try:
                shown = page_generation(key, data)
            except pages.ForeignObjectError:
                shown = generation
            what = "not what was signed"
            # A publish writes pages first and signs last: a newer page without its digest is most often one under way.
            if shown > generation:
                what = "newer than its signature, not signed (yet)"
            elif shown < generation:
                what = "older than its signature: a cache on the way keeps old pages (purge it), or somebody changed it"
            yield f"{key}: {what}"
            return
        parts = key.split("/")
        if parts[-1] == "index.json" and parts[-2] != "v1-json":
            page = pages.parse_page(data, key)
            if not page.meta.links:
                self.listed.setdefault(parts[1], {})[page.name] = page
                self.found |= {file.filename: file for file in page.files}

    def _catalogue(self) -> Iterator[str]:
        """The catalogue is not signed: it must say what the signed pages say."""
        try:
            catalogue = parse_catalogue(self.reader.get(CATALOGUE_KEY))
        except pages.ForeignObjectError as error:
            yield str(error)
            return
        for group in sorted({*catalogue.groups, *self.listed}):
            for name in sorted({*catalogue.groups.get(group, {}), *self.listed.get(group, {})}):
                if pages.json_key(group, name) not in self.unsound:
                    yield from _offered(catalogue, group, name, self.listed.get(group, {}).get(name))

    def _age(self, max_age: timedelta | None) -> Iterator[str]:
        if max_age is not None and self.times:
            oldest = min(self.times)
            try:
                age = datetime.now(UTC) - datetime.fromisoformat(oldest)
            except (ValueError, TypeError):
                yield "a signature does not say when it was made"
                return
            if age > max_age:
                yield f"the pages were signed {oldest}, which is longer ago than allowed"

    def _wheel(self, file: File) -> Iterator[str]:
        name, metadata = file.filename, file.core_metadata
        if metadata is not None and self.reader.digest(pages.metadata_key(name)) != metadata.sha256:
            yield f"{name}: its .metadata is not that of its page"
        record, data = None, self.reader.get(record_key(name))
        if data is None or hashlib.sha256(data).hexdigest() != file.record:
            yield f"{name}: its record is not that of its page"
        else:
            record = parse_record(data, record_key(name))
        yield from self._attested(file, record)
        if self.wheels and self.reader.digest(pages.wheel_key(name)) != file.hashes.sha256:
            yield f"{name}: its bytes are not those of its page"

    def _attested(self, file: File, record: Record | None) -> Iterator[str]:
        trusted, revoked = online_keys(self.root), revoked_keys(self.root)
        why = "has no attestation by a trusted key"
        envelopes = dict(self._envelopes(file.filename, record, [*trusted, *revoked]))
        for where, envelope in envelopes.items():
            try:
                document, _by = opened(envelope, trusted, PAYLOAD_TYPE, where)
            except VerificationFailedError as error:
                if not _names(envelope, revoked):
                    why = str(error)
                continue
            if _is_about(document, file, record):
                return
            why = f"{where} is about something else"
        # Only for the message: what a revoked key signed counts as nothing.
        if any(_names(envelope, revoked) for envelope in envelopes.values()):
            why += "; there is one by a revoked key"
        yield f"{file.filename}: {why}"

    def _envelopes(self, filename: str, record: Record | None, keyids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """All attestations that there may be: in the record, and beside the wheel by later keys."""
        if record is not None and record.attestation is not None:
            yield record_key(filename), json.dumps(record.attestation).encode()
        for keyid in keyids:
            key = attestation_key(filename, keyid)
            data = self.reader.get(key)
            if data is not None:
                yield key, data


class _Parts(FetcherInterface):
    """Gives TUF's client the files that it knows: roots from the index, the roles from one signature on a page."""

    def __init__(self, reader: Reader, signature: Mapping[str, object]) -> None:
        self.reader, self.signature = reader, signature

    def _fetch(self, url: str) -> Iterator[bytes]:
        name = url.rsplit("/", 1)[-1].removesuffix(".json")
        number, _, role = name.rpartition(".")
        if role == "root" and number.isdigit():
            data = self.reader.get(root_key(int(number)))
        else:
            data = json.dumps(self.signature[role]).encode() if role in self.signature else None
        if data is None:
            raise DownloadHTTPError(f"{name} is not there", 404)
        return iter((data,))


def _revoked(folder: Path) -> str:
    """Which keys the newest root says are revoked, for the message."""
    try:
        newest = Metadata[Root].from_file(str(folder / "root.json")).signed
    except (OSError, ValueError, RepositoryError):
        return ""
    named = ", ".join(f"{keyid[:16]} ({reason or 'no reason given'})" for keyid, reason in revoked_keys(newest).items())
    return f"; revoked: {named}" if named else ""


def _folder(where: str) -> str:
    """Where what was seen of a signature is kept."""
    return where.split("/")[1]


def _offered(catalogue: Catalogue, group: str, name: str, page: ProjectPage | None) -> Iterator[str]:
    channels = catalogue.groups.get(group, {}).get(name)
    if page is None:
        yield f"{CATALOGUE_KEY}: offers {name} in {group}, which no signed page does"
    elif channels is None or set(channels) != page.channels:
        late = page.channels >= set(channels or ())
        yield f"{CATALOGUE_KEY}: does not say of {name} in {group} what its page says{' (yet)' if late else ''}"


def _is_about(document: object, file: File, record: Record | None) -> bool:
    """Is a statement about this wheel, and about what its record says of its making?"""
    if not isinstance(document, dict):
        return False
    subject = [{"name": file.filename, "digest": {"sha256": file.hashes.sha256}}]
    types = (STATEMENT_TYPE, PREDICATE_TYPE)
    if (document.get("_type"), document.get("predicateType"), document.get("subject")) != (*types, subject):
        return False
    return record is None or document.get("predicate") == record.provenance.get(PREDICATE)


def _names(envelope: bytes, keyids: Container[str]) -> bool:
    """Does an envelope say that one of these keys signed it? Not checked: for the message only."""
    try:
        return any(each["keyid"] in keyids for each in json.loads(envelope)["signatures"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
