"""Walks the index like a client and reports every promise that is not kept.

Reads pages with a parser of its own, follows every link, and hashes every wheel once.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote, urldefrag, urljoin

from farm.base.errors import InfrastructureError, UsageError
from farm.index import html, labels, naming, pages
from farm.index.anchors import anchors
from farm.index.catalogue import CATALOGUE_KEY, Catalogue, parse_catalogue
from farm.index.events import State, alternate_locations, event_key, fold, groups_of, read_events, state_in
from farm.index.keys import newest_root, root_key
from farm.index.listing import HOME_KEY, ProjectList, html_place, lists_of
from farm.index.records import Record, parse_record, record_key
from farm.index.roles import GROUPS_KEY, digests_of, expires_of
from farm.index.stores import Stat, Store, Stored, check_key

SIGNATURE_WARNING = timedelta(days=10)
"""How long before it expires a signature is reported: a weekly schedule failed once then."""

ROOT_WARNING = timedelta(days=60)
"""Likewise for the root: its key is offline, so a person has to act."""

# `.invalid` never resolves (RFC 2606): it only serves to resolve relative links.
_BASE = "http://index.invalid/"


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
    return list(_Walk(store, now or datetime.now(UTC)).problems())


class _Walk:
    def __init__(self, store: Store, now: datetime) -> None:
        self.store, self.now = store, now
        self.seen: dict[str, Stat | None] = {}
        self.states: dict[str, State] = {}
        self.catalogue: Catalogue | None = None
        self.keys: frozenset[str] = frozenset()
        self.entries: dict[tuple[str, str], frozenset[str]] = {}
        """The wheels on each project's page: a page is read once, however many records lead to it."""
        self.digests: dict[str, str] = {}
        """Of what was read."""
        self.signed: dict[str, str] = {}
        """What the signatures say of pages."""

    def _get(self, key: str) -> Stored | None:
        found = self.store.get(key)
        if found is not None:
            self.digests[key] = hashlib.sha256(found.data).hexdigest()
        return found

    def problems(self) -> Iterator[Problem]:
        # One listing: asked for one by one, each object would cost a request.
        keys = self.keys = frozenset(self.store.list("whl/"))
        # Events first: what pages must show follows from them.
        for target in sorted({key.split("/")[1] for key in self.store.list("events/")}):
            yield from _guarded(f"events/{target}", self._events(target))
        yield from _guarded(CATALOGUE_KEY, self._catalogue())
        # all keys are looked at once, not once for each group
        groups: dict[str, set[str]] = defaultdict(set)
        for key in keys:
            if match := re.match(r"whl/([^/]+)/(?:simple/|v1-json/|links)(?:([^/]+)/index\.\w+$)?", key):
                groups[match[1]].update([match[2]] if match[2] else [])
        yield from _guarded(root_key(1), self._root_expiry())
        yield from _guarded(GROUPS_KEY, self._groups(set(groups)))
        for group in sorted(groups):
            yield from self._group(group, groups[group])
        yield from self._unsigned()
        for key in sorted(self.store.list("records/")):
            yield from _guarded(key, self._record(key))

    def _events(self, target: str) -> Iterator[Problem]:
        events = read_events(self.store, target)
        self.states[target] = fold(events)
        further = set(self.store.list(f"events/{target}/")) - {event_key(target, e.number) for e in events}
        for key in sorted(further):
            yield Problem(key, "is an event that does not follow on the one before", broken=True)

    def _catalogue(self) -> Iterator[Problem]:
        found = self._get(CATALOGUE_KEY)
        # What the other checks see where the catalogue cannot be read: an empty one.
        self.catalogue = Catalogue()
        self.catalogue = parse_catalogue(found.data if found else None)
        for group, sections in self.catalogue.groups.items():
            for project in sections:
                if self._get(pages.json_key(group, project)) is None:
                    yield Problem(CATALOGUE_KEY, f"offers {project} in {group}, which has no page", broken=True)

    def _group(self, group: str, names: set[str]) -> Iterator[Problem]:
        prefix = f"whl/{group}/"
        listed: dict[str, pages.ProjectPage] = {}
        for name in sorted(names):
            key = pages.json_key(group, name)
            try:
                found = self._get(key)
                page = None if found is None else pages.parse_page(found.data, key)
            except pages.ForeignObjectError as error:
                yield Problem(key, str(error), broken=True)
                continue
            if page is None:
                yield Problem(pages.html_key(group, name), "has no JSON page beside it", broken=True)
                continue
            listed[name] = page
            self.entries[group, name] = frozenset(page.entries)
            yield from _guarded(key, self._json(key, group, name, page))
            yield from self._labels(group, page, found.data if found else b"")
            for channel in (None, *sorted(page.channels)):
                yield from _guarded(html_place(group, name, channel), self._html(group, page, channel))
            yield from self._offered(group, page)
        yield from _guarded(prefix, self._links(group, {n: p for n, p in listed.items() if not p.meta.links}))
        links = {n: tuple(sorted(p.channels)) for n, p in listed.items() if p.meta.links}
        if self.catalogue is not None and self.catalogue.links.get(group, {}) != links:
            yield Problem(CATALOGUE_KEY, f"does not list the pages of links in {group}", broken=False)
        yield from self._roots(group, listed)

    def _json(self, key: str, group: str, name: str, page: pages.ProjectPage) -> Iterator[Problem]:
        if page.name != name:
            yield Problem(key, f"is the page of {page.name}", broken=True)
        versions = {str(naming.parse_wheel_name(file.filename)[1]) for file in page.files}
        if set(page.versions) != versions or len(page.entries) != len(page.files) + len(page.withheld or ()):
            yield Problem(key, "lists other versions than those of its files, or a file twice", broken=True)
        if page.project_status.status == "quarantined" and page.files:
            yield Problem(key, "is quarantined and offers files", broken=True)
        for file in page.files:
            yield from self._file(key, page, file)
        yield from self._said(key, group, name, page)

    def _said(self, key: str, group: str, name: str, page: pages.ProjectPage) -> Iterator[Problem]:
        """Does a page show what was said of the project and its wheels?"""
        state = self.states.get(name, State())
        # Late, not wrong: an event is written before the pages that show it.
        if (page.meta.event or 0) < state.number:
            yield Problem(key, f"does not show event {state.number} about {name} yet", broken=False)
        elif state.number and page.project_status.reason != state.quarantined:
            yield Problem(key, "has another status than its events say", broken=True)
        elif state.number and page.alternate_locations != alternate_locations(group, name, state):
            yield Problem(key, "names other mirrors than its events say", broken=True)
        for file in page.removed or ():
            if state_in(self.states, file).removed is None:
                yield Problem(key, f"{file.filename} counts as removed, and no event says so", broken=True)
        for file in page.entries.values() if not page.meta.links else ():
            yield from self._entry(key, group, file)

    def _file(self, key: str, page: pages.ProjectPage, file: pages.File) -> Iterator[Problem]:
        if page.meta.links:
            if not re.match(r"(https?|file)://", file.url or ""):
                yield Problem(key, f"{file.filename} is a dependency, and its link is not absolute", broken=True)
            return
        metadata = file.core_metadata.sha256 if file.core_metadata else ""
        yield from self._target(key, file.url or "", file.hashes.sha256, file.size, metadata)

    def _entry(self, key: str, group: str, file: pages.File) -> Iterator[Problem]:
        found = self._get(record_key(file.filename))
        if found is None:
            yield Problem(key, f"{file.filename} has no record", broken=True)
            return
        record = parse_record(found.data, record_key(file.filename))
        state = state_in(self.states, file)
        wanted = record.file()
        plain = file.model_copy(update={**pages.LATER, "url": wanted.url})
        if wanted != plain or group not in groups_of(record, state):
            yield Problem(key, f"{file.filename} is not as its record says", broken=True)
        if (file.event or 0) < state.number:
            yield Problem(key, f"does not show event {state.number} about {file.filename} yet", broken=False)
        elif (file.yanked, file.quarantined, None) != state[1:4]:
            yield Problem(key, f"{file.filename} is yanked or quarantined otherwise than its events say", broken=True)

    def _offered(self, group: str, page: pages.ProjectPage) -> Iterator[Problem]:
        """Does the catalogue have the project and its channels?"""
        if page.meta.links or self.catalogue is None:
            return
        channels = self.catalogue.groups.get(group, {}).get(page.name)
        if channels is None or set(channels) != page.channels:
            # What is missing is a publish that did not finish; what no page has contradicts it.
            late = page.channels >= set(channels or ())
            yield Problem(CATALOGUE_KEY, f"does not say of {page.name} in {group} what its page says", broken=not late)

    def _labels(self, group: str, page: pages.ProjectPage, data: bytes) -> Iterator[Problem]:
        """Do installers learn what the labels of copies stand for?"""
        if page.labelled and page.render() != data:
            yield Problem(pages.json_key(group, page.name), "leads to other labels than its copies have", broken=True)
        for version, filename in page.labelled.items():
            found = self._get(key := pages.labels_key(group, page.name, filename))
            if found is None or not labels.has(found.data, page.labels(version)):
                yield Problem(key, f"does not have all labels of {page.name} {version}", broken=True)

    def _html(self, group: str, page: pages.ProjectPage, channel: str | None) -> Iterator[Problem]:
        key = html_place(group, page.name, channel)
        found = self._get(key)
        if found is None:
            yield Problem(key, "is not there yet", broken=False)
            return
        if not page.meta.links:
            yield from self._anchors(key, found.data)
        generation, wanted = html.generation_of(found.data, key), page.generation_in(channel)
        if generation < wanted:
            yield Problem(key, f"shows generation {generation} of {wanted}", broken=False)
        elif found.data != html.project_html(page, channel):
            yield Problem(key, "shows other files than the JSON page", broken=True)

    def _links(self, group: str, listed: dict[str, pages.ProjectPage]) -> Iterator[Problem]:
        key = pages.links_key(group)
        found = self._get(key)
        sections = {} if found is None else html.parse_links(found.data, key)
        if found is not None:
            yield from self._anchors(key, found.data)
            yield from self._expiry(key, found.data)
        for name in sorted(sections.keys() | listed.keys()):
            page, section = listed.get(name), sections.get(name)
            if page is None:
                yield Problem(key, f"lists {name}, which has no JSON page", broken=True)
            elif section is None or section.generation < page.generation:
                yield Problem(key, f"does not show generation {page.generation} of {name} yet", broken=False)
            elif section != html.links_section(page):
                yield Problem(key, f"shows other files of {name} than its JSON page", broken=True)

    def _roots(self, group: str, listed: dict[str, pages.ProjectPage]) -> Iterator[Problem]:
        yield from self._root(group, None, set(listed))
        for channel in sorted({channel for page in listed.values() for channel in page.channels}):
            yield from self._root(group, channel, {name for name, page in listed.items() if channel in page.channels})

    def _root(self, group: str, channel: str | None, names: set[str]) -> Iterator[Problem]:
        for each in lists_of(group, channel):
            yield from _guarded(each.key, self._list(each, names))

    def _list(self, listed: ProjectList, names: set[str]) -> Iterator[Problem]:
        found = self._get(listed.key)
        shown = set() if found is None else listed.parse(found.data)
        for name in sorted(shown):
            if re.sub(r"(index\.\w+)$", rf"{name}/\1", listed.key) not in self.keys:
                yield Problem(listed.key, f"leads to {name!r}, which is not there", broken=True)
        for name in sorted(names - shown):
            yield Problem(listed.key, f"does not list {name} yet", broken=False)

    def _groups(self, groups: set[str]) -> Iterator[Problem]:
        found = self._get(GROUPS_KEY)
        shown = set() if found is None else html.parse_root(found.data, GROUPS_KEY)
        for group in sorted(shown - groups):
            yield Problem(GROUPS_KEY, f"leads to {group!r}, which is not there", broken=True)
        for group in sorted(groups - shown):
            yield Problem(GROUPS_KEY, f"does not list {group} yet", broken=False)
        if found is not None:
            yield from self._expiry(GROUPS_KEY, found.data)
        if groups and self._get(HOME_KEY) is None:
            yield Problem(HOME_KEY, "is not there yet", broken=False)

    def _expiry(self, key: str, page: bytes) -> Iterator[Problem]:
        signature = html.signature_of(page, key)
        if signature is not None:
            yield from self._ends(key, expires_of(signature, key), SIGNATURE_WARNING, "farm index sign")
            self.signed |= {name: digest for name, digest in digests_of(signature).items() if name != key}

    def _unsigned(self) -> Iterator[Problem]:
        """Pages that somebody changed without the key: whoever verifies the index refuses them."""
        for key, digest in sorted(self.signed.items()):
            if self.digests.get(key, digest) != digest:
                yield Problem(
                    key, "was changed without a new signature: farm index reconcile, with the key", broken=False
                )

    def _root_expiry(self) -> Iterator[Problem]:
        root = newest_root(self.store)
        if root is not None:
            key, expires = root_key(root.signed.version), root.signed.expires.replace(tzinfo=UTC)
            yield from self._ends(key, expires, ROOT_WARNING, "farm index key renew")

    def _ends(self, key: str, expires: datetime, warning: timedelta, remedy: str) -> Iterator[Problem]:
        if expires < self.now + warning:
            late = expires < self.now
            yield Problem(key, f"its signature expire{'d' if late else 's'} {expires:%Y-%m-%d}: {remedy}", broken=late)

    def _record(self, key: str) -> Iterator[Problem]:
        found = self._get(key)
        if found is None:
            yield Problem(key, "is listed by the store but cannot be read", broken=True)
            return
        record = parse_record(found.data, key)
        if key != record_key(record.filename):
            yield Problem(key, f"is the record of {record.filename}", broken=True)
        state = state_in(self.states, record)
        if state.removed is not None:
            for each in {pages.wheel_key(record.filename), pages.metadata_key(record.filename)} & self.keys:
                yield Problem(each, "is a removed wheel's, and not deleted yet", broken=False)
            return
        for group in groups_of(record, state):
            if not self._is_listed(record, group):
                yield Problem(key, f"is claimed and not yet listed in {group}", broken=False)

    def _is_listed(self, record: Record, group: str) -> bool:
        if (group, record.project) not in self.entries:
            key = pages.json_key(group, record.project)
            found = self._get(key)
            page = None if found is None else pages.parse_page(found.data, key)
            self.entries[group, record.project] = frozenset(page.entries if page else ())
        return record.filename in self.entries[group, record.project]

    def _anchors(self, key: str, page: bytes) -> Iterator[Problem]:
        for anchor in anchors(page):
            if anchor.text.endswith("-variants.json"):  # no wheel: the labels of a version
                continue
            url, fragment = urldefrag(anchor.href)
            sha256 = fragment.removeprefix("sha256=")
            attribute = anchor.attributes.get("data-core-metadata") or ""
            metadata = attribute.removeprefix("sha256=")
            if unquote(url).rsplit("/", 1)[-1] != anchor.text:
                yield Problem(key, f"{anchor.text} leads to {url}", broken=True)
            yield from self._target(key, url, sha256, None, metadata)

    def _target(self, key: str, url: str, sha256: str, size: int | None, metadata: str) -> Iterator[Problem]:
        """Does a link lead to the bytes that it promises, and to their metadata?"""
        try:
            target = check_key(_resolve(key, url) or "")
        except UsageError:
            yield Problem(key, f"{url!r} leads out of the index", broken=True)
            return
        for each, digest, wanted in ((target, sha256, size), (f"{target}.metadata", metadata, None)):
            stat = self._stat(each)
            if stat is None:
                yield Problem(key, f"{each} is not there", broken=True)
            elif stat.sha256 != digest or wanted not in {None, stat.size}:
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


def _guarded(key: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """An object that cannot be read as ours is one more problem, not the end of the walk."""
    try:
        yield from problems
    except pages.ForeignObjectError as error:
        yield Problem(key, str(error), broken=True)


def _resolve(key: str, href: str) -> str | None:
    """The key that a client asks for when it follows `href` from `key`; None when that is elsewhere."""
    url = urljoin(_BASE + key, href)
    return unquote(url.removeprefix(_BASE)) if url.startswith(_BASE) else None
