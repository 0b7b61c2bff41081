"""What happened to a wheel or a project after it was published: small objects that never change.

`events/<wheel or project>/<n>.json`, counted from 1. The state is the fold of all events in their order; pages show
the state after some number of them and say which, so that a slow writer never puts an older state over a newer one.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from farm.base.errors import InfrastructureError, UsageError
from farm.index import naming, pages
from farm.index.admission import check_place
from farm.index.listing import Listed, Listing, Look
from farm.index.pages import ForeignObjectError, Model, Named, ProjectPage
from farm.index.records import Record, parse_record, record_key
from farm.index.stores import Store, Stored

Kind = Literal["yank", "unyank", "quarantine", "release", "remove", "promote", "mirrors"]

MAX_EVENTS = 1000
"""About one wheel or project; more is a mistake in a script."""
MAX_MIRRORS = 20
Mirror = Annotated[str, StringConstraints(pattern=r"^https?://[A-Za-z0-9][^\x00-\x20\x7f\"'<>?#]{0,400}$")]


class Event(Model):
    """One thing that happened. `target` is the file name of a wheel, or the name of a project.

    `group` is promote's; `mirrors` are the roots of indexes that have the same project.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    number: int = Field(ge=1, le=MAX_EVENTS)
    kind: Kind
    target: str
    reason: Annotated[str, StringConstraints(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]
    time: str
    group: Annotated[str, AfterValidator(naming.check_group)] | None = None
    mirrors: Annotated[tuple[Mirror, ...], Field(max_length=MAX_MIRRORS)] | None = None

    def render(self) -> bytes:
        return json.dumps(
            self.model_dump(by_alias=True, exclude_none=True), sort_keys=True, separators=(",", ":")
        ).encode()


class State(NamedTuple):
    """After all events: how many there were, and what they come to.

    Attributes:
        number: Of the newest event; 0 for none.
        yanked: The reason, or False.
        quarantined: The reason, or None.
        removed: The reason, or None; nothing comes after that.
        groups: Those to which it was promoted.
        mirrors: Roots of the indexes that have the same project.
    """

    number: int = 0
    yanked: bool | str = False
    quarantined: str | None = None
    removed: str | None = None
    groups: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()

    def with_source(self, source: "State") -> "State":
        """A copy's, from its own and that of the wheel that it is a copy of: what was said of either holds."""
        return State(
            # Grows with each event about either, so that a page knows which state is the newer one.
            number=self.number + source.number,
            yanked=self.yanked if self.yanked is not False else source.yanked,
            quarantined=source.quarantined if self.quarantined is None else self.quarantined,
            removed=source.removed if self.removed is None else self.removed,
            mirrors=self.mirrors,
        )


def event_key(target: str, number: int) -> str:
    return f"events/{target}/{number}.json"


def read_events(store: Store, target: str) -> list[Event]:
    """All events about a wheel or project, the oldest first.

    Raises:
        ForeignObjectError: One of them is not ours, or is not about the target.
    """
    found: list[Event] = []
    # Numbers have no gaps, since each is created only if it is free: the first that is missing ends the list.
    while (stored := store.get(key := event_key(target, len(found) + 1))) is not None:
        found.append(_parse(stored.data, key, target, len(found) + 1))
    return found


def _parse(data: bytes, key: str, target: str, number: int) -> Event:
    try:
        event = Event.model_validate_json(data)
    except ValidationError as error:
        raise ForeignObjectError(
            f"{key} in the index is not an event of this farm: {error.errors()[0]['msg']}"
        ) from error
    if (event.target, event.number) != (target, number):
        raise ForeignObjectError(f"{key} in the index is event {event.number} of {event.target:.200}")
    return event


def fold(events: Sequence[Event]) -> State:
    """What the events come to."""
    state = State()
    for event in events:
        number = event.number
        match event.kind:
            case "yank":
                state = state._replace(number=number, yanked=event.reason or True)
            case "unyank":
                state = state._replace(number=number, yanked=False)
            case "quarantine":
                state = state._replace(number=number, quarantined=event.reason)
            case "release":
                state = state._replace(number=number, quarantined=None)
            case "remove":
                state = state._replace(number=number, removed=event.reason)
            case "promote" if event.group is not None and event.group not in state.groups:
                state = state._replace(number=number, groups=(*state.groups, event.group))
            # Listed there already: nothing changes but the count.
            case "promote":
                state = state._replace(number=number)
            case "mirrors":
                state = state._replace(number=number, mirrors=event.mirrors or ())
    return state


def read_state(store: Store, target: str) -> State:
    """What all events about a wheel or project come to; of a copy, those about itself."""
    return fold(read_events(store, target))


def state_of(store: Store, wheel: Named) -> State:
    """What was said of a wheel, and of the one that it is a copy of."""
    own = read_state(store, wheel.filename)
    return own if wheel.source is None else own.with_source(read_state(store, wheel.source))


def state_in(states: Mapping[str, State], wheel: Named) -> State:
    """As `state_of`, where all states were read before."""
    own = states.get(wheel.filename, State())
    return own if wheel.source is None else own.with_source(states.get(wheel.source, State()))


def copies_of(store: Store, project: str, wheels: Collection[str]) -> list[Record]:
    """The records of all labelled copies of a project's wheels, of removed ones too."""
    key = pages.json_key(naming.VARIANTS, project)
    found = store.get(key)
    copies = [] if found is None else [file for file in pages.parse_page(found.data, key).ever if file.source in wheels]
    return [read_record(store, file.filename) for file in copies]


def groups_of(record: Record, state: State) -> tuple[str, ...]:
    """Where a wheel is listed: where it was published, and where it was promoted to."""
    return tuple(dict.fromkeys((*record.groups, *state.groups)))


def read_record(store: Store, filename: str) -> Record:
    """The record of a wheel; UsageError if it is not in the index."""
    try:
        naming.parse_wheel_name(filename)
    except ValueError as error:
        raise UsageError(str(error)) from error
    found = store.get(record_key(filename))
    if found is None:
        raise UsageError(f"{filename} is not in the index", hint="`farm index check` and catalog.json list what is")
    return parse_record(found.data, record_key(filename))


def read_listed(store: Store, filename: str) -> tuple[Record, State]:
    """The record and state of a wheel that is on the pages of its groups; UsageError if it is not, or was removed."""
    record = read_record(store, filename)
    state = state_of(store, record)
    if state.removed is not None:
        raise UsageError(f"{filename} was removed: {state.removed}")
    # The record comes before the page: between the two a publish is under way, or was killed.
    for group in record.groups:
        key = pages.json_key(group, record.project)
        page = store.get(key)
        if page is None or filename not in pages.parse_page(page.data, key).entries:
            raise UsageError(
                f"{filename} is claimed and not yet listed in {group}: its publish did not finish",
                hint="publish it again, or run `farm index reconcile`",
            )
    return record, state


def add_event(
    store: Store,
    target: str,
    kind: Kind,
    reason: str,
    time: datetime,
    *,
    group: str | None = None,
    mirrors: tuple[str, ...] | None = None,
    unless: Callable[[State], bool] = lambda _state: False,
) -> State:
    """The state with the new event; without one if that is the state already, or `unless` says so of it.

    Raises:
        UsageError: The reason is not a short line of text, or a mirror not a URL.
    """
    events = read_events(store, target)
    while len(events) < MAX_EVENTS:
        number = len(events) + 1
        try:
            event = Event(
                number=number,
                kind=kind,
                target=target,
                reason=reason,
                time=time.isoformat(),
                group=group,
                mirrors=mirrors,
            )
        except ValidationError as error:
            if error.errors()[0]["loc"][0] == "mirrors":
                raise UsageError(
                    f"mirrors must be at most {MAX_MIRRORS} addresses of indexes, such as https://mirror.example.org"
                ) from error
            raise UsageError("the reason must be one line of at most 500 characters") from error
        now, after = fold(events), fold([*events, event])
        # The event would change nothing but the count; nothing comes after `remove`.
        if after == now._replace(number=number) or now.removed is not None or unless(now):
            return now
        key = event_key(target, number)
        # The number is a claim: of two writers one gets it, the other reads that event and decides anew.
        if store.create(key, event.render(), content_type="application/json"):
            return after
        events.append(_parse(_there(store, key).data, key, target, number))
    raise UsageError(f"{target} has {MAX_EVENTS} events: something adds them in a loop")


def bring_events(store: Store, target: str, theirs: Sequence[Event]) -> None:
    """Appends what was said in another index, in its order, but for what was brought before; nothing after a removal.

    What an event says, with its time, tells it from others: its number may be another here.

    Raises:
        UsageError: There would be too many events.
    """
    own = read_events(store, target)
    known = {_said(event) for event in own}
    removed = fold(own).removed is not None
    for event in theirs:
        # Another may be copying, or say something, at the same time: the number is a claim.
        while not removed and _said(event) not in known:
            number = len(own) + 1
            if number > MAX_EVENTS:
                raise UsageError(f"{target} has {MAX_EVENTS} events: something adds them in a loop")
            key, ours = event_key(target, number), event.model_copy(update={"number": number})
            if not store.create(key, ours.render(), content_type="application/json"):
                ours = _parse(_there(store, key).data, key, target, number)
            own.append(ours)
            known.add(_said(ours))
            removed = ours.kind == "remove"


def _said(event: Event) -> Event:
    return event.model_copy(update={"number": 1})


def _there(store: Store, key: str) -> Stored:
    """What holds a key that could not be created: somebody else's, or ours with the answer lost."""
    stored = store.get(key)
    if stored is None:
        raise InfrastructureError(
            f"{store.url(key)} was refused as existing and cannot be read: the store contradicts itself"
        )
    return stored


def list_wheels(
    listing: Listing,
    records: Sequence[Record],
    group: str,
    states: Mapping[str, State] | None = None,
    *,
    look: Look | None = None,
) -> Listed:
    """Lists wheels of one project in a group as the events about them and it say; takes those off that were removed.

    Args:
        listing: The pages.
        records: Of the wheels.
        group: Where.
        states: By file name, after the events; a wheel that is published here, about which there are none, has none.
        look: What `listing.look` saw.

    Raises:
        PublishRefusedError: Somebody else removed one, or one cannot be on this page. None is listed then.
    """
    store, project = listing.store, records[0].project
    states = states or {}
    files = {record.filename: record.file() for record in records}
    gone = {name: file for name, file in files.items() if states.get(name, State()).removed is not None}
    here = {name: file for name, file in files.items() if name not in gone}
    elsewhere = any(project in listing.known.listed(other) for other in listing.known.groups if other != group)
    first = False

    def change(page: ProjectPage | None) -> ProjectPage:
        nonlocal first
        # A page that is new shows none of what was said about the project in other groups.
        first = page is None
        if gone:
            page = pages.without(page or pages.empty(project), gone)
            if not here:
                return page
        check_place(page, project, *here)
        own = {project: read_state(store, project)} if first and elsewhere else {}
        return with_states(pages.with_files(page, project, *here.values()), group, {**own, **states})

    done = listing.change(group, project, change, adding=None if states else files.values(), look=look)
    if first and (now := read_state(store, project)).number:
        # Again, for what was said while the page was not there; the catalogue may lack another group that has one.
        late = show_project(listing, group, project, now)
        return Listed(changed=True, pages={**done.pages, **late.pages})
    return done


def show_project(listing: Listing, group: str, project: str, state: State) -> Listed:
    """Shows what was said about a project on its page of one group."""

    def change(page: ProjectPage | None) -> ProjectPage:
        assert page is not None, "pages are never deleted"
        return with_states(page, group, {project: state})

    return listing.change(group, project, change)


def alternate_locations(group: str, project: str, state: State) -> tuple[str, ...] | None:
    """The project's page of a group in each mirror."""
    page = pages.html_key(group, project).removesuffix("index.html")
    return tuple(f"{root}/{page}" for root in state.mirrors) or None


def with_states(page: ProjectPage, group: str, states: Mapping[str, State]) -> ProjectPage:
    """A group's page as it is after the events about its wheels and itself, by target; the same if it shows them all.

    One pass, since a project may have thousands of wheels.
    """
    gone = {name: file for name, file in page.entries.items() if states.get(name, State()).removed is not None}
    if gone:
        page = pages.without(page, gone)
    changed = {}
    for name, file in page.entries.items():
        state = states.get(name)
        # A page notes the last event that it shows, so a slow writer never takes a newer one back.
        if state is not None and (file.event or 0) < state.number:
            shows = {"yanked": state.yanked, "quarantined": state.quarantined, "event": state.number}
            changed[name] = file.model_copy(update=shows)
    own = states.get(page.name, State())
    if (page.meta.event or 0) >= own.number:
        return pages.with_changes(page, changed)
    reason = own.quarantined
    status = pages.Status(status="active") if reason is None else pages.Status(status="quarantined", reason=reason)
    page, elsewhere = pages.with_changes(page, changed), alternate_locations(group, page.name, own)
    return pages.with_changes(page, {}, status=status, event=own.number, alternate_locations=elsewhere)
