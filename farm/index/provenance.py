"""Where a wheel comes from: an in-toto statement with a SLSA predicate, signed, one for each key that vouches for it.

The first lies in the wheel's record, and is claimed with it; those of later keys beside the wheels.

in-toto Statement v1 and SLSA Provenance v1; the predicate was written by whoever built the wheel and is kept in the
wheel's record, so that the same statement can be signed again with a newer key.
"""

import json
from typing import Any

from farm.base.errors import InfrastructureError, UsageError
from farm.index.records import Record
from farm.index.signing import Signer
from farm.index.stores import Store

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
PREDICATE = "slsa"
"""The key of a record's provenance that holds the predicate."""


def attestation_key(filename: str, keyid: str) -> str:
    return f"whl/attestations/{filename}/{keyid[:16]}.intoto.json"


def statement(record: Record) -> dict[str, Any]:
    """The statement about a wheel.

    Raises:
        UsageError: The record says nothing of how the wheel was built.
    """
    predicate = record.provenance.get(PREDICATE)
    if not isinstance(predicate, dict):
        raise UsageError(
            f"{record.filename}: its record does not say how it was built, so there is nothing to sign",
            hint="publish without a key, or with `farm publish`, which says it",
        )
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": record.filename, "digest": {"sha256": record.sha256}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def made_from(build_type: str, filename: str, uri: str, sha256: str) -> dict[str, Any]:
    """The provenance of a wheel that was not built here: a SLSA predicate that says what it was taken from."""
    return {
        PREDICATE: {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": {"wheel": filename},
                "resolvedDependencies": [{"uri": uri, "digest": {"sha256": sha256}}],
            },
            "runDetails": {"builder": {"id": "urn:torch-farm"}},
        }
    }


def attested(record: Record, signer: Signer) -> Record:
    """The record with the signed statement in it; for a name that is not claimed yet."""
    return record.model_copy(update={"attestation": json.loads(signer.envelope(statement(record), PAYLOAD_TYPE))})


def attest(store: Store, record: Record, signer: Signer) -> bool:
    """Stores the signed statement about a wheel beside it; False when it was there, or in the record."""
    envelope = signer.envelope(statement(record), PAYLOAD_TYPE)
    if record.attestation == json.loads(envelope):
        return False
    if _is_by(record.attestation, signer.keyid):
        raise InfrastructureError(
            f"the record of {record.filename} does not say what was attested when it was published",
            hint="something other than the farm changed it: put the record back from a backup, or remove the wheel",
        )
    key = attestation_key(record.filename, signer.keyid)
    if store.create(key, envelope, content_type="application/json"):
        return True
    there = store.get(key)
    if there is None or there.data != envelope:
        raise InfrastructureError(
            f"{store.url(key)} differs from the statement in the wheel's record",
            hint="something other than the farm changed it; `farm index verify` lists what else does not match",
        )
    return False


def _is_by(attestation: dict[str, Any] | None, keyid: str) -> bool:
    """Does an envelope name this key? The same key makes the same envelope of the same statement."""
    signatures = (attestation or {}).get("signatures")
    return isinstance(signatures, list) and any(isinstance(s, dict) and s.get("keyid") == keyid for s in signatures)
