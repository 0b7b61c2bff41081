"""Walks the index like a client and reports every promise that is not kept.

Reads pages with a parser of its own, follows every link, and hashes every wheel once.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin

from farm.errors import UsageError
from farm.index import pages
from farm.index.records import Record, parse_record, record_key
from farm.index.stores import Stat, Store, check_key

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


def check(store: Store) -> list[Problem]:
    """Every problem of the index; an empty list means that all promises are kept.

    Pages are read one after another: a publish that runs meanwhile may show up as a problem.

    Raises:
        InfrastructureError: The store failed, so nothing can be said.
    """
    return list(_Walk(store).problems())


@dataclass(frozen=True)
class _Anchor:
    href: str
    text: str
    attributes: dict[str, str | None]


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Anchor] = []
        self._open: dict[str, str | None] | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._open, self._text = dict(attrs), ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "a" and self._open is not None:
            self.found.append(_Anchor(self._open.get("href") or "", self._text, self._open))
            self._open = None


class _Walk:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen: dict[str, Stat | None] = {}

    def problems(self) -> Iterator[Problem]:
        keys = set(self.store.list("whl/"))
        groups = {match[1] for key in keys if (match := re.match(r"whl/([^/]+)/(?:simple/|v1-json/|links)", key))}
        for group in sorted(groups):
            yield from self._group(group, keys)
        for key in sorted(self.store.list("records/")):
            yield from _guarded(key, self._record(key))

    def _group(self, group: str, keys: set[str]) -> Iterator[Problem]:
        prefix = f"whl/{group}/"
        names = {
            match[2]
            for key in keys
            if (match := re.fullmatch(re.escape(prefix) + r"(simple|v1-json)/([^/]+)/index\.\w+", key))
        }
        listed: dict[str, pages.ProjectPage] = {}
        for name in sorted(names):
            key = pages.json_key(group, name)
            try:
                found = self.store.get(key)
                page = None if found is None else pages.parse_page(found.data, key)
            except pages.ForeignObjectError as error:
                yield Problem(key, str(error), broken=True)
                continue
            if page is None:
                yield Problem(pages.html_key(group, name), "has no JSON page beside it", broken=True)
                continue
            listed[name] = page
            yield from _guarded(key, self._json(key, group, name, page))
            yield from _guarded(key, self._html(group, page))
        yield from _guarded(prefix, self._links(group, listed))
        yield from self._root(group, set(listed), keys)

    def _json(self, key: str, group: str, name: str, page: pages.ProjectPage) -> Iterator[Problem]:
        if page.name != name:
            yield Problem(key, f"is the page of {page.name}", broken=True)
        versions = {str(pages.parse_wheel_name(file.filename)[1]) for file in page.files}
        if set(page.versions) != versions or len({file.filename for file in page.files}) != len(page.files):
            yield Problem(key, "lists other versions than those of its files, or a file twice", broken=True)
        for file in page.files:
            metadata = file.core_metadata.sha256
            yield from self._target(key, file.url, file.hashes.sha256, file.size, metadata)
            found = self.store.get(record_key(file.filename))
            if found is None:
                yield Problem(key, f"{file.filename} has no record", broken=True)
                continue
            record = parse_record(found.data, record_key(file.filename))
            if record.file() != file.model_copy(update={"yanked": False}) or group not in record.groups:
                yield Problem(key, f"{file.filename} is not as its record says", broken=True)

    def _html(self, group: str, page: pages.ProjectPage) -> Iterator[Problem]:
        key = pages.html_key(group, page.name)
        found = self.store.get(key)
        if found is None:
            yield Problem(key, "is not there yet", broken=False)
            return
        yield from self._anchors(key, found.data)
        generation = pages.generation_of(found.data, key)
        if generation < page.generation:
            yield Problem(key, f"shows generation {generation} of {page.generation}", broken=False)
        elif found.data != pages.project_html(page):
            yield Problem(key, "shows other files than the JSON page", broken=True)

    def _links(self, group: str, listed: dict[str, pages.ProjectPage]) -> Iterator[Problem]:
        key = pages.links_key(group)
        found = self.store.get(key)
        sections = {} if found is None else pages.parse_links(found.data, key)
        if found is not None:
            yield from self._anchors(key, found.data)
        for name in sorted(sections.keys() | listed.keys()):
            page, section = listed.get(name), sections.get(name)
            if page is None:
                yield Problem(key, f"lists {name}, which has no JSON page", broken=True)
            elif section is None or section.generation < page.generation:
                yield Problem(key, f"does not show generation {page.generation} of {name} yet", broken=False)
            elif section != pages.links_section(page):
                yield Problem(key, f"shows other files of {name} than its JSON page", broken=True)

    def _root(self, group: str, listed: set[str], keys: set[str]) -> Iterator[Problem]:
        key = pages.root_key(group)
        found = self.store.get(key)
        shown = set()
        for anchor in [] if found is None else _parse(found.data):
            target = _resolve(key, f"{anchor.href}index.html")
            name = anchor.text
            shown.add(name)
            if target != pages.html_key(group, name) or target not in keys:
                yield Problem(key, f"leads to {anchor.href!r}, which is not there", broken=True)
        for name in sorted(listed - shown):
            yield Problem(key, f"does not list {name} yet", broken=False)

    def _record(self, key: str) -> Iterator[Problem]:
        found = self.store.get(key)
        if found is None:
            yield Problem(key, "is listed by the store and cannot be read", broken=True)
            return
        record = parse_record(found.data, key)
        if key != record_key(record.filename):
            yield Problem(key, f"is the record of {record.filename}", broken=True)
        for group in record.groups:
            if not self._is_listed(record, group):
                yield Problem(key, f"is claimed and not yet listed in {group}", broken=False)

    def _is_listed(self, record: Record, group: str) -> bool:
        key = pages.json_key(group, record.project)
        found = self.store.get(key)
        page = None if found is None else pages.parse_page(found.data, key)
        return page is not None and any(file.filename == record.filename for file in page.files)

    def _anchors(self, key: str, html: bytes) -> Iterator[Problem]:
        for anchor in _parse(html):
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
            if self.store.stat(key) is not None:
                digest, size = hashlib.sha256(), 0
                for chunk in self.store.chunks(key):
                    digest.update(chunk)
                    size += len(chunk)
                self.seen[key] = Stat(size, digest.hexdigest())
        return self.seen[key]


def _guarded(key: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """An object that cannot be read as ours is one more problem, not the end of the walk."""
    try:
        yield from problems
    except pages.ForeignObjectError as error:
        yield Problem(key, str(error), broken=True)


def _parse(html: bytes) -> list[_Anchor]:
    parser = _Anchors()
    parser.feed(html.decode(errors="replace"))
    parser.close()
    return parser.found


def _resolve(key: str, href: str) -> str | None:
    """The key that a client asks for when it follows `href` from `key`; None when that is elsewhere."""
    url = urljoin(_BASE + key, href)
    return unquote(url.removeprefix(_BASE)) if url.startswith(_BASE) else None
