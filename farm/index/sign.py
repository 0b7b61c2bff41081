"""Signs an index as it is: a repository of The Update Framework (TUF) beside it, below `tuf/`.

A step of its own, at the end of a batch or by a schedule: publishing knows nothing of signatures, and whoever publishes
needs no key. Targets are all pages, with their hashes, and all wheels, with those that the pages say; what a page does
not say is in a record whose hash is on the page. Signatures expire, so that nobody can show an old state for ever.
Versions are milliseconds since 1970, or one more than the last: they grow even after a backup was restored.
"""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp
from tuf.api.serialization import DeserializationError

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.index.keys import newest_root, online_keys, revoked_keys, root_key
from farm.index.layout import DATA, SMOKE, json_page_of, wheel_key
from farm.index.pages import parse_page
from farm.index.publish import check_store
from farm.index.records import READERS, ForeignObjectError, foreign
from farm.index.stores import SCRATCH, Store, Stored

DAYS = 30
"""How long a signature counts."""
BEHIND, AHEAD = timedelta(hours=1), timedelta(days=1)
"""How far a clock may be behind and ahead of the store's, or of the newest signature where the store has none."""
SIGNATURE_WARNING = timedelta(days=10)
"""How long before it expires a signature is reported: a weekly schedule failed once then."""
ROOT_WARNING = timedelta(days=60)
"""Likewise for the root: its key is offline, so a person has to act."""
TIMESTAMP = "tuf/timestamp.json"
NOT_PAGES = (*DATA, SCRATCH, SMOKE)
TRIES = 10


class Signed(NamedTuple):
    """How many pages and wheels were signed, and until when that counts."""

    pages: int
    wheels: int
    expires: datetime


def is_page(key: str) -> bool:
    """Is this an object that clients trust, and so one that is signed?"""
    return not key.startswith(NOT_PAGES)


def sign(store: Store, signer: CryptoSigner, *, trust_clock: bool = False) -> Signed:
    """Signs all pages and wheels as they are.

    `trust_clock`: although this machine's clock and the newest signature disagree.

    Raises:
        UsageError: The index has no root yet.
        PublishRefusedError: The key may not sign this index, or the clock is wrong.
        InfrastructureError: The store failed, or others sign all the time.
    """
    check_store(store)
    root = newest_root(store)
    if root is None:
        raise UsageError("this index has no root key yet", hint="farm index key init ONLINE.pub --root-key FILE")
    keyid = signer.public_key.keyid
    if keyid not in online_keys(root.signed):
        revoked = revoked_keys(root.signed).get(keyid)
        raise PublishRefusedError(
            f"key {keyid[:16]} may not sign this index" + (f": it was revoked ({revoked})" if revoked else ""),
            hint="use a key that may; or let this one: farm index key rotate KEY.pub --root-key FILE",
        )
    for _ in range(TRIES):
        old = store.get(TIMESTAMP)
        before = None if old is None else parse_timestamp(old.data)
        now = datetime.now(UTC).replace(microsecond=0)
        if before is not None and not trust_clock:
            _check_clock(store, before.signed, now)
        version = max(time.time_ns() // 10**6, before.signed.version + 1 if before else 1)
        targets = targets_of(store)
        if _write(store, signer, targets, version, now, old):
            _discard_older(store, before.signed.version if before else version)
            wheels = sum(not is_page(key) for key in targets)
            return Signed(len(targets) - wheels, wheels, now + timedelta(days=DAYS))
    raise InfrastructureError(f"{TRIES} times another writer signed first", hint="run it again")


def parse_timestamp(data: bytes) -> Metadata[Timestamp]:
    try:
        return Metadata[Timestamp].from_bytes(data)
    except (DeserializationError, ValueError, RecursionError) as error:
        raise foreign(TIMESTAMP, "no metadata of The Update Framework") from error


def time_of(signed: Timestamp | Targets) -> datetime:
    """When it was signed; the signer's word."""
    return signed.expires.replace(tzinfo=UTC) - timedelta(days=DAYS)


def _check_clock(store: Store, before: Timestamp, now: datetime) -> None:
    """Whoever signs with a wrong clock makes signatures that have expired, or that an attacker can show for years."""
    signed, theirs = time_of(before), store.clock()
    other = f"the store's says {theirs.isoformat()}" if theirs else f"the newest signature is of {signed.isoformat()}"
    if now < signed - BEHIND:
        other = f"the newest signature is of {signed.isoformat()}"
    elif (theirs or signed) - BEHIND <= now <= (theirs or signed) + AHEAD:
        return
    raise PublishRefusedError(
        f"this machine's clock says {now.isoformat()}, and {other}",
        hint="set the clock (timedatectl set-ntp true); if it is right, as in a folder that was not signed for a day: "
        "farm index sign --trust-clock",
    )


def targets_of(store: Store) -> dict[str, TargetFile]:
    """Everything that is signed, by key."""
    keys = sorted(key for key in store.list("") if is_page(key))
    found: dict[str, TargetFile] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for key, stored in zip(keys, pool.map(store.get, keys), strict=True):
            if stored is None:
                continue
            digest = hashlib.sha256(stored.data).hexdigest()
            found[key] = TargetFile(len(stored.data), {"sha256": digest}, key)
            # A page that is none is signed as it is; `farm index check` names it.
            with suppress(ForeignObjectError):
                page = parse_page(stored.data, key) if json_page_of(key) else None
                for file in page.files if page else ():
                    place = wheel_key(file.filename)
                    found[place] = TargetFile(file.size or 0, {"sha256": file.hashes.sha256}, place)
    return found


def _write(
    store: Store, signer: CryptoSigner, targets: dict[str, TargetFile], version: int, now: datetime, old: Stored | None
) -> bool:
    """Writes the three roles; False if somebody else signed meanwhile. Readers see them once the last is there."""
    # One version for all three: they are written together, so none can be newer than another.
    common: dict[str, Any] = {"version": version, "expires": now + timedelta(days=DAYS)}
    roles: dict[str, Targets | Snapshot] = {
        f"tuf/{version}.targets.json": Targets(**common, targets=targets),
        f"tuf/{version}.snapshot.json": Snapshot(**common, meta={"targets.json": MetaFile(version)}),
    }
    for key, role in roles.items():
        if not store.create(key, _signed(role, signer), content_type="application/json"):
            return False
    timestamp = _signed(Timestamp(**common, snapshot_meta=MetaFile(version)), signer)
    return store.replace(TIMESTAMP, timestamp, old.etag if old else None, content_type="application/json")


def _signed(role: Targets | Snapshot | Timestamp, signer: CryptoSigner) -> bytes:
    made: Metadata[Any] = Metadata(role)
    made.sign(signer)
    return bytes(made.to_bytes())


def _discard_older(store: Store, version: int) -> None:
    """Readers may still be at the signatures before these; what is older than those goes."""
    for key in list(store.list("tuf/")):
        number, _, role = key.removeprefix("tuf/").partition(".")
        if role in {"targets.json", "snapshot.json"} and number.isdigit() and int(number) < version:
            store.discard(key)


def expiring(store: Store, now: datetime) -> Iterator[tuple[str, str, bool]]:
    """Signatures that end soon: key, what to do, and whether they have ended."""
    root, stored = newest_root(store), store.get(TIMESTAMP)
    ends = []
    if root is not None:
        ends.append((root_key(root.signed.version), root.signed.expires, ROOT_WARNING, "farm index key renew"))
    if stored is not None:
        ends.append((TIMESTAMP, parse_timestamp(stored.data).signed.expires, SIGNATURE_WARNING, "farm index sign"))
    for key, plain, warning, remedy in ends:
        expires = plain.replace(tzinfo=UTC)
        if expires < now + warning:
            late = expires < now
            yield key, f"its signature expire{'d' if late else 's'} {expires:%Y-%m-%d}: {remedy}", late
