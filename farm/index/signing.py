"""Ed25519 keys and DSSE envelopes: who signed what.

A key pair is two PEM files, or the private one in an environment variable. A key's name is its `keyid`, a hash of
the public key. Envelopes are those of DSSE (secure-systems-lab/dsse), so that other tools can read them.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from farm.base.errors import UsageError, VerificationFailedError

MAX_PEM = 4096

Keys = Mapping[str, SSlibKey]
"""Public keys by keyid."""


class Signer:
    """A private key. Its text is never shown: not in errors, not in `repr`."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self.signer = CryptoSigner(private)
        self.public_pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public = parse_public(self.public_pem, "the key")
        self.keyid = self.public.keyid

    def __repr__(self) -> str:
        return f"Signer({self.keyid[:16]})"

    def envelope(self, document: Mapping[str, Any], payload_type: str) -> bytes:
        """A signed envelope around a JSON document; the same document gives the same bytes."""
        # Canonical: a repeated publish makes the same envelope, so nothing has to be written again (ed25519 is
        # deterministic).
        payload = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        envelope = Envelope(payload, payload_type, {})
        envelope.sign(self.signer)
        return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def new_key(private: Path) -> Path:
    """Makes a key pair: `private` (mode 600) and `private` + `.pub`, and their folder; returns the public one's path.

    Raises:
        UsageError: One of the files exists, or cannot be written.
    """
    public = private.with_name(f"{private.name}.pub")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {private.parent}: {error.strerror}") from error
    try:
        for path, data, mode in ((public, Signer(key).public_pem, 0o644), (private, secret, 0o600)):
            # O_EXCL never writes over a key; the mode is set with the file, so that nobody can read it in between.
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:  # noqa: PTH123  a descriptor
                file.write(data)
    except FileExistsError as error:
        raise UsageError(
            f"{error.filename} exists; a key is never written over",
            hint="what it signed could be checked no more; choose another name",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from error
    return public


def load_signer(private: Path) -> Signer:
    """Reads a private key; UsageError if the file holds none."""
    return parse_signer(_read(private), str(private))


def parse_signer(pem: bytes, where: str) -> Signer:
    """A private key from its PEM text; UsageError, without that text, if it is none."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"{where} holds no ed25519 private key in PEM without a password", hint="farm index key new FILE"
        )
    return Signer(key)


def load_public(path: Path) -> SSlibKey:
    """Reads a public key; UsageError if the file holds none."""
    return parse_public(_read(path), str(path))


def parse_public(pem: bytes, where: str) -> SSlibKey:
    """A public key from its PEM text."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{where} holds no ed25519 public key in PEM", hint="`farm index key new` writes FILE.pub")
    return SSlibKey.from_crypto(key)


def opened(envelope: bytes, trusted: Keys, payload_type: str, where: str) -> tuple[Any, str]:
    """The document inside an envelope that a trusted key signed, and that key's keyid.

    Raises:
        VerificationFailedError: It is not an envelope, holds something else, or no trusted key signed it.
    """
    try:
        parsed = Envelope.from_dict(json.loads(envelope))
        parsed.pae()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError) as error:
        raise VerificationFailedError(f"{where} is not a signed envelope") from error
    # The type is part of what is signed: an envelope of another kind by the same key is no statement about wheels.
    if parsed.payload_type != payload_type:
        raise VerificationFailedError(f"{where} holds {parsed.payload_type!r:.80}, not {payload_type}")
    if not trusted:
        raise VerificationFailedError(f"{where}: no key is trusted")
    try:
        by = parsed.verify(list(trusted.values()), 1)
    except VerificationError as error:
        named = ", ".join(sorted(keyid[:16] for keyid in parsed.signatures)) or "nobody"
        raise VerificationFailedError(f"{where} is not signed by a trusted key (it names {named:.200})") from error
    try:
        return json.loads(parsed.payload), sorted(by)[0]
    except (ValueError, RecursionError) as error:
        raise VerificationFailedError(f"{where}: what was signed is not JSON") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PEM)
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from error
