"""From a project's JSON page to everything that is derived from it.

HTML pages, `links.html`, catalogue and lists of projects follow the JSON page, each guarded by generations: a slow
writer never puts an older state over a newer one, and any later publish of the project repairs what a killed one
left behind. Most that there is to read can be guessed from the JSON page as it was, which spares requests: a rebuild
costs five here, a wheel of a new kind seven, the first wheel of a project eight; one more for a channel's root, and
one more for its list of projects.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from farm.index import html, pages
from farm.index.catalogue import CATALOGUE_KEY, CatalogueSection, parse_catalogue, section_of
from farm.index.pages import ProjectPage
from farm.index.stores import Store, Stored
from farm.index.swap import Guess, guessed, swap

CATALOGUE_TYPE = "application/json"


class Listed(NamedTuple):
    """What came of a change of a page.

    Attributes:
        changed: False when every page showed it already.
        pages: The pages that were looked at and their content now, for the signed snapshot.
    """

    changed: bool
    pages: Mapping[str, bytes]


_NOTHING = Listed(changed=False, pages={})


def change_page(
    store: Store,
    group: str,
    project: str,
    change: Callable[[ProjectPage | None], ProjectPage],
    *,
    channels: frozenset[str] | None = None,
    adds: bool = False,
) -> Listed:
    """Changes the JSON page of a project, and all pages that follow from it.

    Args:
        store: Where.
        group: Whose page.
        project: Which page.
        change: From the page (None: absent) to the new one; the same object leaves it as it is.
        channels: Whose roots show the change; None for all that the page knows.
        adds: `change` makes a page where there is none. A project that the flat page does not list is then taken
            for a new one, without a look.
    """
    key = pages.json_key(group, project)
    links = pages.links_key(group)
    flat = store.get(links)
    new = adds and (flat is None or project not in html.parse_links(flat.data, links))

    def changed(old: bytes | None) -> bytes | None:
        before = None if old is None else pages.parse_page(old, key)
        after = change(before)
        return None if after is before else after.render()

    done = swap(store, key, changed, pages.JSON, guess=Guess(None) if new else None)
    page = pages.parse_page(done.data, key)
    before = done.before if done.written else None
    listed = derive(store, group, page, before, channels, fresh=done.before is None, flat=Guess(flat))
    return Listed(done.written or listed.changed, {key: done.data, **listed.pages})


def derive(
    store: Store,
    group: str,
    page: ProjectPage,
    before: Stored | None = None,
    channels: frozenset[str] | None = None,
    *,
    fresh: bool = False,
    flat: Guess | None = None,
) -> Listed:
    """Brings all that follows from a page to at least its generation.

    Args:
        store: Where.
        group: Whose page.
        page: The JSON page.
        before: The JSON page as it was before we changed it: from it follows what the others show.
        channels: Whose roots; None for all.
        fresh: The page is new, so nothing was derived from it before.
        flat: The flat page of the group, where it was read already.
    """
    written: dict[str, bytes] = {}
    changed = False
    wanted = sorted(page.channels if channels is None else channels)
    old = None if before is None else pages.parse_page(before.data, "")
    for channel in (None, *wanted):
        key = html_place(group, page.name, channel)
        guess = _shown(store, before, old, channel) if before and old else Guess(None) if fresh else None
        done = swap(store, key, lambda text, c=channel, k=key: _html(text, page, c, k), pages.HTML, guess=guess)  # type: ignore[misc]
        written[key] = done.data
        changed = changed or done.written
    links = pages.links_key(group)
    flat = flat or Guess(store.get(links))
    lists = _NOTHING if _all_shown(flat.stored, links, page, old) else _catalogued(store, group, page)
    done = swap(store, links, lambda text: _links(text, group, page, links), pages.HTML, guess=flat)
    written[links] = done.data
    return Listed(changed or done.written or lists.changed, {**written, **lists.pages})


def derive_links(store: Store, group: str, page: ProjectPage) -> dict[str, bytes]:
    """Brings all that follows from a page of links to at least its generation: HTML, and the lists of projects."""
    written: dict[str, bytes] = {}
    for channel in (None, *sorted(page.channels)):
        key = html_place(group, page.name, channel)
        done = swap(store, key, lambda text, c=channel, k=key: _html(text, page, c, k), pages.HTML)  # type: ignore[misc]
        written[key] = done.data
        if channel:
            root = f"{pages.channel_root(channel, group)}index.html"
            add_to_root(store, root, f"{channel}, {group}", page.name, written, None)
    _add_to_roots(store, group, page.name, written)
    return written


def html_place(group: str, project: str, channel: str | None) -> str:
    """The key of a project's HTML page, in its group's root or in that of a channel."""
    return f"{pages.channel_root(channel, group)}{project}/index.html" if channel else pages.html_key(group, project)


def _shown(store: Store, before: Stored, old: ProjectPage, channel: str | None) -> Guess | None:
    if channel is not None and channel not in old.channels:
        return Guess(None)
    return guessed(store, before, html.project_html(old, channel))


def _html(text: bytes | None, page: ProjectPage, channel: str | None, key: str) -> bytes | None:
    if text is not None and html.generation_of(text, key) >= page.generation_in(channel):
        return None
    return html.project_html(page, channel)


def _links(text: bytes | None, group: str, page: ProjectPage, key: str) -> bytes | None:
    sections = {} if text is None else html.parse_links(text, key)
    if page.name in sections and sections[page.name].generation >= page.generation:
        return None
    return html.links_html(group, sections | {page.name: html.links_section(page)})


def _all_shown(flat: Stored | None, key: str, page: ProjectPage, old: ProjectPage | None) -> bool:
    """Need the catalogue not even be read?

    The flat page is written last: a section of the generation before ours says that all of that one was finished.
    """
    if flat is None or old is None or section_of(page).versions != section_of(old).versions:
        return False
    section = html.parse_links(flat.data, key).get(page.name)
    return section is not None and section.generation >= old.generation and page.channels == old.channels


def _catalogued(store: Store, group: str, page: ProjectPage) -> Listed:
    """The catalogue, and before it the lists of projects, when there is something new."""
    section = section_of(page)
    found = store.get(CATALOGUE_KEY)
    catalogue = parse_catalogue(found.data if found else None)
    present = catalogue.section(group, page.name)
    written: dict[str, bytes] = {}
    changed = False
    if present is None:
        names = set(catalogue.groups.get(group, ()))
        guesses = [
            _names(store, found, names, shown) for shown in (html.root_html(group, names), html.root_json(names))
        ]
        changed = _add_to_roots(store, group, page.name, written, (guesses[0], guesses[1]))
    for channel in sorted(page.channels - _channels(present)):
        key = f"{pages.channel_root(channel, group)}index.html"
        names = {name for name, each in catalogue.groups.get(group, {}).items() if channel in _channels(each)}
        title = f"{channel}, {group}"
        guess = _names(store, found, names, html.root_html(title, names))
        changed = add_to_root(store, key, title, page.name, written, guess) or changed

    def new(old: bytes | None) -> bytes | None:
        before = parse_catalogue(old)
        after = before.with_section(group, page.name, section)
        return None if after is before else after.render()

    done = swap(store, CATALOGUE_KEY, new, CATALOGUE_TYPE, guess=Guess(found))
    written[CATALOGUE_KEY] = done.data
    return Listed(changed or done.written, written)


def _names(store: Store, sample: Stored | None, names: set[str], shown: bytes) -> Guess | None:
    """What a list of projects probably holds, if it holds those of the catalogue."""
    if not names or sample is None:
        return Guess(None)
    return guessed(store, sample, shown)


def _channels(section: CatalogueSection | None) -> set[str]:
    by_tags = section.versions.values() if section else ()
    return {channel for tags in by_tags for channels in tags.values() for channel in channels}


def _add_to_roots(
    store: Store,
    group: str,
    project: str,
    written: dict[str, bytes],
    guess: tuple[Guess | None, Guess | None] = (None, None),
) -> bool:
    """Puts a project on a group's lists of projects, HTML and JSON; True if it was missing."""
    key = pages.root_json_key(group)

    def new(old: bytes | None) -> bytes | None:
        projects = set() if old is None else html.parse_root_json(old, key)
        return None if project in projects else html.root_json(projects | {project})

    listed = add_to_root(store, pages.root_key(group), group, project, written, guess[0])
    done = swap(store, key, new, pages.JSON, guess=guess[1])
    written[key] = done.data
    return listed or done.written


def add_to_root(
    store: Store, key: str, title: str, project: str, written: dict[str, bytes], guess: Guess | None
) -> bool:
    """Puts a project on one HTML list of projects; True if it was missing."""

    def new(old: bytes | None) -> bytes | None:
        projects = set() if old is None else html.parse_root(old, key)
        return None if project in projects else html.root_html(title, projects | {project})

    done = swap(store, key, new, pages.HTML, guess=guess)
    written[key] = done.data
    return done.written
