"""Whose signatures count: keys are added and revoked by signed objects in the index that never change.

`whl/keys/<n>.json`, counted from 1, each an envelope signed by a key that was trusted before it. A user starts from the
keys that they were given by other means, and follows. A revoked key takes along the keys that it had added, except the
one that signs the revocation: whoever stole a key may have added others with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import Field, ValidationError
from securesystemslib.signer import SSlibKey

from farm.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.index.pages import Model
from farm.index.signing import Keys, Signer, opened, parse_public
from farm.index.stores import Store

PAYLOAD_TYPE = "application/vnd.torch-farm.key+json"
MAX_EVENTS = 1000

Read = Callable[[str], bytes | None]
"""Gives an object of the index by its key; None where there is none."""


class KeyEvent(Model):
    """A key that was added (`public` is its PEM text) or revoked."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    number: int = Field(ge=1, le=MAX_EVENTS)
    kind: Literal["add", "revoke"]
    keyid: str = Field(pattern=r"^[0-9a-f]{64}$")
    public: str | None = Field(default=None, max_length=4096)
    reason: str = Field(default="", max_length=500)
    time: str = Field(max_length=64)


@dataclass(frozen=True)
class Trust:
    """Whose signatures count, and whose do not any more (keyid -> reason).

    `count` is how many key events there are; `unknown` are those that no trusted key signed.
    """

    keys: Mapping[str, SSlibKey]
    revoked: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    unknown: tuple[int, ...] = ()


def key_event_key(number: int) -> str:
    return f"whl/keys/{number}.json"


def read_trust(read: Read, given: Keys) -> Trust:
    """Follows the key events from the keys that the user has.

    Raises:
        VerificationFailedError: Every key that the user has is revoked.
    """
    keys, revoked, added_by = dict(given), dict[str, str](), dict[str, str]()
    unknown: list[int] = []
    number = 0
    while number < MAX_EVENTS and (data := read(key_event_key(number + 1))) is not None:
        number += 1
        try:
            event, by = _event(data, keys, number)
        except VerificationFailedError:
            unknown.append(number)
            continue
        if event.kind == "revoke":
            for keyid in _with_added({event.keyid}, added_by, by if by != event.keyid else ""):
                revoked[keyid] = event.reason
                keys.pop(keyid, None)
        elif event.keyid not in revoked:
            keys[event.keyid] = parse_public((event.public or "").encode(), key_event_key(number))
            added_by.setdefault(event.keyid, by)
    if not keys:
        reasons = "; ".join(f"{keyid[:16]}: {reason or 'no reason given'}" for keyid, reason in revoked.items())
        raise VerificationFailedError(
            f"every key that you trust is revoked ({reasons})", hint="get the farm's new public key from its owner"
        )
    return Trust(keys, revoked, number, tuple(unknown))


def _event(data: bytes, keys: Keys, number: int) -> tuple[KeyEvent, str]:
    where = key_event_key(number)
    document, by = opened(data, keys, PAYLOAD_TYPE, where)
    try:
        event = KeyEvent.model_validate(document)
        added = parse_public((event.public or "").encode(), where).keyid if event.kind == "add" else event.keyid
    except (ValidationError, UsageError) as error:
        raise VerificationFailedError(f"{where} is no event about a key") from error
    if event.number != number or added != event.keyid:
        raise VerificationFailedError(f"{where} is about another key or number than it says")
    return event, by


def _with_added(keyids: set[str], added_by: Mapping[str, str], spared: str) -> set[str]:
    """The keys, and all that they added, directly or not; without the one that is spared and what it added."""
    while more := {key for key, by in added_by.items() if by in keyids and key not in keyids and key != spared}:
        keyids = keyids | more
    return keyids


def add_key(store: Store, signer: Signer, public_pem: bytes) -> int:
    """Says, signed with a trusted key, that another one counts as well; returns the number of the event."""
    added = parse_public(public_pem, "the new key")
    return _append(store, signer, {"kind": "add", "keyid": added.keyid, "public": public_pem.decode()})


def revoke_key(store: Store, signer: Signer, keyid: str, reason: str) -> int:
    """Says that a key counts no more; returns the number of the event.

    Raises:
        UsageError: The reason is no short text.
    """
    return _append(store, signer, {"kind": "revoke", "keyid": keyid, "reason": reason})


def _append(store: Store, signer: Signer, event: Mapping[str, Any]) -> int:
    for number in range(1, MAX_EVENTS + 1):
        if store.get(key_event_key(number)) is not None:
            continue
        try:
            made = KeyEvent.model_validate({**event, "number": number, "time": datetime.now(UTC).isoformat()})
        except ValidationError as error:
            raise UsageError(f"not an event about a key: {error.errors()[0]['msg']}") from error
        document = made.model_dump(by_alias=True, exclude_none=True)
        if store.create(
            key_event_key(number), signer.envelope(document, PAYLOAD_TYPE), content_type="application/json"
        ):
            return number
    raise InfrastructureError(f"{MAX_EVENTS} keys were added and revoked: something adds them in a loop")
