"""Keys that sign, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them."""

from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from securesystemslib.signer import CryptoSigner


def write_key(private: Path) -> CryptoSigner:
    """Writes `private` and `private`.pub."""
    signer = CryptoSigner.generate_ed25519()
    private.write_bytes(signer.private_bytes)
    public = load_pem_private_key(signer.private_bytes, None).public_key()
    private.with_name(f"{private.name}.pub").write_bytes(
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return signer
