"""The signed state of an index: for each group a digest of every page, in the roles of The Update Framework (TUF).

Pages are what installers trust, since the hashes of wheels stand on them. Each group is a TUF repository of its own,
with one root for all (`farm.index.keys`), so that no object is rewritten by publishes of several groups. Its roles
targets, snapshot and timestamp lie in one place, inside the page `links.html` that every publish of the group reads and
writes anyway: signing costs no request. A repository with TUF's usual files would cost a publish six more requests, and
all groups would rewrite the same timestamp. The list of groups, `whl/index.html`, is signed the same way.

Signatures expire, so that nobody can show an old state for ever; `farm index sign` renews those of quiet groups.
Versions are milliseconds since 1970, or one more than the last: they grow even after a backup was restored.
"""

import contextlib
import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

from farm.base.errors import PublishRefusedError, UsageError
from farm.index import html, pages
from farm.index.catalogue import Catalogue, parse_projects
from farm.index.signing import Signer
from farm.index.stores import Store, check_key
from farm.index.swap import swap

DAYS = 30
"""How long a signature counts."""

GROUPS_KEY = "whl/index.html"
"""The list of groups: its signature covers itself alone."""

UNSIGNED = (
    "the index is signed, and this change is not: farm index verify refuses the pages that change, "
    "until farm index reconcile signs them with the key"
)
"""What is said where somebody without the key changes a signed index: installers do not mind, users who verify do."""

_ROLES = (Targets.type, Snapshot.type, Timestamp.type)
_SCOPE, _TIME = "x-farm-scope", "x-farm-time"
_RESERVED = frozenset({"files", "attestations", "keys"})


def is_page(key: str) -> bool:
    """Is this an object that clients trust, and so one that is signed?"""
    parts = key.split("/")
    if parts[0] != "whl" or len(parts) < 3 or parts[1] in _RESERVED:
        return key == GROUPS_KEY
    return parts[-1] in {"index.html", "index.json", "links.html"} or parts[-1].endswith("-variants.json")


def signature_key(key: str) -> str:
    """Where the signature of a page lies: on a page of its group, or on the list of groups itself."""
    if key == GROUPS_KEY:
        return key
    parts = key.split("/")
    # whl/<group>/simple/… or whl/<channel>/<group>/simple/…: a channel's pages are signed with the group's.
    own = parts[1] == "variant" or parts[2] in {"simple", "v1-json", "links.html"}
    return pages.links_key(parts[1] if own else parts[2])


def page_generation(key: str, data: bytes) -> int:
    """A number that grows whenever the page changes: read off the page."""
    parts = key.split("/")
    match parts[-1]:
        case "links.html":
            return sum(section.generation for section in html.parse_links(data, key).values())
        case "index.html" if key == GROUPS_KEY or parts[-2] == "simple":
            return len(html.parse_root(data, key))
        case "index.html":
            return html.generation_of(data, key)
        case "index.json" if parts[-2] == "v1-json":
            return len(parse_projects(data, key))
        case "index.json":
            return pages.parse_page(data, key).generation
    return data.count(b'"')  # …-variants.json only ever gains labels


def check_ours(signature: Mapping[str, Any] | None, signer: Signer, where: str) -> Metadata[Targets] | None:
    """The digests in a signature, if our key made it; None where there is none.

    Raises:
        PublishRefusedError: Another key made it: nobody else's digests are signed unseen.
    """
    if signature is None:
        return None
    try:
        found: Metadata[Targets] = Metadata.from_dict({**signature["targets"]})
        signer.public.verify_signature(found.signatures[signer.keyid], found.signed_bytes)
    except Exception as error:  # securesystemslib and tuf raise many kinds
        raise PublishRefusedError(
            f"{where} is signed with another key than {signer.keyid[:16]}",
            hint="use that key; or, to change keys: farm index key rotate, then farm index reconcile",
        ) from error
    return found


def may_sign(catalogue: Catalogue, signer: Signer) -> None:
    """PublishRefusedError if the index has other online keys."""
    if catalogue.keys is not None and signer.keyid not in catalogue.keys:
        raise PublishRefusedError(
            f"the index is signed with another key than {signer.keyid[:16]}",
            hint="use that key; or, to change keys: farm index key rotate, then farm index reconcile",
        )


def signed(
    page: bytes,
    key: str,
    old: bytes | None,
    written: Mapping[str, bytes],
    signer: Signer,
    *,
    fresh: bool = False,
) -> bytes:
    """A page that carries signatures, with one that covers these pages, itself and all that it covered before.

    Args:
        page: The page as it is to be, signed or not.
        key: Its key.
        old: What is there now, whose signature goes on.
        written: Pages of the group, by key.
        signer: The online key.
        fresh: `written` are all pages of the group: who signed before, and what, does not count.

    Returns:
        The page; `old` itself where that says the same.

    Raises:
        PublishRefusedError: The old signature is another key's.
    """
    plain = html.without_signature(page)
    there = html.signature_of(old, key) if old is not None else None
    before = None if fresh else check_ours(there, signer, key)
    covered = dict(before.signed.targets) if before else {}
    for name, data in {**written, key: plain}.items():
        target = _target(name, data)
        present = covered.get(name)
        # An older page that a slow writer holds never replaces the digest of a newer one.
        if present is None or name == key or generation_of(present) < generation_of(target):
            covered[name] = target
    if old is not None and before and covered == before.signed.targets and html.without_signature(old) == plain:
        return old
    return html.with_signature(plain, _signature(covered, key, _version(there), signer))


def generation_of(target: TargetFile) -> int:
    found = (target.unrecognized_fields.get("custom") or {}).get("generation", 0)
    return found if isinstance(found, int) else 0


def scope_of(targets: Targets) -> str:
    """The key of the page that carries the signature: a signature of another group says another."""
    return str(targets.unrecognized_fields.get(_SCOPE))


def time_of(targets: Targets) -> str:
    """When it was signed, ISO 8601; the signer's word."""
    return str(targets.unrecognized_fields.get(_TIME))


def expires_of(signature: Mapping[str, Any], key: str) -> datetime:
    """When the signature on a page stops to count; ForeignObjectError if it does not say."""
    try:
        return min(datetime.fromisoformat(signature[role]["signed"]["expires"]) for role in _ROLES)
    except (KeyError, TypeError, ValueError) as error:
        raise pages.foreign(key, "its signature does not say when it expires") from error


def digests_of(signature: Mapping[str, Any]) -> dict[str, str]:
    """The sha256 of each page that a signature covers, by key, whoever signed; nothing if it does not say."""
    try:
        covered = signature["targets"]["signed"]["targets"]
        return {check_key(name): target["hashes"]["sha256"] for name, target in covered.items()}
    except (KeyError, TypeError, AttributeError, UsageError):
        return {}


def _target(key: str, data: bytes) -> TargetFile:
    digest, custom = hashlib.sha256(data).hexdigest(), {"generation": page_generation(key, data)}
    return TargetFile(len(data), {"sha256": digest}, key, {"custom": custom})


def _version(signature: Mapping[str, Any] | None) -> int:
    try:
        before = int((signature or {})["timestamp"]["signed"]["version"])
    except (KeyError, TypeError, ValueError):
        before = 0
    # TUF clients refuse a version below one that they have. The clock lifts it above what a restored backup or the
    # index that this is a copy of says: in milliseconds, since nobody publishes to a group faster than that.
    return max(before + 1, time.time_ns() // 10**6)


def _signature(covered: Mapping[str, TargetFile], key: str, version: int, signer: Signer) -> dict[str, Any]:
    now = datetime.now(UTC).replace(microsecond=0)
    # One version for all three: they are written together, so none can be newer than another.
    common: dict[str, Any] = {"version": version, "expires": now + timedelta(days=DAYS)}
    more = {_SCOPE: key, _TIME: now.isoformat()}
    roles: dict[str, Targets | Snapshot | Timestamp] = {
        "targets": Targets(**common, targets=dict(covered), unrecognized_fields=more),
        "snapshot": Snapshot(**common, meta={"targets.json": MetaFile(version)}),
        "timestamp": Timestamp(**common, snapshot_meta=MetaFile(version)),
    }
    made = {}
    for name, role in roles.items():
        metadata: Metadata[Any] = Metadata(role)
        metadata.sign(signer.signer)
        made[name] = metadata.to_dict()
    return made


def sign_pages(store: Store, signer: Signer, written: Mapping[str, bytes]) -> bool:
    """Takes the digests of these pages into the signatures of their groups; False when they were in them."""
    changed = False
    for key, theirs in _by_signature(written).items():
        changed = _sign(store, signer, key, theirs) or changed
    return changed


def sign_everything(store: Store, signer: Signer) -> int:
    """Signs all pages as they are, whoever signed before; returns how many there are."""
    present: dict[str, bytes] = {}
    for key in sorted(store.list("whl/")):
        if is_page(key) and (found := store.get(key)) is not None:
            # What somebody else put there is not signed, and does not keep the rest from it: `check` names it.
            with contextlib.suppress(pages.ForeignObjectError):
                page_generation(key, found.data)
                present[key] = found.data
    for key, theirs in _by_signature(present).items():
        _sign(store, signer, key, theirs, fresh=True)
    return len(present)


def renew(store: Store, signer: Signer) -> list[str]:
    """Signs again what our key signed before, with a later expiry; returns where."""
    found = [key for key in sorted(store.list("whl/")) if is_page(key) and signature_key(key) == key]

    def again(old: bytes | None, key: str) -> bytes | None:
        there = None if old is None else html.signature_of(old, key)
        before = check_ours(there, signer, key)
        if old is None or before is None:
            return None
        return html.with_signature(old, _signature(before.signed.targets, key, _version(there), signer))

    return [key for key in found if swap(store, key, lambda old, k=key: again(old, k), pages.HTML).written]  # type: ignore[misc]


def _by_signature(written: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = defaultdict(dict)
    for key, data in written.items():
        if is_page(key):
            found[signature_key(key)][key] = data
    return found


def _sign(store: Store, signer: Signer, key: str, written: Mapping[str, bytes], *, fresh: bool = False) -> bool:
    others = {name: data for name, data in written.items() if name != key}

    def change(old: bytes | None) -> bytes | None:
        # a group may have pages without any wheel of its own, and so no flat page yet
        page = old if old is not None else html.links_html(key.split("/")[1], {})
        now = {**others, **_since(store, old, key, others)} if fresh and old is not None else others
        new = signed(page, key, old, now, signer, fresh=fresh)
        return None if new == old else new

    return swap(store, key, change, pages.HTML).written


def _since(store: Store, old: bytes, key: str, read: Mapping[str, bytes]) -> dict[str, bytes]:
    """Pages that a signature has otherwise than they were read, as they are now: a publisher was there since."""
    covered = digests_of(html.signature_of(old, key) or {})
    digests = {name: digest for name, digest in covered.items() if name != key}
    # Whoever signed it: this only says which pages to read again.
    names = [
        name
        for name, digest in digests.items()
        if digest != hashlib.sha256(read.get(name, b"")).hexdigest() and is_page(name) and signature_key(name) == key
    ]
    return {name: found.data for name in names if (found := store.get(name)) is not None}


def groups_html(groups: Iterable[str]) -> bytes:
    """The list of groups. No installer reads it: which group is right depends on the machine."""
    return html.root_html("Groups of wheels", set(groups), folder="simple/")
