"""Is an index what its owner signed? For users, with nothing but a public key and the index's URL."""

import hashlib
import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from farm.errors import UsageError, VerificationFailedError
from farm.index import pages
from farm.index.catalogue import CATALOGUE_KEY, Catalogue, parse_catalogue
from farm.index.provenance import PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE, attestation_key
from farm.index.reader import Reader
from farm.index.records import parse_record, record_key
from farm.index.signing import Keys, opened
from farm.index.snapshot import Snapshot, is_page, open_snapshot, page_generation, signed_part
from farm.index.trust import Trust, read_trust


@dataclass(frozen=True)
class Verified:
    """What was looked at, and what does not fit; no problems mean that the index is what was signed.

    Attributes:
        time: When the snapshot was signed; the signer's word.
        keys: The keyids that count, after rotation and revocation.
        pages: How many pages the snapshot has.
        wheels: How many wheels are on these pages.
        problems: One line each.
    """

    time: str
    keys: tuple[str, ...]
    pages: int
    wheels: int
    problems: tuple[str, ...]


def verify_index(
    reader: Reader, given: Keys, *, wheels: bool = False, max_age: timedelta | None = None, now: datetime | None = None
) -> Verified:
    """Follows the keys, opens the snapshot, compares every page with it, and every wheel with its attestation.

    Args:
        reader: The index.
        given: The public keys that the user trusts.
        wheels: Read and hash the wheels as well; clients compare them with the pages themselves.
        max_age: How old the snapshot may be: somebody may show an old state of the index.
        now: The time to compare with; the clock's for None.

    Raises:
        VerificationFailedError: No snapshot that a trusted key signed: nothing can be said.
        InfrastructureError: The index cannot be read.
    """
    trust = read_trust(reader.get, given)
    catalogue = _catalogue(reader)
    if catalogue.snapshot is None:
        raise VerificationFailedError(f"no snapshot in {CATALOGUE_KEY}: this index is not signed, or not an index")
    try:
        snapshot = open_snapshot(catalogue.snapshot, trust.keys)
    except VerificationFailedError as error:
        if trust.revoked:
            named = ", ".join(
                f"{keyid[:16]} ({reason or 'no reason given'})" for keyid, reason in trust.revoked.items()
            )
            raise VerificationFailedError(f"{error}; revoked: {named}") from error
        raise
    problems = list(_age(snapshot, max_age, now or datetime.now(UTC)))
    found: dict[str, str] = {}
    for key, (generation, digest) in sorted(snapshot.pages.items()):
        problems += _page(reader, key, generation, digest, found)
    for filename, sha256 in sorted(found.items()):
        problems += _attested(reader, trust, filename, sha256)
        if wheels and reader.digest(pages.wheel_key(filename)) != sha256:
            problems.append(f"{filename}: its bytes are not those of its page")
    return Verified(snapshot.time, tuple(trust.keys), len(snapshot.pages), len(found), tuple(problems))


def _catalogue(reader: Reader) -> Catalogue:
    try:
        return parse_catalogue(reader.get(CATALOGUE_KEY))
    except pages.ForeignObjectError as error:
        raise VerificationFailedError(str(error)) from error


def _age(snapshot: Snapshot, max_age: timedelta | None, now: datetime) -> Iterator[str]:
    if max_age is not None:
        try:
            age = now - datetime.fromisoformat(snapshot.time)
        except (ValueError, TypeError):
            yield "the snapshot does not say when it was signed"
            return
        if age > max_age:
            yield f"the snapshot is of {snapshot.time}, which is longer ago than allowed"


def _page(reader: Reader, key: str, generation: int, digest: str, found: dict[str, str]) -> Iterator[str]:
    try:
        data = reader.get(key) if is_page(key) else None
    except UsageError:
        data = None
    if data is None:
        yield f"{key}: signed, and not there"
        return
    newer = False
    try:
        same = hashlib.sha256(signed_part(key, data)).hexdigest() == digest
        newer = not same and page_generation(key, data) > generation
    except pages.ForeignObjectError:
        same = False
    if not same:
        when = "newer than the snapshot, not signed (yet)" if newer else "not what was signed"
        yield f"{key}: {when}"
        return
    if key.endswith("/index.json") and key.split("/")[-2] != "v1-json":
        page = pages.parse_page(data, key)
        if not page.meta.links:
            found |= {file.filename: file.hashes.sha256 for file in page.files}


def _attested(reader: Reader, trust: Trust, filename: str, sha256: str) -> Iterator[str]:
    why = "has no attestation by a trusted key"
    envelopes = dict(_envelopes(reader, [*trust.keys, *trust.revoked], filename))
    for where, envelope in envelopes.items():
        try:
            document, _by = opened(envelope, trust.keys, PAYLOAD_TYPE, where)
        except VerificationFailedError as error:
            if not _names(envelope, trust.revoked):
                why = str(error)
            continue
        subject = [{"name": filename, "digest": {"sha256": sha256}}]
        types = (STATEMENT_TYPE, PREDICATE_TYPE)
        if (document.get("_type"), document.get("predicateType")) == types and document.get("subject") == subject:
            return
        why = f"{where} is about something else"
    if any(_names(envelope, trust.revoked) for envelope in envelopes.values()):
        why += "; there is one by a revoked key"
    yield f"{filename}: {why}"


def _envelopes(reader: Reader, keyids: Iterable[str], filename: str) -> Iterator[tuple[str, bytes]]:
    """All attestations that there may be: in the record, and beside the wheel by later keys."""
    key = record_key(filename)
    data = reader.get(key)
    if data is not None:
        try:
            attestation = parse_record(data, key).attestation
        except pages.ForeignObjectError:
            attestation = None
        if attestation is not None:
            yield key, json.dumps(attestation).encode()
    for keyid in keyids:
        key = attestation_key(filename, keyid)
        data = reader.get(key)
        if data is not None:
            yield key, data


def _names(envelope: bytes, keyids: Container[str]) -> bool:
    """Does an envelope say that one of these keys signed it? Not checked: only for what is told."""
    try:
        return any(each["keyid"] in keyids for each in json.loads(envelope)["signatures"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
