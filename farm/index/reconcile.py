"""Rebuilds every page from the records and events, which never change: the way back from anything.

Costs a request for each record and event; publishing never needs it. Publishers may run meanwhile: pages change by
compare and swap here too, and a page only ever gains what records and events say.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from farm.index import html, naming, pages
from farm.index.answers import unpacked
from farm.index.catalogue import (
    CATALOGUE_KEY,
    CATALOGUE_TYPE,
    Catalogue,
    parse_catalogue,
)
from farm.index.events import (
    State,
    add_event,
    fold,
    groups_of,
    read_events,
    read_state,
    state_in,
    state_of,
    with_states,
)
from farm.index.keys import newest_root, online_keys, remember_online, start
from farm.index.lifecycle import delete_bytes
from farm.index.listing import HOME, HOME_KEY, ProjectList, html_place, lists_of, show_labels
from farm.index.pages import File, ForeignObjectError, ProjectPage
from farm.index.probe import prove
from farm.index.provenance import attest
from farm.index.records import Record, parse_record, record_key
from farm.index.roles import GROUPS_KEY, groups_html, may_sign, sign_everything
from farm.index.signing import Signer
from farm.index.stores import MAX_GET, Store
from farm.index.swap import swap

READERS = 16
"""Records are small and many, and each costs a round trip."""

_T = TypeVar("_T")
_Pages = Mapping[str, ProjectPage]


class Reconciled(NamedTuple):
    """What was done: pages that were written, wheels without their bytes (left out), attestations that were added."""

    written: tuple[str, ...]
    missing: tuple[str, ...]
    attested: int


def reconcile(store: Store, signer: Signer | None = None) -> Reconciled:
    """Makes every page what records and events say, and signs everything again when there is a key.

    A page that is none of ours is written over: its content follows from the records.

    Raises:
        ForeignObjectError: A record or event is not ours: nothing follows from it.
        InfrastructureError: The store failed; run it again.
    """
    prove(store)
    # One listing for all: what comes later is a publisher's, and each page is looked at again before it is written.
    present = frozenset(store.list(""))
    with ThreadPoolExecutor(READERS) as pool:
        records = list(pool.map(lambda key: _record(store, key), _below(present, "records/")))
        targets = sorted({key.split("/")[1] for key in _below(present, "events/")})
        states = dict(zip(targets, pool.map(lambda target: fold(read_events(store, target)), targets), strict=True))
    removed = {each.filename for each in records if state_in(states, each).removed is not None}
    missing = [each.filename for each in records if not _files(each) <= present and each.filename not in removed]
    attested = 0
    if signer is not None:  # first, since it refuses another key, and a record that somebody changed
        _may_sign(store, signer)
        unsound = {*missing, *removed}
        sound = (each for each in records if each.filename not in unsound)
        attested = sum(attest(store, record, signer) for record in sound)
    listed: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        for group in groups_of(record, states.get(record.filename, State())):
            listed[group, record.project].append(record)
    writer = _Writer(store, [], frozenset(missing))
    groups: dict[str, dict[str, ProjectPage]] = defaultdict(dict)
    # Copies last: a wheel that is found to be lost takes its copies with it.
    for (group, project), theirs in sorted(listed.items(), key=lambda each: (each[0][0] == naming.VARIANTS, each[0])):
        groups[group][project] = writer.page(group, project, theirs, states)
    # Projects of which no record is left: their pages stay, empty, so that installers get no 404 in place of an answer.
    # Those too of which there is no more than an HTML page: an older farm kept no other in whl/variant/.
    for key in _below(present, "whl/"):
        parts = key.split("/")
        if len(parts) != 5 or parts[3] in groups.get(parts[1], {}):
            continue
        _, group, kind, project, _ = parts
        page = writer.now(group, project) if kind == "v1-json" else None
        alone = kind == "simple" and pages.json_key(group, project) not in present
        if page is not None and page.name == project and page.meta.links:
            groups[group][project] = page
        elif (page is not None and page.name == project) or (alone and writer.shown(key)):
            groups[group][project] = writer.page(group, project, [], states)
    for group, projects in sorted(groups.items()):
        writer.derived(group, projects)
    writer.groups({group for group, projects in groups.items() if projects})
    writer.catalogue(groups)
    for record in records:
        # A removal that was killed before its bytes went is finished here; the copies of a lost wheel go as well.
        if state_in(states, record).removed is not None and _files(record) & present:
            delete_bytes(store, record.filename)
    if signer is not None:
        # Last: signatures cover the pages as they are now.
        sign_everything(store, signer)
    return Reconciled(tuple(writer.written), tuple(missing), attested)


def _may_sign(store: Store, signer: Signer) -> None:
    start(store, signer)
    with contextlib.suppress(ForeignObjectError):  # a damaged catalogue is written anew later
        remember_online(store)
    root = newest_root(store)
    keys = tuple(online_keys(root.signed)) if root else ()
    may_sign(Catalogue(keys=keys), signer)


def _files(record: Record) -> set[str]:
    return {pages.wheel_key(record.filename), pages.metadata_key(record.filename)}


def _below(keys: Iterable[str], prefix: str) -> list[str]:
    return sorted(key for key in keys if key.startswith(prefix))


def _record(store: Store, key: str) -> Record:
    found = store.get(key)
    if found is None:
        raise ForeignObjectError(f"{key} is listed by the store but cannot be read")
    return parse_record(found.data, key)


def _ours(store: Store, key: str, parse: Callable[[bytes], _T]) -> _T | None:
    """What is there, or None for nothing and for what is not of our making."""
    found = store.get(key)
    return None if found is None else _parsed(found.data, parse)


def _parsed(data: bytes | None, parse: Callable[[bytes], _T]) -> _T | None:
    try:
        return None if data is None else parse(_plain(data))
    except ForeignObjectError:
        return None


def _plain(data: bytes) -> bytes:
    """A copy of a bucket that something else made may hold packed pages, of which nothing says so."""
    return unpacked("", data, MAX_GET) if data.startswith(pages.GZIP) else data


class _Writer(NamedTuple):
    """Writes what differs, and keeps what a publisher wrote meanwhile."""

    store: Store
    written: list[str]
    missing: frozenset[str]

    def swap(self, key: str, change: Callable[[bytes | None], bytes], content_type: str) -> bytes:
        def unless_same(old: bytes | None) -> bytes | None:
            new = change(old)
            return None if new == old else new

        done = swap(self.store, key, unless_same, content_type)
        if done.written:
            self.written.append(key)
        return done.data

    def page(self, group: str, project: str, records: list[Record], states: dict[str, State]) -> ProjectPage:
        """The JSON page of a project, with the events that it missed; `states` gets those that are added here."""
        key = pages.json_key(group, project)
        known = {each.filename: each.file() for each in records}

        def change(old: bytes | None) -> bytes:
            page = _parsed(old, lambda data: pages.parse_page(data, key))
            entries = {} if page is None else page.entries
            now = self.states_now(project, [*known.values(), *(page.ever if page else ())], page, states)
            lost = {name: file for name, file in entries.items() if name not in known and self.is_lost(name)}
            for file in lost.values():
                states[file.filename] = self.keep_name(group, project, file)
            gone = lost | {name: file for name, file in known.items() if now.get(name, State()).removed is not None}
            wanted = {name: file for name, file in known.items() if name not in gone and name not in self.missing}
            # On the page and not among our records: published since the listing, so its record is read now.
            meanwhile = {name: self.published(name) for name in entries if name not in known and name not in gone}
            files = wanted | {name: file for name, file in meanwhile.items() if file is not None}
            # A page that says the right things keeps its generation: nothing derived from it needs to be written.
            fits = entries.keys() - gone.keys() == files.keys() and all(
                _fits(file, files[name], now.get(name, State())) for name, file in entries.items() if name in files
            )
            if page is None or not fits or not pages.is_sound(page, project):
                ever = None if page is None else page.removed
                # Above every generation that a reader may have seen, so that no derived page takes itself for the newer
                # one.
                page = pages.rebuilt(project, files, after=self.highest(group, project, page))
                page = page.model_copy(update={"removed": ever})
            page = with_states(pages.without(page, gone), group, now)
            show_labels(self.store, group, page)
            return page.render()

        return pages.parse_page(self.swap(key, change, pages.JSON), key)

    def states_now(
        self, project: str, files: Iterable[File], page: ProjectPage | None, states: Mapping[str, State]
    ) -> dict[str, State]:
        """The states of a project and its wheels; read again where the page shows or removed more."""
        gone = set() if page is None else {file.filename for file in page.removed or ()}
        found = {project: states.get(project, State())}
        if page is not None and (page.meta.event or 0) > found[project].number:
            found[project] = read_state(self.store, project)
        for file in files:
            known = found[file.filename] = state_in(states, file)
            if (file.event or 0) > known.number or (file.filename in gone and known.removed is None):
                found[file.filename] = state_of(self.store, file)
        return found

    def is_lost(self, filename: str) -> bool:
        """Was a wheel on a page whose record and bytes somebody deleted by hand?"""
        return self.store.get(record_key(filename)) is None and self.store.stat(pages.wheel_key(filename)) is None

    def keep_name(self, group: str, project: str, file: File) -> State:
        """The record and the event that keep the name of such a wheel taken, from what its page says."""
        record = Record(
            filename=file.filename,
            project=project,
            version=str(naming.parse_wheel_name(file.filename)[1]),
            sha256=file.hashes.sha256,
            size=file.size or 0,
            metadata_sha256=(file.core_metadata or file.hashes).sha256,
            requires_python=file.requires_python,
            groups=(group,),
            channel=file.channel,
            upload_time=file.upload_time or datetime.now(UTC).isoformat(),
            provenance={},
            source=file.source,
            properties=file.properties,
        )
        if self.store.create(record_key(file.filename), record.render(), content_type="application/json"):
            self.written.append(record_key(file.filename))
        reason = "its record and its bytes were deleted by hand"
        return add_event(self.store, file.filename, "remove", reason, datetime.now(UTC))

    def published(self, filename: str) -> File | None:
        """The entry of a wheel whose record came after ours were read, if its bytes are there."""
        key = record_key(filename)
        record = _ours(self.store, key, lambda data: parse_record(data, key))
        return None if record is None or self.store.stat(pages.wheel_key(filename)) is None else record.file()

    def highest(self, group: str, project: str, page: ProjectPage | None) -> int:
        """The highest generation that any page of the project shows; 0 for none."""
        shown = [0 if page is None else page.generation]
        links = pages.links_key(group)
        shown.append(self.shown(pages.html_key(group, project)))
        sections = _ours(self.store, links, lambda data: html.parse_links(data, links)) or {}
        shown += [section.generation for name, section in sections.items() if name == project]
        return max(shown)

    def shown(self, key: str) -> int:
        """The generation that an HTML page shows; 0 where there is none of ours."""
        return _ours(self.store, key, lambda data: html.generation_of(data, key)) or 0

    def derived(self, group: str, projects: _Pages) -> None:
        """The HTML pages of a group, its flat page, and the lists of its projects."""
        by_channel: dict[str | None, set[str]] = defaultdict(set)
        for project, page in projects.items():
            for channel in (None, *sorted(page.channels)):
                by_channel[channel].add(project)
                self._html(html_place(group, project, channel), group, page, channel)
        own = {project: html.links_section(page) for project, page in projects.items() if not page.meta.links}
        links = pages.links_key(group)

        def new_links(old: bytes | None) -> bytes:
            shown = _parsed(old, lambda data: html.parse_links(data, links)) or {}
            sections = dict(own)
            for project in {name for name, section in shown.items() if own.get(name) != section}:
                page = self.now(group, project)
                if page is not None and not page.meta.links:
                    sections[project] = html.links_section(page)
            return _still_signed(html.links_html(group, sections), old, links)

        self.swap(links, new_links, pages.HTML)
        for channel, names in by_channel.items():
            for listed in lists_of(group, channel):
                self._list(listed, names, group, channel)

    def groups(self, groups: set[str]) -> None:
        """The list of groups, and the page of the index's root where there is none."""
        if groups and self.store.create(HOME_KEY, HOME, content_type=pages.HTML):
            self.written.append(HOME_KEY)

        def new(old: bytes | None) -> bytes:
            shown = _parsed(old, lambda data: html.parse_root(data, GROUPS_KEY)) or set()
            more = {group for group in shown - groups if self.store.get(pages.root_key(group))}
            return _still_signed(groups_html(groups | more), old, GROUPS_KEY)

        if groups:
            self.swap(GROUPS_KEY, new, pages.HTML)

    def _list(self, listed: ProjectList, names: set[str], group: str, channel: str | None) -> None:
        def new(old: bytes | None) -> bytes:
            shown = _parsed(old, listed.parse) or set()
            more = {name for name in shown - names if self.store.get(html_place(group, name, channel))}
            return listed.render(names | more)

        self.swap(listed.key, new, listed.content_type)

    def now(self, group: str, project: str) -> ProjectPage | None:
        """The JSON page as it is at this moment; a publisher may have been there since."""
        key = pages.json_key(group, project)
        found = self.store.get(key)
        page = None if found is None else _parsed(found.data, lambda data: pages.parse_page(data, key))
        if found and page and page.meta.links and _plain(found.data) != found.data:
            # It follows from nothing, so that nothing else here would write it anew.
            self.swap(key, lambda old: _plain(old or found.data), pages.JSON)
        return page

    def _html(self, key: str, group: str, page: ProjectPage, channel: str | None) -> None:
        def new(old: bytes | None) -> bytes:
            if old == (shown := html.project_html(page, channel)):
                return shown
            return html.project_html(self.now(group, page.name) or page, channel)

        self.swap(key, new, pages.HTML)

    def catalogue(self, groups: Mapping[str, _Pages]) -> None:
        def new(old: bytes | None) -> bytes:
            before = _parsed(old, parse_catalogue) or Catalogue()
            found: dict[bool, dict[str, dict[str, tuple[str, ...]]]] = {True: {}, False: {}}
            for group in sorted({*before.groups, *before.links, *groups}):
                own = groups.get(group, {})
                theirs = {**before.groups.get(group, {}), **before.links.get(group, {})}
                for name in sorted({*own, *theirs}):
                    page = own.get(name)
                    if page is None or (not page.meta.links and {*theirs.get(name, ())} != page.channels):
                        # Somebody published meanwhile, or it is gone.
                        page = self.now(group, name) or page
                    if page is not None:
                        kind = found[page.meta.links is True]
                        kind.setdefault(group, {})[name] = tuple(sorted(page.channels))
            return before.model_copy(update={"groups": found[False], "links": found[True]}).render()

        self.swap(CATALOGUE_KEY, new, CATALOGUE_TYPE)


def _still_signed(page: bytes, old: bytes | None, key: str) -> bytes:
    """The page with the signature that was on it, which covers it only if it did not change."""
    there = None if old is None else _parsed(old, lambda data: html.signature_of(data, key))
    return page if there is None else html.with_signature(page, there)


def _fits(file: File, wanted: File, state: State) -> bool:
    """Is the entry what the record says, and what the events say up to the one that it shows?"""
    if file.model_copy(update={**pages.LATER, "url": wanted.url}) != wanted or file.url not in {None, wanted.url}:
        return False
    if (file.event or 0) > state.number:  # of an event that there never was
        return False
    return (file.event or 0) < state.number or (file.yanked, file.quarantined) == (state.yanked, state.quarantined)
