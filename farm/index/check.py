"""Checking a whole index: what reconcile would change, and whether files have their bytes.

The index is listed once and each object is read once, many at a time. Reconcile then runs over a
store that only notes what would be written: whatever would change is a problem.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

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
from farm.index.page_writer import parse_names
from farm.index.pages import (
    Catalogue,
    File,
    ProjectPage,
    parse_catalogue,
    parse_page,
    read_catalogue,
)
from farm.index.reconcile import Rebuild, orphans_of
from farm.index.records import (
    READERS,
    ForeignObjectError,
    State,
    Wheel,
    fold,
    parse_record,
    read_events,
)
from farm.index.signatures import expiring
from farm.index.stores import Store, Stored, data_of, each_answer, object_sha256

HASHERS = 4
"""Wheels that are read at the same time."""


@dataclass(frozen=True)
class Problem:
    """A promise that is not kept.

    Attributes:
        key: The object that makes it.
        what: What is wrong.
        broken: A client can trip over it. Else a publish did not finish: running it again completes
            it, and until then clients see the state before.
    """

    key: str
    what: str
    broken: bool


def check(store: Store, *, now: datetime | None = None) -> list[Problem]:
    """Find every problem of the index; an empty list means that all promises are kept.

    A publish that runs meanwhile may show up as a problem. Signatures are not verified here
    (`farm.index.signatures`), but those that expire soon are named.

    Args:
        store: The index.
        now: The time for the expiry of signatures; None for the clock's.
    """
    problems = list(_Walk(store).problems())
    for key, problem, has_ended in expiring(store, now or datetime.now(UTC)):
        problems.append(Problem(key, problem, broken=has_ended))
    return problems


class Trial:
    """A store that notes what would be written, and writes nothing."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.noted: dict[str, bytes] = {}
        self.discarded: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def get(self, key: str) -> Stored | None:
        if key in self.noted:
            return Stored(self.noted[key], "")
        stored: Stored | None = self.store.get(key)
        return stored

    def create(self, key: str, data: bytes | Path, **_: object) -> bool:
        return self.get(key) is None and self.replace(key, data)

    def replace(self, key: str, data: bytes | Path, *_: object, **__: object) -> bool:
        assert isinstance(data, bytes), "pages alone are written here"
        self.noted[key] = data
        return True

    def discard(self, key: str) -> None:
        self.discarded.append(key)


class _Snapshot:
    """A store as it was listed: each object is read once, and what was not there is not there."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.present = frozenset(store.list(""))
        self._objects: dict[str, Stored | None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def read_ahead(self, keys: Iterable[str]) -> None:
        """Read objects, many at a time."""
        unread_keys = sorted(set(keys) & self.present - self._objects.keys())
        for key, stored in each_answer(self.store.get, unread_keys, READERS):
            self._objects[key] = stored

    def get(self, key: str) -> Stored | None:
        if key not in self.present:
            return None
        if key not in self._objects:
            self._objects[key] = self.store.get(key)
        return self._objects[key]


class _Walk:
    def __init__(self, store: Store) -> None:
        self.store: Any = _Snapshot(store)
        self.present: frozenset[str] = self.store.present
        self.states: dict[str, State] = {}
        self.wheels: dict[str, Wheel] = {}
        self.pages: dict[tuple[str, str], ProjectPage] = {}
        self.promised: dict[str, list[tuple[str, str]]] = defaultdict(list)
        """For each file, the pages that list it and the hashes that they state."""
        self.catalogue = Catalogue()
        self.groups = set[str]()

    def problems(self) -> Iterator[Problem]:
        files = ("whl/files/", "whl/variant/files/")
        keys = sorted(key for key in self.present if not key.startswith(files))
        self.store.read_ahead(keys)
        # Records and events first: what pages must show follows from them.
        for target, event_keys in sorted(self._event_keys().items()):
            yield from _guarded(f"events/{target}", self._events(target, event_keys))
        for key in keys:
            if key.startswith("records/"):
                yield from _guarded(key, self._record(key))
        for key in keys:
            place = json_page_of(key)
            if place is not None:
                yield from _guarded(key, self._page(key, place))
        yield from self._files()
        yield from _guarded(CATALOGUE, self._catalogue())
        yield from self._differences()

    def _event_keys(self) -> dict[str, set[str]]:
        keys: dict[str, set[str]] = defaultdict(set)
        for key in self.present:
            if key.startswith("events/"):
                keys[key.split("/")[1]].add(key)
        return keys

    def _events(self, target: str, keys: set[str]) -> Iterator[Problem]:
        events = read_events(self.store, target)
        self.states[target] = fold(events)
        following = {event_key(target, event.number) for event in events}
        for key in sorted(keys - following):
            yield Problem(key, "is an event that does not follow on the one before", broken=True)

    def _record(self, key: str) -> Iterator[Problem]:
        stored = self.store.get(key)
        if stored is None:
            yield Problem(key, "is listed by the store but cannot be read", broken=True)
            return
        record = parse_record(stored.data, key)
        state = self.states.get(record.filename, State())
        self.wheels[record.filename] = Wheel(record, state)

    def _catalogue(self) -> Iterator[Problem]:
        self.catalogue = read_catalogue(self.store)
        self.groups = set(self.catalogue.groups)
        groups = self.store.get(GROUPS)
        if groups is not None:
            self.groups |= pages.parse_list(groups.data, GROUPS)
        yield from ()

    def _page(self, key: str, place: tuple[str, str]) -> Iterator[Problem]:
        """Note what a JSON page promises; a problem if it is another project's."""
        stored = self.store.get(key)
        if stored is None:  # removed since
            return
        page = parse_page(stored.data, key)
        if page.name != place[1]:
            yield Problem(key, f"is the page of {page.name}", broken=True)
            return
        self.pages[place] = page
        for file in page.files:
            metadata_sha256 = ""
            if file.core_metadata:
                metadata_sha256 = file.core_metadata.sha256
            self.promised[wheel_key(file.filename)].append((key, file.hashes.sha256))
            self.promised[metadata_key(file.filename)].append((key, metadata_sha256))

    def _files(self) -> Iterator[Problem]:
        """Hash each file that pages list, once."""
        keys = [key for key in self.promised if key in self.present]
        digest_of = partial(object_sha256, self.store.store)
        for key, digest in each_answer(digest_of, keys, HASHERS):
            if digest is None:  # removed since
                continue
            for page_key, promised in self.promised[key]:
                if digest != promised:
                    yield Problem(page_key, f"{key} has other bytes than promised", broken=True)

    def _differences(self) -> Iterator[Problem]:
        """What reconcile would change."""
        trial = Trial(self.store)
        rebuild = Rebuild(trial, self.wheels, self.present)
        rebuild.write_all()
        for key, data in trial.noted.items():
            before = data_of(self.store.get(key))
            yield from _guarded(key, self._difference(key, before, data))
        for key in trial.discarded:
            if key in self.present:
                yield Problem(key, "is a removed wheel's, and not deleted yet", broken=False)
        for name in sorted(rebuild.missing):
            yield Problem(record_key(name), "is claimed, and its files are not there", broken=False)
        problem = "is claimed, and its files have other bytes: it cannot be listed"
        for name in sorted(rebuild.differing):
            yield Problem(record_key(name), problem, broken=False)
        problem = (
            "has no record: publish this very wheel to adopt it, or delete it by farm index "
            "reconcile --take-back"
        )
        for key in orphans_of(self.wheels, self.present):
            yield Problem(key, problem, broken=False)

    def _difference(self, key: str, before: bytes | None, after: bytes) -> Iterator[Problem]:
        """The difference between a page as it is and as it must be."""
        if key == CATALOGUE:
            yield from self._catalogue_difference(before, after)
        elif before is None:
            yield Problem(key, "is not there", broken=self._is_promised(key))
        elif json_page_of(key):
            yield from self._page_difference(key, parse_page(before, key), parse_page(after, key))
        elif key.startswith("whl/") and key == html_key(*_place_of(key)):
            yield from self._html_difference(key, before, after)
        else:
            yield from _names_difference(key, parse_names(before, key), parse_names(after, key))

    def _catalogue_difference(self, before: bytes | None, after: bytes) -> Iterator[Problem]:
        groups = parse_catalogue(before).groups
        expected = parse_catalogue(after).groups
        for group in sorted({*groups, *expected}):
            before_names = set(groups.get(group, ()))
            names = set(expected.get(group, ()))
            yield from _names_difference(CATALOGUE, before_names, names, where=f" in {group}")

    def _is_promised(self, key: str) -> bool:
        """Does a list that clients read promise this page?"""
        # The catalogue and the list of groups come last: what they promise was there.
        parts = key.split("/")
        if len(parts) == 5:
            return _place_of(key)[1] in self.catalogue.groups.get(parts[1], ())
        if len(parts) > 2:
            return parts[1] in self.groups
        return bool(self.groups)

    def _html_difference(self, key: str, before: bytes, after: bytes) -> Iterator[Problem]:
        page = self.pages.get(_place_of(key))
        if page is not None and before == pages.project_html(page):
            return
        newest = pages.generation_of(after, key)
        if page is not None:
            newest = page.generation
        generation = pages.generation_of(before, key)
        if generation < newest:
            yield Problem(key, f"shows generation {generation} of {newest}", broken=False)
        else:
            yield Problem(key, "shows other files than its JSON page", broken=True)

    def _page_difference(
        self, key: str, before: ProjectPage, after: ProjectPage
    ) -> Iterator[Problem]:
        for name in sorted(after.entries.keys() - before.entries.keys()):
            yield Problem(key, f"does not list {name} yet", broken=False)
        for name, old in sorted(before.entries.items()):
            yield from self._entry_difference(key, name, old, after.entries.get(name))
        if before.entries == after.entries and before != after:
            yield Problem(
                key,
                "lists other versions or removed wheels than its files, records and events",
                broken=True,
            )

    def _entry_difference(
        self, key: str, name: str, before: File, after: File | None
    ) -> Iterator[Problem]:
        """The difference of a wheel that a page lists; `after`: as it must be, None: not at all."""
        wheel = self.wheels.get(name)
        if wheel is None:
            yield Problem(key, f"{name} has no record", broken=True)
            return
        if before == after:
            return
        number = wheel.state.number
        if (before.event or 0) < number:
            yield Problem(key, f"does not show event {number} about {name} yet", broken=False)
        elif after is None:
            yield Problem(key, f"{wheel_key(name)} or its .metadata is not there", broken=True)
        else:
            yield Problem(key, f"{name} is not as its record and events say", broken=True)


def _place_of(key: str) -> tuple[str, str]:
    """Group and project of a page below `whl/`."""
    parts = key.split("/")
    return parts[1], parts[-2]


def _names_difference(
    key: str, shown: set[str], names: set[str], where: str = ""
) -> Iterator[Problem]:
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
