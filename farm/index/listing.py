"""From a project's JSON page to everything that is derived from it.

HTML pages, `links.html`, lists of projects and the catalogue follow the JSON page, each guarded by generations: a slow
writer never puts an older state over a newer one, and any later publish of the project repairs what a killed one
left behind. The catalogue comes last: what it offers is on all lists. Most that there is to read can be guessed from
the JSON page as it was and from the catalogue, which spares requests: with the two reads, of catalogue and flat page, a
rebuild costs six here, a wheel of a new kind seven, as the first of a project does; one more for a channel's root, and
one more for its list of projects.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from farm.index import html, pages
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, Catalogue, parse_catalogue, section_of
from farm.index.pages import ProjectPage
from farm.index.signing import Signer
from farm.index.snapshot import with_pages
from farm.index.stores import Store, Stored
from farm.index.swap import Guess, guessed, swap


class Listed(NamedTuple):
    """What came of a change of a page.

    Attributes:
        changed: False when every page showed it already.
        pages: The pages that were looked at and their content now, but for the catalogue.
    """

    changed: bool
    pages: Mapping[str, bytes]


def change_page(
    store: Store,
    group: str,
    project: str,
    change: Callable[[ProjectPage | None], ProjectPage],
    *,
    channels: frozenset[str] | None = None,
    adds: bool = False,
    catalogue: Guess | None = None,
    signer: Signer | None = None,
) -> Listed:
    """Changes the JSON page of a project, and all pages that follow from it.

    Args:
        store: Where.
        group: Whose page.
        project: Which page.
        change: From the page (None: absent) to the new one; the same object leaves it as it is.
        channels: Whose roots show the change; None for all that the page knows.
        adds: `change` makes a page where there is none. A project that the flat page does not list is then taken
            for a new one, without a look; and so is the flat page of a group that the catalogue does not have.
        catalogue: The catalogue, where it was read already.
        signer: Signs the digests of all pages.
    """
    catalogue = catalogue or Guess(store.get(CATALOGUE_KEY))
    known = parse_catalogue(catalogue.stored.data if catalogue.stored else None)
    key = pages.json_key(group, project)
    links = pages.links_key(group)
    flat = None if adds and group not in known.groups else store.get(links)
    new = adds and (flat is None or project not in html.parse_links(flat.data, links))

    def changed(old: bytes | None) -> bytes | None:
        before = None if old is None else pages.parse_page(old, key)
        after = change(before)
        return None if after is before else after.render()

    done = swap(store, key, changed, pages.JSON, guess=Guess(None) if new else None)
    page = pages.parse_page(done.data, key)
    before = done.before if done.written else None
    written = {key: done.data}
    derived = _derive(store, group, page, written, before, channels, fresh=done.before is None, flat=Guess(flat))
    listed = _catalogued(store, group, page, written, catalogue, known, signer)
    return Listed(done.written or derived or listed, written)


def _derive(
    store: Store,
    group: str,
    page: ProjectPage,
    written: dict[str, bytes],
    before: Stored | None,
    channels: frozenset[str] | None,
    *,
    fresh: bool,
    flat: Guess,
) -> bool:
    """Brings HTML pages and the flat page to at least the page's generation; False when they had it.

    Args:
        store: Where.
        group: Whose page.
        page: The JSON page.
        written: The pages that were looked at are added.
        before: The JSON page as it was before we changed it: from it follows what the others show.
        channels: Whose roots; None for all.
        fresh: The page is new, so nothing was derived from it before.
        flat: The flat page of the group.
    """
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
    done = swap(store, links, lambda text: _links(text, group, page, links), pages.HTML, guess=flat)
    written[links] = done.data
    return changed or done.written


def derive_links(store: Store, group: str, page: ProjectPage) -> dict[str, bytes]:
    """Brings all that follows from a page of links to at least its generation: HTML, and the lists of projects."""
    written: dict[str, bytes] = {}
    for channel in (None, *sorted(page.channels)):
        key = html_place(group, page.name, channel)
        done = swap(store, key, lambda text, c=channel, k=key: _html(text, page, c, k), pages.HTML)  # type: ignore[misc]
        written[key] = done.data
        add_to_root(store, root_place(group, channel), root_title(group, channel), page.name, written, None)
    return written


def html_place(group: str, project: str, channel: str | None) -> str:
    """The key of a project's HTML page, in its group's root or in that of a channel."""
    return f"{pages.channel_root(channel, group)}{project}/index.html" if channel else pages.html_key(group, project)


def root_place(group: str, channel: str | None) -> str:
    """The key of the list of a group's projects, or of those of a channel in it."""
    return f"{pages.channel_root(channel, group)}index.html" if channel else pages.root_key(group)


def root_title(group: str, channel: str | None) -> str:
    """What such a list is called."""
    return f"{channel}, {group}" if channel else group


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


def _catalogued(
    store: Store,
    group: str,
    page: ProjectPage,
    written: dict[str, bytes],
    found: Guess,
    known: Catalogue,
    signer: Signer | None,
) -> bool:
    """The lists of projects and then the catalogue, when there is something new; the signature, when there is a key.

    `known` is what `found` holds. True if anything changed.
    """
    section = section_of(page)
    present = known.section(group, page.name)
    changed = False
    shown = present.channels if present else set()
    lists: list[str | None] = [] if present else [None]
    for channel in (*lists, *sorted(page.channels - shown)):
        title = root_title(group, channel)
        names = known.listed(group, channel)
        guess = guessed(store, found.stored, html.root_html(title, names)) if names and found.stored else Guess(None)
        changed = add_to_root(store, root_place(group, channel), title, page.name, written, guess) or changed

    def new(old: bytes | None) -> bytes | None:
        before = parse_catalogue(old)
        after = before.with_section(group, page.name, section)
        if signer is not None:
            after = with_pages(after, signer, written)
        return None if after is before else after.render()

    return swap(store, CATALOGUE_KEY, new, CATALOGUE_TYPE, guess=found).written or changed


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
