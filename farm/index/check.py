"""Reads the whole index and reports every promise that is not kept.

Every page is compared with what follows from records, events and the JSON page; every wheel is hashed once.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from farm.base.errors import InfrastructureError
from farm.index import html, pages
from farm.index.layout import (
    CATALOGUE,
    GROUPS,
    HOME,
    RESERVED,
    event_key,
    html_key,
    json_key,
    links_key,
    metadata_key,
    record_key,
    wheel_key,
)
from farm.index.pages import Catalogue, File, ProjectPage, parse_catalogue, parse_page
from farm.index.publish import ProjectList, lists_of
from farm.index.records import ForeignObjectError, State, Wheel, fold, parse_record, read_events
from farm.index.sign import expiring
from farm.index.stores import Stat, Store

_PAGE = re.compile(r"whl/([^/]+)/(?:simple/|v1-json/|links)(?:([^/]+)/index\.\w+$)?")


@dataclass(frozen=True)
class Problem:
    """A promise not kept.

    Attributes:
        key: The object that makes the promise.
        what: What is wrong.
        broken: True when a client can trip over it. False when a publish did not finish: running it again
            completes it, and until then clients see the state before.
    """

    key: str
    what: str
    broken: bool


def check(store: Store, *, now: datetime | None = None) -> list[Problem]:
    """Every problem of the index; an empty list means that all promises are kept.

    Pages are read one after another: a publish that runs meanwhile may show up as a problem. Signatures are not
    verified here (`farm.index.verify`), but those that expire soon are named; `now` is the clock's for None.

    Raises:
        InfrastructureError: The store failed, so there is no result.
    """
    walk = _Walk(store)
    found = list(walk.problems())
    for key, what, late in expiring(store, now or datetime.now(UTC)):
        found.append(Problem(key, what, broken=late))
    return found


class _Walk:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen: dict[str, Stat | None] = {}
        self.states: dict[str, State] = {}
        self.wheels: dict[str, Wheel] = {}
        self.catalogue = Catalogue()
        self.listed: dict[str, dict[str, ProjectPage]] = defaultdict(dict)
        # One listing: asked for one by one, each object would cost a request.
        self.keys = frozenset(store.list(""))
        self.events: dict[str, set[str]] = defaultdict(set)
        for key in self.keys:
            if key.startswith("events/"):
                self.events[key.split("/")[1]].add(key)

    def problems(self) -> Iterator[Problem]:
        # Records and events first: what pages must show follows from them.
        for target in sorted(self.events):
            yield from _guarded(f"events/{target}", self._events(target))
        for key in sorted(key for key in self.keys if key.startswith("records/")):
            yield from _guarded(key, self._record(key))
        yield from _guarded(CATALOGUE, self._catalogue())
        groups: dict[str, set[str]] = defaultdict(set)
        for key in self.keys:
            if (match := _PAGE.match(key)) and match[1] not in RESERVED:
                groups[match[1]].update([match[2]] if match[2] else [])
        yield from _guarded(GROUPS, self._groups(set(groups)))
        for group, names in sorted(groups.items()):
            yield from self._group(group, names)
        for wheel in self.wheels.values():
            yield from self._claimed(wheel)

    def _events(self, target: str) -> Iterator[Problem]:
        events = read_events(self.store, target)
        self.states[target] = fold(events)
        own = {event_key(target, each.number) for each in events}
        for key in sorted(self.events[target] - own):
            yield Problem(key, "is an event that does not follow on the one before", broken=True)

    def _record(self, key: str) -> Iterator[Problem]:
        found = self.store.get(key)
        if found is None:
            yield Problem(key, "is listed by the store but cannot be read", broken=True)
            return
        record = parse_record(found.data, key)
        self.wheels[record.filename] = Wheel(record, self.states.get(record.filename, State()))

    def _claimed(self, wheel: Wheel) -> Iterator[Problem]:
        """Is a wheel on the pages that it is to be on, or nowhere if it was removed?"""
        if wheel.state.removed is not None:
            for each in sorted({wheel_key(wheel.name), metadata_key(wheel.name)} & self.keys):
                yield Problem(each, "is a removed wheel's, and not deleted yet", broken=False)
            return
        for group in wheel.groups:
            page = self.listed[group].get(wheel.record.project)
            if page is None or wheel.name not in {file.filename for file in page.files}:
                key = record_key(wheel.name)
                yield Problem(key, f"is claimed and not yet listed in {group}", broken=False)

    def _catalogue(self) -> Iterator[Problem]:
        found = self.store.get(CATALOGUE)
        self.catalogue = parse_catalogue(found.data if found else None)
        for group, sections in {**self.catalogue.groups, **self.catalogue.links}.items():
            for project in sections:
                if json_key(group, project) not in self.keys:
                    yield Problem(CATALOGUE, f"offers {project} in {group}, which has no page", broken=True)

    def _group(self, group: str, names: set[str]) -> Iterator[Problem]:
        listed = self.listed[group]
        for name in sorted(names):
            key = json_key(group, name)
            try:
                found = self.store.get(key)
                page = None if found is None else parse_page(found.data, key)
            except ForeignObjectError as error:
                yield Problem(key, str(error), broken=True)
                continue
            if page is None:
                yield Problem(html_key(group, name), "has no JSON page beside it", broken=True)
                continue
            listed[name] = page
            yield from _guarded(key, self._json(key, group, name, page))
            for channel in (None, *sorted(page.channels)):
                yield from _guarded(html_key(group, name, channel), self._html(group, page, channel))
        yield from _guarded(links_key(group), self._links(group, listed))
        yield from self._known(group, listed)
        for channel in (None, *sorted({channel for page in listed.values() for channel in page.channels})):
            on_it = {name for name, page in listed.items() if channel is None or channel in page.channels}
            for each in lists_of(group, channel):
                yield from _guarded(each.key, self._list(each, on_it))

    def _json(self, key: str, group: str, name: str, page: ProjectPage) -> Iterator[Problem]:
        if page.name != name:
            yield Problem(key, f"is the page of {page.name}", broken=True)
        if page.meta.links:
            for file in page.files:
                if not re.match(r"(https?|file)://", file.url or ""):
                    yield Problem(key, f"{file.filename} is a dependency, and its link is not absolute", broken=True)
            return
        if not pages.is_sound(page, page.name):
            yield Problem(key, "lists other versions than those of its files, or a file twice", broken=True)
        for file in page.files:
            yield from self._bytes(key, file)
            yield from self._entry(key, group, file)
        for file in page.removed or ():
            if self.states.get(file.filename, State()).removed is None:
                yield Problem(key, f"{file.filename} counts as removed, and no event says so", broken=True)

    def _entry(self, key: str, group: str, file: File) -> Iterator[Problem]:
        wheel = self.wheels.get(file.filename)
        if wheel is None:
            yield Problem(key, f"{file.filename} has no record", broken=True)
            return
        wanted, late = pages.entry(wheel), (file.event or 0) < wheel.state.number
        changing = {"yanked": file.yanked, "event": file.event} if late else {}
        plain = file.model_copy(update={"generation": None})
        if plain != wanted.model_copy(update=changing) or group not in wheel.groups:
            yield Problem(key, f"{file.filename} is not as its record and events say", broken=True)
        elif late:
            yield Problem(key, f"does not show event {wheel.state.number} about {file.filename} yet", broken=False)

    def _known(self, group: str, listed: dict[str, ProjectPage]) -> Iterator[Problem]:
        """Does the catalogue have the projects of a group and their channels?"""
        for page in listed.values():
            section = self.catalogue.links if page.meta.links else self.catalogue.groups
            channels = section.get(group, {}).get(page.name)
            if channels is None or set(channels) != page.channels:
                # What is missing is a publish that did not finish; what no page has contradicts it.
                late = page.channels >= set(channels or ())
                yield Problem(CATALOGUE, f"does not say of {page.name} in {group} what its page says", broken=not late)

    def _html(self, group: str, page: ProjectPage, channel: str | None) -> Iterator[Problem]:
        key = html_key(group, page.name, channel)
        found = self.store.get(key)
        if found is None:
            yield Problem(key, "is not there yet", broken=False)
            return
        generation, wanted = html.generation_of(found.data, key), page.generation_in(channel)
        if generation < wanted:
            yield Problem(key, f"shows generation {generation} of {wanted}", broken=False)
        elif found.data != html.project_html(page, channel):
            yield Problem(key, "shows other files than the JSON page", broken=True)

    def _links(self, group: str, listed: dict[str, ProjectPage]) -> Iterator[Problem]:
        key = links_key(group)
        found = self.store.get(key)
        sections = {} if found is None else html.parse_links(found.data, key)
        own = {name: page for name, page in listed.items() if not page.meta.links}
        for name in sorted(sections.keys() | own.keys()):
            page, section = own.get(name), sections.get(name)
            if page is None:
                yield Problem(key, f"lists {name}, which has no JSON page", broken=True)
            elif section is None or section.generation < page.generation:
                yield Problem(key, f"does not show generation {page.generation} of {name} yet", broken=False)
            elif section != html.links_section(page):
                yield Problem(key, f"shows other files of {name} than its JSON page", broken=True)

    def _list(self, each: ProjectList, names: set[str]) -> Iterator[Problem]:
        found = self.store.get(each.key)
        shown = set() if found is None else each.parse(found.data, each.key)
        for name in sorted(shown):
            if re.sub(r"(index\.\w+)$", rf"{name}/\1", each.key) not in self.keys:
                yield Problem(each.key, f"leads to {name!r}, which is not there", broken=True)
        for name in sorted(names - shown):
            yield Problem(each.key, f"does not list {name} yet", broken=False)

    def _groups(self, groups: set[str]) -> Iterator[Problem]:
        found = self.store.get(GROUPS)
        shown = set() if found is None else html.parse_list(found.data, GROUPS)
        for group in sorted(shown - groups):
            yield Problem(GROUPS, f"leads to {group!r}, which is not there", broken=True)
        for group in sorted(groups - shown):
            yield Problem(GROUPS, f"does not list {group} yet", broken=False)
        if groups and HOME not in self.keys:
            yield Problem(HOME, "is not there yet", broken=False)

    def _bytes(self, key: str, file: File) -> Iterator[Problem]:
        """Are the bytes of a wheel and of its metadata those that its page promises?"""
        metadata = file.core_metadata.sha256 if file.core_metadata else ""
        promised = ((wheel_key(file.filename), file.hashes.sha256), (metadata_key(file.filename), metadata))
        for each, digest in promised:
            stat = self._stat(each)
            if stat is None:
                yield Problem(key, f"{each} is not there", broken=True)
            elif stat.sha256 != digest:
                yield Problem(key, f"{each} has other bytes than promised", broken=True)

    def _stat(self, key: str) -> Stat | None:
        """Size and digest of the bytes that a client would get; read once."""
        if key not in self.seen:
            self.seen[key] = None
            # Not on the list may mean: stored since then.
            if key in self.keys or self.store.stat(key) is not None:
                self.seen[key] = self._read(key)
        return self.seen[key]

    def _read(self, key: str) -> Stat | None:
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in self.store.chunks(key):
                digest.update(chunk)
                size += len(chunk)
        except InfrastructureError:
            if self.store.stat(key) is None:  # it was removed since the keys were listed
                return None
            raise
        return Stat(size, digest.hexdigest())


def _guarded(key: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """An object that cannot be read as ours is one more problem, not the end of the walk."""
    try:
        yield from problems
    except ForeignObjectError as error:
        yield Problem(key, str(error), broken=True)
