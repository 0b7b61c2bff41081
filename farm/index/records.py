"""Records and events, from which all pages follow: records claim names, events say what happened
later.

A record is created once and says for ever which bytes a name stands for. `events/<wheel>/<n>.json`
are counted from 1; the state of a wheel is the fold of its events. Pages say which event they show,
so that a slow writer never puts an older state over a newer one.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from farm.base.errors import InfrastructureError, UsageError
from farm.base.yamlfile import first_fault
from farm.index.layout import WheelName, check_group, event_key, parse_wheel_name, record_key
from farm.index.stores import Store, Stored, each_answer

Kind = Literal["yank", "unyank", "remove", "promote"]

READERS = 16
"""Records are small and many, and each costs a round trip."""
MAX_EVENTS = 1000
"""About one wheel; more is a mistake in a script."""
PREDICATE = "slsa"
"""The key of a record's provenance that holds a SLSA predicate: how the wheel was built."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Model = TypeVar("_Model", bound="Model")


class ForeignObjectError(InfrastructureError):
    """An object in the index was not written by this farm."""


class NewerObjectError(ForeignObjectError):
    """An object in the index was written by a newer release of the farm."""


class Model(BaseModel):
    """A model of stored data, checked when read; unknown keys are refused, since writing would lose
    them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def render(self) -> bytes:
        return compact(self.model_dump(by_alias=True, exclude_none=True))


class Record(Model):
    """The claim on a name.

    `groups`: where the wheel is listed. `provenance`: where it comes from; small: digests of its
    plan and reports.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    filename: WheelName
    project: str
    version: str
    sha256: Sha256
    size: int = Field(ge=0)
    metadata_sha256: Sha256 = Field(alias="metadata-sha256")
    requires_python: str | None = Field(default=None, alias="requires-python")
    groups: tuple[str, ...]
    channel: str | None = None
    upload_time: str = Field(alias="upload-time")
    provenance: dict[str, Any]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.render()).hexdigest()


def _printable(text: str) -> str:
    if (
        not text.isprintable()
    ):  # pip shows the reason of a yank as it is: no escape sequences, no other direction
        raise ValueError("not one line of printable text")
    return text


class Event(Model):
    """One thing that happened to a wheel. `group` is a promotion's."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    number: int = Field(ge=1, le=MAX_EVENTS)
    kind: Kind
    target: WheelName
    reason: Annotated[str, StringConstraints(max_length=500), AfterValidator(_printable)]
    time: str
    group: Annotated[str, AfterValidator(check_group)] | None = None


class State(NamedTuple):
    """After all events: the number of the newest (0: none), and what they come to.

    `yanked` and `removed` are the reason, else False and None; nothing comes after a removal.
    """

    number: int = 0
    yanked: bool | str = False
    removed: str | None = None
    groups: tuple[str, ...] = ()
    """Those to which it was promoted."""


class Wheel(NamedTuple):
    """All that is known of a wheel."""

    record: Record
    state: State = State()

    @property
    def name(self) -> str:
        return self.record.filename

    @property
    def groups(self) -> tuple[str, ...]:
        """Where it is listed: where it was published, and where it was promoted to."""
        return tuple(dict.fromkeys((*self.record.groups, *self.state.groups)))


WheelsByPlace = dict[str, dict[str, list[Wheel]]]
"""Wheels by group and project."""


def compact(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def foreign(key: str, why: str) -> ForeignObjectError:
    return ForeignObjectError(
        f"{key} in the index is not of this farm ({why})",
        hint="nothing was written over it; if an older farm made it: farm index reconcile; else "
        "find out who did",
    )


def check_schema(error: ValidationError, model: type[Model], key: str) -> None:
    """Refuse an object that a newer release of the farm wrote, in words that say so.

    Args:
        error: Why the object is not one of `model`.
        model: What it should be; its `schema` is the newest that this release reads.
        key: Where the object is in the index.

    Raises:
        NewerObjectError: Its `schema` is a higher number.
    """
    if "schema_version" not in model.model_fields:
        return
    newest: int = model.model_fields["schema_version"].default
    for fault in error.errors():
        number = fault["input"]
        if fault["loc"] == ("schema",) and isinstance(number, int) and number > newest:
            raise NewerObjectError(
                f"{key} was written by a newer release of the farm: schema {number}, this one "
                f"reads up to {newest}",
                hint="nothing was changed; upgrade this farm (docs/how-to/upgrading.md)",
            ) from error


def parse(model: type[_Model], data: bytes, key: str) -> _Model:
    """An object of the index as one of our models; ForeignObjectError if it is none."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        check_schema(error, model, key)
        raise foreign(
            key, f"{error.error_count()} errors, the first: {first_fault(error)}"
        ) from error


def parse_record(data: bytes, key: str) -> Record:
    record = parse(Record, data, key)
    if key != record_key(record.filename):
        raise foreign(key, f"it is the record of {record.filename}")
    return record


def read_record(store: Store, filename: str) -> Record:
    """The record of a wheel; UsageError if it is not in the index."""
    try:
        parse_wheel_name(filename)
    except ValueError as error:
        raise UsageError(str(error)) from error
    stored = store.get(record_key(filename))
    if stored is None:
        raise UsageError(
            f"{filename} is not in the index",
            hint="`farm index check` and catalog.json list what is",
        )
    return parse_record(stored.data, record_key(filename))


def read_events(store: Store, target: str) -> list[Event]:
    """All events about a wheel, the oldest first; ForeignObjectError if one is not ours, or not
    about the target.
    """
    events: list[Event] = []
    # Numbers have no gaps, since each is created only if it is free: the first that is missing ends
    # the list.
    while True:
        number = len(events) + 1
        stored = store.get(event_key(target, number))
        if stored is None:
            return events
        events.append(_event(stored, target, number))


def read_state(store: Store, filename: str) -> State:
    return fold(read_events(store, filename))


def read_wheel(store: Store, filename: str) -> Wheel:
    return Wheel(read_record(store, filename), read_state(store, filename))


def read_all(store: Store, present: Iterable[str]) -> dict[str, Wheel]:
    """Every wheel of which `present` has the record; ForeignObjectError if a record or event is not
    ours.
    """
    keys = sorted(key for key in present if key.startswith("records/"))
    targets = {key.split("/")[1] for key in present if key.startswith("events/")}
    states = dict(each_answer(partial(read_state, store), targets, READERS))
    wheels = {}
    for _, record in each_answer(partial(_listed_record, store), keys, READERS):
        state = states.get(record.filename, State())
        wheels[record.filename] = Wheel(record, state)
    return wheels


def _listed_record(store: Store, key: str) -> Record:
    stored = store.get(key)
    if stored is None:
        raise ForeignObjectError(f"{key} is listed by the store but cannot be read")
    return parse_record(stored.data, key)


def _event(stored: Stored, target: str, number: int) -> Event:
    key = event_key(target, number)
    event = parse(Event, stored.data, key)
    if (event.target, event.number) != (target, number):
        raise ForeignObjectError(
            f"{key} in the index is event {event.number} of {event.target:.200}"
        )
    return event


def fold(events: Sequence[Event]) -> State:
    """The state that follows from events."""
    state = State()
    for event in events:
        state = state._replace(number=event.number)
        match event.kind:
            case "yank":
                state = state._replace(yanked=event.reason or True)
            case "unyank":
                state = state._replace(yanked=False)
            case "remove":
                state = state._replace(removed=event.reason)
            case "promote" if event.group is not None:
                groups = dict.fromkeys((*state.groups, event.group))
                state = state._replace(groups=tuple(groups))
    return state


def add_event(
    store: Store, target: str, kind: Kind, reason: str, *, group: str | None = None
) -> State:
    """The state with the new event; without one if that is the state already."""
    events = read_events(store, target)
    while len(events) < MAX_EVENTS:
        number = len(events) + 1
        at = datetime.now(UTC).isoformat()
        try:
            event = Event(
                number=number,
                kind=kind,
                target=target,
                reason=reason,
                time=at,
                group=group,
            )
        except ValidationError as error:
            raise UsageError(
                "the reason must be one line of at most 500 printable characters"
            ) from error
        now = fold(events)
        after = fold([*events, event])
        # The event would change nothing but the count; nothing comes after `remove`.
        if after == now._replace(number=number) or now.removed is not None:
            return now
        key = event_key(target, number)
        # The number is a claim: of two writers one gets it, the other reads that event and decides
        # anew.
        if store.create(key, event.render(), content_type="application/json"):
            return after
        events.append(_event(there(store, key), target, number))
    raise UsageError(f"{target} has {MAX_EVENTS} events: something adds them in a loop")


def there(store: Store, key: str) -> Stored:
    """The object at a key that could not be created: someone else's, or ours with the answer
    lost.
    """
    stored = store.get(key)
    if stored is None:
        raise InfrastructureError(
            f"{store.url(key)} was refused as existing and is absent: the store is inconsistent"
        )
    return stored
