"""A digest of every page and of the catalogue, signed: `_snapshot` in `catalog.json`. Pages are what clients trust.

Each publish takes its own pages in. A page's digest comes with its generation, so that of two publishers the one with
the older page does not win. It lies in the catalogue so that one request reads, and one writes, both.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field, ValidationError

from farm.errors import PublishRefusedError, VerificationFailedError
from farm.index import html, pages
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, Catalogue, parse_catalogue
from farm.index.pages import Model, Sha256
from farm.index.signing import Keys, Signer, opened
from farm.index.stores import Store
from farm.index.swap import swap

PAYLOAD_TYPE = "application/vnd.torch-farm.snapshot+json"


class Snapshot(Model):
    """What was signed. `pages`: key -> (generation, sha256)."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    generation: int = Field(default=0, ge=0)
    time: str = Field(default="", max_length=64)
    pages: dict[str, tuple[int, Sha256]] = {}


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
    if parts[-1] == "index.json":
        return pages.parse_page(data, key).generation
    return len(json.loads(data)["variants"])


def signed_part(key: str, data: bytes) -> bytes:
    """What the digest of a page is taken of: all of it, but for the catalogue, which holds the snapshot itself."""
    return parse_catalogue(data).signed() if key == CATALOGUE_KEY else data


def open_snapshot(envelope: dict[str, Any], trusted: Keys) -> Snapshot:
    """The snapshot in an envelope.

    Raises:
        VerificationFailedError: No trusted key signed it, or it is no snapshot.
    """
    document, _keyid = opened(json.dumps(envelope).encode(), trusted, PAYLOAD_TYPE, f"the snapshot in {CATALOGUE_KEY}")
    try:
        return Snapshot.model_validate(document)
    except ValidationError as error:
        raise VerificationFailedError(f"{CATALOGUE_KEY} has no snapshot: {error.errors()[0]['msg']}") from error


def check_ours(catalogue: Catalogue, signer: Signer) -> Snapshot:
    """The snapshot that is there, if our key signed it; an empty one where there is none.

    Raises:
        PublishRefusedError: Another key signed it: nobody else's digests are signed unseen.
    """
    if catalogue.snapshot is None:
        return Snapshot()
    try:
        return open_snapshot(catalogue.snapshot, {signer.keyid: signer.public})
    except VerificationFailedError as error:
        raise PublishRefusedError(
            f"the index is signed with another key than {signer.keyid[:16]}: {error}",
            hint="use that key; or, to change keys: farm index key rotate, then farm index reconcile",
        ) from error


def may_sign(store: Store, signer: Signer) -> None:
    """PublishRefusedError if another key signed the snapshot that is there."""
    found = store.get(CATALOGUE_KEY)
    check_ours(parse_catalogue(found.data if found else None), signer)


def with_pages(catalogue: Catalogue, signer: Signer, written: Mapping[str, bytes]) -> Catalogue:
    """The catalogue with the digests of these pages, and its own, signed; itself if they are in it."""
    before = check_ours(catalogue, signer)
    ours = {key: _digest(key, data) for key, data in written.items()}
    newer = {key: page for key, page in ours.items() if before.pages.get(key, (0, ""))[0] < page[0]}
    digests = {**before.pages, **newer, CATALOGUE_KEY: _digest(CATALOGUE_KEY, catalogue.render())}
    return catalogue if digests == before.pages else _signed(catalogue, signer, before, digests)


def sign_pages(store: Store, signer: Signer, written: Mapping[str, bytes]) -> bool:
    """Takes the digests of these pages into the snapshot; False when they were in it."""

    def change(old: bytes | None) -> bytes | None:
        before = parse_catalogue(old)
        after = with_pages(before, signer, written)
        return None if after is before else after.render()

    return swap(store, CATALOGUE_KEY, change, CATALOGUE_TYPE).written


def resign(store: Store, signer: Signer) -> int:
    """Signs all pages as they are, whoever signed before; returns how many there are."""
    digests = {}
    for key in sorted(store.list("")):
        if is_page(key) and (found := store.get(key)) is not None:
            digests[key] = _digest(key, found.data)

    def change(old: bytes | None) -> bytes:
        catalogue = parse_catalogue(old)
        try:
            before = check_ours(catalogue, signer)
        except PublishRefusedError:
            before = Snapshot()
        newer = {key: page for key, page in before.pages.items() if key in digests and page[0] > digests[key][0]}
        own = {CATALOGUE_KEY: _digest(CATALOGUE_KEY, catalogue.render())}
        return _signed(catalogue, signer, before, digests | newer | own).render()

    swap(store, CATALOGUE_KEY, change, CATALOGUE_TYPE)
    return len(digests)


def _digest(key: str, data: bytes) -> tuple[int, str]:
    return page_generation(key, data), hashlib.sha256(signed_part(key, data)).hexdigest()


def _signed(
    catalogue: Catalogue, signer: Signer, before: Snapshot, digests: Mapping[str, tuple[int, str]]
) -> Catalogue:
    snapshot = Snapshot(generation=before.generation + 1, time=datetime.now(UTC).isoformat(), pages=dict(digests))
    envelope = json.loads(signer.envelope(snapshot.model_dump(by_alias=True), PAYLOAD_TYPE))
    return catalogue.model_copy(update={"snapshot": envelope})
