"""`whl/snapshot.json`: a digest of every page and of the catalogue, signed. Pages are what clients trust.

Each publish takes its own pages in. A page's digest comes with its generation, so that of two publishers the one with
the older page does not win.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from farm.errors import PublishRefusedError, VerificationFailedError
from farm.index import html, pages
from farm.index.catalogue import CATALOGUE_KEY, parse_catalogue
from farm.index.pages import Model, Sha256
from farm.index.signing import Keys, Signer, opened
from farm.index.stores import Store, Stored
from farm.index.swap import Guess, swap

SNAPSHOT_KEY = "whl/snapshot.json"
PAYLOAD_TYPE = "application/vnd.torch-farm.snapshot+json"


class Snapshot(Model):
    """What was signed. `pages`: key -> (generation, sha256)."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(default=0, ge=0)
    time: str = Field(default="", max_length=64)
    pages: dict[str, tuple[int, Sha256]] = {}


class Signed(NamedTuple):
    """The envelope in the store, and the snapshot in it; an empty one where there is none."""

    stored: Stored | None
    snapshot: Snapshot


def is_page(key: str) -> bool:
    """Is this an object that clients trust, and so one of the snapshot's?"""
    parts = key.split("/")
    if key == CATALOGUE_KEY:
        return True
    if parts[0] != "whl" or len(parts) < 3 or parts[1] in {"files", "attestations", "keys"}:
        return False
    return parts[-1] in {"index.html", "index.json", "links.html"} or parts[-1].endswith("-variants.json")


def page_generation(key: str, data: bytes) -> int:
    """A number that grows whenever the page changes: read off the page."""
    parts = key.split("/")
    if key == CATALOGUE_KEY:
        return parse_catalogue(data).generation
    if parts[-1] == "links.html":
        return sum(section.generation for section in html.parse_links(data, key).values())
    if parts[-2] == "simple":
        return len(html.parse_root(data, key))
    if parts[-1] == "index.html":
        return html.generation_of(data, key)
    if parts[-2] == "v1-json":
        return len(html.parse_root_json(data, key))
    if parts[-1] == "index.json":
        return pages.parse_page(data, key).generation
    return len(json.loads(data)["variants"])


def open_snapshot(envelope: bytes, trusted: Keys) -> Snapshot:
    """The snapshot in an envelope.

    Raises:
        VerificationFailedError: No trusted key signed it, or it is no snapshot.
    """
    document, _keyid = opened(envelope, trusted, PAYLOAD_TYPE, SNAPSHOT_KEY)
    try:
        return Snapshot.model_validate(document)
    except ValidationError as error:
        raise VerificationFailedError(f"{SNAPSHOT_KEY} is no snapshot: {error.errors()[0]['msg']}") from error


def read_signed(store: Store, signer: Signer) -> Signed:
    """The snapshot that is there, if our key signed it: nobody else's digests are signed unseen.

    Raises:
        PublishRefusedError: Another key signed it.
    """
    stored = store.get(SNAPSHOT_KEY)
    return Signed(stored, Snapshot() if stored is None else _ours(stored.data, signer))


def _ours(envelope: bytes, signer: Signer) -> Snapshot:
    try:
        return open_snapshot(envelope, {signer.keyid: signer.public})
    except VerificationFailedError as error:
        raise PublishRefusedError(
            f"the index is signed with another key than {signer.keyid[:16]}: {error}",
            hint="use that key; or, to change keys: farm index key rotate, then farm index reconcile",
        ) from error


def sign_pages(store: Store, signer: Signer, signed: Signed, written: Mapping[str, bytes]) -> bool:
    """Takes the digests of these pages into the snapshot; False when they were in it."""
    ours = {key: (page_generation(key, data), hashlib.sha256(data).hexdigest()) for key, data in written.items()}

    def change(old: bytes | None) -> bytes | None:
        present = Snapshot() if old is None else _ours(old, signer)
        newer = {key: page for key, page in ours.items() if present.pages.get(key, (0, ""))[0] < page[0]}
        return envelope(signer, present, {**present.pages, **newer}) if newer else None

    return swap(store, SNAPSHOT_KEY, change, "application/json", guess=Guess(signed.stored)).written


def envelope(signer: Signer, before: Snapshot, digests: Mapping[str, tuple[int, str]]) -> bytes:
    """A signed snapshot that follows `before`."""
    snapshot = Snapshot(generation=before.generation + 1, time=datetime.now(UTC).isoformat(), pages=dict(digests))
    return signer.envelope(snapshot.model_dump(by_alias=True), PAYLOAD_TYPE)


def resign(store: Store, signer: Signer) -> int:
    """Signs all pages as they are, whoever signed before; returns how many there are."""
    digests = {}
    for key in sorted(store.list("")):
        if is_page(key) and (found := store.get(key)) is not None:
            digests[key] = (page_generation(key, found.data), hashlib.sha256(found.data).hexdigest())

    def change(old: bytes | None) -> bytes:
        try:
            before = Snapshot() if old is None else _ours(old, signer)
        except PublishRefusedError:
            before = Snapshot()
        newer = {key: page for key, page in before.pages.items() if key in digests and page[0] > digests[key][0]}
        return envelope(signer, before, digests | newer)

    swap(store, SNAPSHOT_KEY, change, "application/json")
    return len(digests)
