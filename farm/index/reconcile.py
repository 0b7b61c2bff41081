"""Writes every page from the records and events, which never change: the way back from anything;
and checks them all.

Costs a request for each record and event; publishing never needs it. Publishers may run meanwhile:
pages change by compare and swap here too, and a page only ever gains what records and events say.
`check` runs the same over a store that only notes what would be written: whatever would change is a
problem. Besides, every wheel is hashed once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.index import pages
from farm.index.layout import (
    CATALOGUE,
    GROUPS,
    event_key,
    html_key,
    json_page_of,
    metadata_key,
    record_key,
    wheel_key,
)
from farm.index.page_writer import PageWriter, parse_names
from farm.index.pages import Catalogue, ProjectPage, parse_catalogue, parse_page
from farm.index.publish import check_store, delete_files
from farm.index.records import (
    ForeignObjectError,
    State,
    Wheel,
    fold,
    parse_record,
    read_all,
    read_events,
    read_state,
)
from farm.index.signatures import expiring
from farm.index.stores import Store, Stored


class Reconciled(NamedTuple):
    """Pages that were written, and wheels without their bytes, which are left out."""

    written: tuple[str, ...]
    missing: tuple[str, ...]


def reconcile(store: Store, *, take_back: bool = False) -> Reconciled:
    """Makes every page what records and events say; one that is none of ours is written over.

    `take_back`: also take off pages what no record or event says (any more): a yank, a removal, a
    wheel. Without it such pages are a PublishRefusedError, and nothing is changed.
    """
    # One listing for all: what comes later is a publisher's, and each page is looked at again
    # before it is written.
    present = frozenset(store.list(""))
    rebuild = Rebuild(store, read_all(store, present), present)
    lost = sorted(rebuild.taken_back())
    if lost and not take_back:
        raise PublishRefusedError(
            f"pages show what no record or event says any more: {'; '.join(lost)}",
            hint="restore records/ and events/ from a backup, or take it off the pages: reconcile "
            "--take-back",
        )
    check_store(store)
    return rebuild.all()


class Rebuild:
    """All pages anew; `missing`: wheels without their files, which are on no page."""

    def __init__(self, store: Store, wheels: dict[str, Wheel], present: frozenset[str]) -> None:
        self.store = store
        self.present = present
        self.wheels = wheels
        self.pages = PageWriter(store, exact=True)
        self.missing = {
            name
            for name, each in wheels.items()
            if each.state.removed is None and len(self._files(name)) < 2
        }
        self.places = sorted(place for key in present if (place := json_page_of(key)) is not None)

    def _files(self, name: str) -> set[str]:
        return {wheel_key(name), metadata_key(name)} & self.present

    def taken_back(self) -> Iterator[str]:
        """Statements of pages about wheels that no record or event backs."""
        for group, project in self.places:
            page = self.pages.page(group, project)
            for file in page.ever if page else ():
                wheel = self.wheels.get(file.filename)
                gone = page and file in (page.removed or ())
                if wheel is None and self.store.get(record_key(file.filename)) is None:
                    yield f"{file.filename}, which has no record"
                if wheel is None or (not gone and (file.event or 0) <= wheel.state.number):
                    continue
                if wheel.state.removed is not None:
                    state = wheel.state
                else:
                    state = read_state(self.store, file.filename)
                if gone and state.removed is None:
                    yield f"the removal of {file.filename}"
                elif (file.event or 0) > state.number:
                    seen = "not yanked" if file.yanked is False else f"yanked ({file.yanked})"
                    yield f"event {file.event} of {file.filename}, by which it is {seen}"

    def all(self) -> Reconciled:
        listed: dict[str, dict[str, list[Wheel]]] = defaultdict(lambda: defaultdict(list))
        for wheel in self.wheels.values():
            for group in wheel.groups:
                # Without its bytes a wheel is on no page.
                listed[group][wheel.record.project] += [] if wheel.name in self.missing else [wheel]
        for group, project in self.places:
            page = self.pages.page(group, project)
            if page is not None and page.name == project:
                # Of which no record is left: its page stays, empty, so that installers get no 404
                # as an answer.
                listed[group].setdefault(project, [])
        known = {group: sorted(projects) for group, projects in sorted(listed.items()) if projects}
        for group in known:
            self.pages.write(group, listed[group], keep=self._published_since)
        if known:
            self.pages.add_groups(set(known))
        if known or CATALOGUE in self.present:
            self._catalogue(known)
        for name, wheel in self.wheels.items():
            # A removal that was killed before its bytes went is finished here.
            if wheel.state.removed is not None and self._files(name):
                delete_files(self.store, name)
        return Reconciled(tuple(dict.fromkeys(self.pages.written)), tuple(sorted(self.missing)))

    def _published_since(self, _group: str, page: ProjectPage) -> Iterator[Wheel]:
        """The wheels of a page that were published since ours were read."""
        for name in page.entries:
            if name not in self.missing and (
                name in self.wheels or record_key(name) in self.present
            ):
                continue  # it is ours, or has a record that cannot be read
            found = self.store.get(record_key(name))
            if found is not None and all(
                self.store.stat(key) for key in (wheel_key(name), metadata_key(name))
            ):
                yield Wheel(
                    parse_record(found.data, record_key(name)), read_state(self.store, name)
                )

    def _catalogue(self, known: Mapping[str, Iterable[str]]) -> None:
        """The catalogue of what was written, and of what a publisher added meanwhile."""

        def change(old: bytes | None) -> bytes:
            before: Catalogue = self.pages.parsed(parse_catalogue, old) or Catalogue()
            made = before.model_copy(update={"groups": {}})
            for group in sorted({*before.groups, *known}):
                own = set(known.get(group, ()))
                since = {
                    one
                    for one in before.groups.get(group, ())
                    if one not in own and self.pages.page(group, one)
                }
                made = made.having(group, own | since) if own | since else made
            return made.render()

        self.pages.swap(CATALOGUE, change, pages.CATALOGUE_TYPE)


@dataclass(frozen=True)
class Problem:
    """A promise not kept, and the object that makes it.

    `broken`: a client can trip over it. Else a publish did not finish: running it again completes
    it, and until then clients see the state before.
    """

    key: str
    what: str
    broken: bool


def check(store: Store, *, now: datetime | None = None) -> list[Problem]:
    """Every problem of the index; an empty list means that all promises are kept.

    Pages are read one after another: a publish that runs meanwhile may show up as a problem.
    Signatures are not verified here (`farm.index.signatures`), but those that expire soon are
    named; `now` is the clock's for None.
    """
    ends = expiring(store, now or datetime.now(UTC))
    return [
        *_Walk(store).problems(),
        *(Problem(key, what, broken=late) for key, what, late in ends),
    ]


class Trial:
    """A store that notes what would be written, and writes nothing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.noted: dict[str, bytes] = {}
        self.discarded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, key: str) -> Stored | None:
        if key in self.noted:
            return Stored(self.noted[key], "")
        return self.store.get(key)

    def create(self, key: str, data: bytes | Path, **_: object) -> bool:
        return self.get(key) is None and self.replace(key, data)

    def replace(self, key: str, data: bytes | Path, *_: object, **__: object) -> bool:
        assert isinstance(data, bytes), "pages alone are written here"
        self.noted[key] = data
        return True

    def discard(self, key: str) -> None:
        self.discarded.append(key)


class _Walk:
    def __init__(self, store: Store) -> None:
        self.store = store
        # One listing: asked for one by one, each object would cost a request.
        self.present = frozenset(store.list(""))
        self.states: dict[str, State] = {}
        self.wheels: dict[str, Wheel] = {}
        self.pages: dict[tuple[str, str], ProjectPage] = {}
        self.catalogue = Catalogue()
        self.groups = set[str]()

    def problems(self) -> Iterator[Problem]:
        # Records and events first: what pages must show follows from them.
        events: dict[str, set[str]] = defaultdict(set)
        for key in self.present:
            if key.startswith("events/"):
                events[key.split("/")[1]].add(key)
        for target, keys in sorted(events.items()):
            yield from _guarded(f"events/{target}", self._events(target, keys))
        for key in sorted(key for key in self.present if key.startswith("records/")):
            yield from _guarded(key, self._record(key))
        for key in sorted(self.present):
            if (place := json_page_of(key)) is not None:
                yield from _guarded(key, self._stored(key, place))
        yield from _guarded(CATALOGUE, self._catalogue())
        trial = Trial(self.store)
        rebuild = Rebuild(trial, self.wheels, self.present)
        rebuild.all()
        for key, data in trial.noted.items():
            before = self.store.get(key)
            yield from _guarded(key, self._difference(key, before.data if before else None, data))
        for key in trial.discarded:
            if key in self.present:
                yield Problem(key, "is a removed wheel's, and not deleted yet", broken=False)
        for name in sorted(rebuild.missing):
            yield Problem(record_key(name), "is claimed, and its files are not there", broken=False)

    def _events(self, target: str, keys: set[str]) -> Iterator[Problem]:
        events = read_events(self.store, target)
        self.states[target] = fold(events)
        for key in sorted(keys - {event_key(target, each.number) for each in events}):
            yield Problem(key, "is an event that does not follow on the one before", broken=True)

    def _record(self, key: str) -> Iterator[Problem]:
        found = self.store.get(key)
        if found is None:
            yield Problem(key, "is listed by the store but cannot be read", broken=True)
            return
        record = parse_record(found.data, key)
        self.wheels[record.filename] = Wheel(record, self.states.get(record.filename, State()))

    def _catalogue(self) -> Iterator[Problem]:
        found = self.store.get(CATALOGUE)
        self.catalogue = parse_catalogue(found.data if found else None)
        self.groups = set(self.catalogue.groups)
        groups = self.store.get(GROUPS)
        self.groups |= pages.parse_list(groups.data, GROUPS) if groups else set()
        yield from ()

    def _stored(self, key: str, place: tuple[str, str]) -> Iterator[Problem]:
        """A JSON page as it is: another project's, or with wheels that have other bytes."""
        found = self.store.get(key)
        if found is None:  # removed since
            return
        page = parse_page(found.data, key)
        if page.name != place[1]:
            yield Problem(key, f"is the page of {page.name}", broken=True)
            return
        self.pages[place] = page
        for file in page.files:
            metadata = file.core_metadata.sha256 if file.core_metadata else ""
            promised = {
                wheel_key(file.filename): file.hashes.sha256,
                metadata_key(file.filename): metadata,
            }
            for each, digest in promised.items():
                if each in self.present and self._digest(each) not in {digest, None}:
                    yield Problem(key, f"{each} has other bytes than promised", broken=True)

    def _digest(self, key: str) -> str | None:
        """The sha256 of the bytes that a client would get; None where they were removed since."""
        digest = hashlib.sha256()
        try:
            for chunk in self.store.chunks(key):
                digest.update(chunk)
        except InfrastructureError:
            if self.store.stat(key) is None:
                return None
            raise
        return digest.hexdigest()

    def _difference(self, key: str, before: bytes | None, after: bytes) -> Iterator[Problem]:
        """The difference between a page as it is and as it must be."""
        parts = key.split("/")
        group = parts[1] if len(parts) > 2 else ""
        place = json_page_of(key) or (group, parts[-2] if group else "")
        if key == CATALOGUE:
            shown = parse_catalogue(before).groups
            wanted = parse_catalogue(after).groups
            for each in sorted({*shown, *wanted}):
                yield from _names(
                    key, {*shown.get(each, ())}, {*wanted.get(each, ())}, where=f" in {each}"
                )
        elif before is None:
            # The catalogue and the list of groups come last: what they promise was there.
            if len(parts) == 5:
                promised = place[1] in self.catalogue.groups.get(group, ())
            else:
                promised = group in self.groups if group else bool(self.groups)
            yield Problem(key, "is not there", broken=promised)
        elif json_page_of(key):
            yield from self._of_page(key, parse_page(before, key), parse_page(after, key))
        elif key == html_key(*place):
            page = self.pages.get(place)
            if page is None or before != pages.project_html(page):
                last = page.generation if page else pages.generation_of(after, key)
                generation = pages.generation_of(before, key)
                late = generation < last
                what = f"shows generation {generation} of {last}"
                yield Problem(
                    key, what if late else "shows other files than its JSON page", broken=not late
                )
        else:
            yield from _names(key, parse_names(before, key), parse_names(after, key))

    def _of_page(self, key: str, before: ProjectPage, after: ProjectPage) -> Iterator[Problem]:
        for name in sorted({*before.entries, *after.entries}):
            old = before.entries.get(name)
            new = after.entries.get(name)
            wheel = self.wheels.get(name)
            number = wheel.state.number if wheel else 0
            if old is None and new is not None:
                yield Problem(key, f"does not list {name} yet", broken=False)
            elif old is not None and wheel is None:
                yield Problem(key, f"{name} has no record", broken=True)
            elif old is not None and old != new and (old.event or 0) < number:
                yield Problem(key, f"does not show event {number} about {name} yet", broken=False)
            elif old is not None and new is None:
                yield Problem(key, f"{wheel_key(name)} or its .metadata is not there", broken=True)
            elif old != new:
                yield Problem(key, f"{name} is not as its record and events say", broken=True)
        if before.entries == after.entries and before != after:
            yield Problem(
                key,
                "lists other versions or removed wheels than its files, records and events",
                broken=True,
            )


def _names(key: str, shown: set[str], names: set[str], where: str = "") -> Iterator[Problem]:
    for name in sorted(shown - names):
        yield Problem(key, f"leads to {name!r}{where}, which is not there", broken=True)
    for name in sorted(names - shown):
        yield Problem(key, f"does not list {name}{where} yet", broken=False)


def _guarded(key: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """An object that cannot be read as ours is one more problem, not the end of the walk."""
    try:
        yield from problems
    except ForeignObjectError as error:
        yield Problem(key, str(error), broken=True)
