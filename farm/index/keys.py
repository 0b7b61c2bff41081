"""Whose signatures count: the root role of The Update Framework, `whl/keys/<n>.root.json`, counted from 1.

The root key is kept offline and signs little: which keys may publish ("online" keys, for TUF's roles targets, snapshot
and timestamp alike), and its own successor. Each version is signed by the one before it too, so that a user who has an
old root key is led to the newest. Files are written once; https://theupdateframework.github.io/specification has the
format. `farm.index.roles` is what online keys sign.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from securesystemslib.signer import SSlibKey
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from farm.base.errors import PublishRefusedError, UsageError, VerificationFailedError
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, parse_catalogue
from farm.index.pages import foreign
from farm.index.signing import Keys, Signer
from farm.index.stores import Store
from farm.index.swap import swap

ONLINE_ROLES = (Targets.type, Snapshot.type, Timestamp.type)

ROOT_DAYS = 365
"""How long a root counts; `farm index key renew` makes the next one."""

MAX_ROOTS = 256
"""As many rotations as TUF's client follows."""

_REVOKED = "x-farm-revoked"
"""keyid -> reason, for what verify prints; a key counts no more because no role names it."""

Read = Callable[[str], bytes | None]
"""Gives an object of the index by its key; None where there is none."""


def root_key(number: int) -> str:
    return f"whl/keys/{number}.root.json"


def parse_root(data: bytes, number: int) -> Metadata[Root]:
    """Reads a root, whoever signed it; ForeignObjectError if it is none of that number."""
    try:
        found: Metadata[Root] = Metadata.from_bytes(data)
        if found.signed.type == Root.type and found.signed.version == number:
            return found
        why = f"it is {found.signed.type!r:.40} {found.signed.version}"
    except (DeserializationError, ValueError, RecursionError):
        why = "no metadata of The Update Framework"
    raise foreign(root_key(number), why)


def first_trusted(read: Read, given: Keys) -> bytes:
    """The first root that one of these keys signed as root: where a user's trust begins.

    Raises:
        VerificationFailedError: There is none.
    """
    publishers = False
    for number in range(1, MAX_ROOTS):
        data = read(root_key(number))
        if data is None:
            break
        root = parse_root(data, number)
        roles = root.signed.roles
        for keyid, key in given.items():
            if keyid in roles[Root.type].keyids and _signed_by(root, key):
                return data
            publishers = publishers or keyid in roles[Targets.type].keyids
    else:
        number = MAX_ROOTS
    if number == 1:
        raise VerificationFailedError(
            f"there is no {root_key(1)}: this index is not signed, or not an index",
            hint="what pip gets, without /whl/<group>/simple/ at its end, is the index",
        )
    raise VerificationFailedError(
        "this index is not signed by a trusted key",
        hint="that is a publisher's key: ask the owner for the root key's .pub" if publishers else None,
    )


def _signed_by(root: Metadata[Root], key: SSlibKey) -> bool:
    signature = root.signatures.get(key.keyid)
    if signature is None:
        return False
    # Whatever the library raises: a signature that it cannot verify counts as none.
    try:
        key.verify_signature(signature, root.signed_bytes)
    except Exception:
        return False
    return True


def online_keys(root: Root) -> dict[str, SSlibKey]:
    """The keys that may publish, by keyid."""
    keyids = root.roles[Targets.type].keyids
    return {keyid: key for keyid in keyids if isinstance(key := root.keys[keyid], SSlibKey)}


def revoked_keys(root: Root) -> dict[str, str]:
    """Keyid -> reason."""
    found = root.unrecognized_fields.get(_REVOKED, {})
    return {str(keyid): str(reason) for keyid, reason in found.items()} if isinstance(found, dict) else {}


def remember_online(store: Store) -> None:
    """Writes into the catalogue which keys may sign, so that publishers with another key are refused early."""
    root = newest_root(store)
    if root is None:
        return
    keyids = tuple(sorted(online_keys(root.signed)))

    def change(old: bytes | None) -> bytes | None:
        before = parse_catalogue(old)
        return None if before.keys == keyids and old else before.model_copy(update={"keys": keyids}).render()

    swap(store, CATALOGUE_KEY, change, CATALOGUE_TYPE)


def newest_root(store: Store) -> Metadata[Root] | None:
    """The newest root that is there; None for none. Not verified: for the owner of the index."""
    found = None
    for number in range(1, MAX_ROOTS):
        stored = store.get(root_key(number))
        if stored is None:
            break
        found = parse_root(stored.data, number)
    return found


def start(store: Store, signer: Signer, online: Iterable[SSlibKey] = ()) -> bool:
    """Writes the first root; `signer` is the root key, and the online key where no other is named.

    Returns:
        False when there is another root already; nothing changed then. A call that was killed may be repeated.
    """
    root = Root(expires=_expiry(), consistent_snapshot=False)
    root.add_key(signer.public, Root.type)
    for key in tuple(online) or (signer.public,):
        for role in ONLINE_ROLES:
            root.add_key(key, role)
    made = Metadata(root)
    made.sign(signer.signer)
    if store.create(root_key(1), _bytes(made), content_type="application/json"):
        return True
    # It may be our own, of a call that was killed before it had the answer.
    there = newest_root(store)
    return there is not None and there.signed.version == 1 and there.signed.roles == root.roles


def change(
    store: Store,
    signer: Signer,
    *,
    add: Iterable[SSlibKey] = (),
    revoke: SSlibKey | None = None,
    reason: str = "",
    successor: Signer | None = None,
) -> int:
    """Writes the next root: other online keys, another root key, or only a later expiry; returns its number.

    What a call that was killed did already is not an error.

    Raises:
        UsageError: There is no root, the key is not its root key, the reason is not a short line, or no online key
            would be left.
        PublishRefusedError: Somebody else changed the root at the same time.
    """
    before = newest_root(store)
    if before is None:
        raise UsageError("this index has no root yet", hint="farm index key init")
    if successor is not None and successor.keyid in before.signed.roles[Root.type].keyids:
        return before.signed.version
    if signer.keyid not in before.signed.roles[Root.type].keyids:
        raise UsageError(
            f"key {signer.keyid[:16]} is not the root key of this index", hint="name the root key: --root-key FILE"
        )
    if len(reason) > 500 or not reason.isprintable():
        raise UsageError("the reason must be one line of at most 500 characters")
    # A copy: `before` stays as it was read.
    made: Metadata[Root] = Metadata.from_bytes(before.to_bytes())
    root = made.signed
    root.version += 1
    root.expires = _expiry()
    for key in add:
        if key.keyid in revoked_keys(root):
            raise UsageError(f"key {key.keyid[:16]} was revoked: {revoked_keys(root)[key.keyid]}")
        for role in ONLINE_ROLES:
            root.add_key(key, role)
    if revoke is not None:
        _revoke(root, revoke.keyid, reason)
    if successor is not None:
        root.add_key(successor.public, Root.type)
        root.revoke_key(signer.keyid, Root.type)
    # Signatures are over the content, which has changed: the old root key and its successor both sign the new one.
    made.signatures.clear()
    for each in (signer, *([successor] if successor else [])):
        made.sign(each.signer, append=True)
    # The number is the name, and a name is created once: of two changes at the same time one is refused.
    if not store.create(root_key(root.version), _bytes(made), content_type="application/json"):
        raise PublishRefusedError("another change of the keys came first", hint="look at the keys, then run this again")
    return root.version


def _revoke(root: Root, keyid: str, reason: str) -> None:
    if keyid in revoked_keys(root):
        return
    if keyid not in root.roles[Targets.type].keyids:
        raise UsageError(f"key {keyid[:16]} is not an online key of this index")
    for role in ONLINE_ROLES:
        if len(root.roles[role].keyids) == 1:
            raise UsageError("no online key would be left", hint="first: farm index key rotate NEW.pub")
        root.revoke_key(keyid, role)
    # TUF has no place for a reason: a field of our own, which its clients leave alone.
    root.unrecognized_fields[_REVOKED] = {**revoked_keys(root), keyid: reason}


def _expiry() -> datetime:
    # Times of TUF have whole seconds.
    return (datetime.now(UTC) + timedelta(days=ROOT_DAYS)).replace(microsecond=0)


def _bytes(made: Metadata[Root]) -> bytes:
    data: bytes = made.to_bytes(JSONSerializer(compact=False))
    return data
