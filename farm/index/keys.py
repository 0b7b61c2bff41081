"""The keys that sign an index: ed25519 in PEM, and the root role of The Update Framework (TUF) that says which count.

A key pair is two files, or the private one in an environment variable. The root key is kept offline and signs little,
`tuf/<n>.root.json`, counted from 1: which keys may sign the index ("online" keys, for TUF's roles targets, snapshot and
timestamp alike), and its own successor. Each version is signed by the one before it too, so that a user who has an old
one is led to the newest. `farm.index.sign` is what online keys sign.
"""

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from farm.base.errors import PublishRefusedError, UsageError
from farm.index.records import foreign
from farm.index.stores import Store

MAX_PEM = 4096
MAX_ROOTS = 256
"""As many rotations as TUF's client follows."""
ROOT_DAYS = 365
"""How long a root counts; `farm index key renew` makes the next one."""
ONLINE_ROLES = (Targets.type, Snapshot.type, Timestamp.type)
_REVOKED = "x-farm-revoked"
"""keyid -> reason, for what verify prints; a key counts no more because no role names it."""


def new_key(private: Path) -> Path:
    """Makes a key pair: `private` (mode 600) and `private` + `.pub`, and their folder; returns the public one's path.

    Raises:
        UsageError: One of the files exists, or cannot be written.
    """
    public = private.with_name(f"{private.name}.pub")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    shown = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, data, mode in ((public, shown, 0o644), (private, secret, 0o600)):
            # O_EXCL never writes over a key; the mode is set with the file, so that nobody can read it in between.
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:  # noqa: PTH123  a descriptor
                file.write(data)
    except FileExistsError as error:
        raise UsageError(
            f"{error.filename} exists; a key is never written over",
            hint="what it signed could be checked no more; choose another name",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or private}: {error.strerror}") from error
    return public


def load_signer(private: Path) -> CryptoSigner:
    """Reads a private key; UsageError if the file holds none."""
    return parse_signer(_read(private), str(private))


def parse_signer(pem: bytes, where: str) -> CryptoSigner:
    """A private key from its PEM text; UsageError, without that text, if it is none."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"{where} holds no ed25519 private key in PEM without a password", hint="farm index key new FILE"
        )
    return CryptoSigner(key)


def load_public(path: Path) -> SSlibKey:
    """Reads a public key; UsageError if the file holds none."""
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path} holds no ed25519 public key in PEM", hint="`farm index key new` writes FILE.pub")
    return SSlibKey.from_crypto(key)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PEM)
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from error


def root_key(number: int) -> str:
    return f"tuf/{number}.root.json"


def newest_root(store: Store) -> Metadata[Root] | None:
    """The newest root that is there; None for none. Not verified: for the owner of the index."""
    found: Metadata[Root] | None = None
    for number in range(1, MAX_ROOTS):
        stored = store.get(root_key(number))
        if stored is None:
            break
        try:
            found = Metadata[Root].from_bytes(stored.data)
        except (DeserializationError, ValueError, RecursionError) as error:
            raise foreign(root_key(number), "no metadata of The Update Framework") from error
        if found.signed.type != Root.type or found.signed.version != number:
            raise foreign(root_key(number), f"it is {found.signed.type!r:.40} {found.signed.version}")
    return found


def online_keys(root: Root) -> frozenset[str]:
    """The keyids that may sign."""
    return frozenset(root.roles[Targets.type].keyids)


def revoked_keys(root: Root) -> dict[str, str]:
    """Keyid -> reason."""
    found = root.unrecognized_fields.get(_REVOKED, {})
    return {str(keyid): str(reason) for keyid, reason in found.items()} if isinstance(found, dict) else {}


def start(store: Store, signer: CryptoSigner, online: Iterable[SSlibKey]) -> bytes:
    """Writes the first root; `signer` is the root key. A call that was killed may be repeated.

    Raises:
        PublishRefusedError: There is another root already.
    """
    root = Root(expires=_expiry(), consistent_snapshot=True)
    root.add_key(signer.public_key, Root.type)
    for key in online:
        _add(root, key)
    data = _signed(Metadata(root), signer)
    if not store.create(root_key(1), data, content_type="application/json"):
        # It may be our own, of a call that was killed before it had the answer.
        there = newest_root(store)
        if there is None or there.signed.version != 1 or there.signed.roles != root.roles:
            raise PublishRefusedError(
                "this index has a root key already", hint="farm index key rotate changes which keys may sign"
            )
        return _bytes(there)
    return data


def change(
    store: Store,
    signer: CryptoSigner,
    *,
    add: Iterable[SSlibKey] = (),
    revoke: SSlibKey | None = None,
    reason: str = "",
    successor: CryptoSigner | None = None,
) -> tuple[int, bool]:
    """Writes the next root: other online keys, another root key, or only a later expiry.

    Returns:
        The number of the newest root, and whether it was written now: what a killed call did is not done again.

    Raises:
        UsageError: There is no root, the key is not its root key, the reason is not a short line, or no online key
            would be left.
        PublishRefusedError: Somebody else changed the root at the same time.
    """
    made = newest_root(store)
    if made is None:
        raise UsageError("this index has no root yet", hint="farm index key init")
    root = made.signed
    owners, revoked = root.roles[Root.type].keyids, revoked_keys(root)
    if (successor and successor.public_key.keyid in owners) or (revoke and revoke.keyid in revoked):
        return root.version, False
    if signer.public_key.keyid not in owners:
        raise UsageError(
            f"key {signer.public_key.keyid[:16]} is not the root key of this index",
            hint="name the root key: --root-key FILE",
        )
    if len(reason) > 500 or not reason.isprintable():
        raise UsageError("the reason must be one line of at most 500 characters")
    root.version += 1
    root.expires = _expiry()
    for key in add:
        if key.keyid in revoked:
            raise UsageError(f"key {key.keyid[:16]} was revoked: {revoked[key.keyid]}")
        _add(root, key)
    if revoke is not None:
        _revoke(root, revoke.keyid, reason)
    if successor is not None:
        root.add_key(successor.public_key, Root.type)
        root.revoke_key(signer.public_key.keyid, Root.type)
    # The number is the name, and a name is created once: of two changes at the same time one is refused.
    data = _signed(made, signer, *([successor] if successor else []))
    if not store.create(root_key(root.version), data, content_type="application/json"):
        raise PublishRefusedError("another change of the keys came first", hint="look at the keys, then run this again")
    return root.version, True


def _add(root: Root, key: SSlibKey) -> None:
    for role in ONLINE_ROLES:
        root.add_key(key, role)


def _revoke(root: Root, keyid: str, reason: str) -> None:
    if keyid not in online_keys(root):
        raise UsageError(f"key {keyid[:16]} is not an online key of this index")
    if len(online_keys(root)) == 1:
        raise UsageError("no online key would be left", hint="first: farm index key rotate NEW.pub")
    for role in ONLINE_ROLES:
        root.revoke_key(keyid, role)
    # TUF has no place for a reason: a field of our own, which its clients leave alone.
    root.unrecognized_fields[_REVOKED] = {**revoked_keys(root), keyid: reason}


def _expiry() -> datetime:
    # Times of TUF have whole seconds.
    return (datetime.now(UTC) + timedelta(days=ROOT_DAYS)).replace(microsecond=0)


def _signed(made: Metadata[Root], *signers: CryptoSigner) -> bytes:
    """Signed anew, since the content has changed: at a change of root keys by both of them."""
    made.signatures.clear()
    for each in signers:
        made.sign(each, append=True)
    return _bytes(made)


def _bytes(made: Metadata[Root]) -> bytes:
    data: bytes = made.to_bytes(JSONSerializer(compact=False))
    return data
