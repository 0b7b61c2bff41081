"""From a project's JSON page to everything that is derived from it.

HTML pages, lists of projects, `links.html` and the catalogue follow the JSON page, each guarded by generations: a slow
writer never puts an older state over a newer one, and any later publish of the project repairs what a killed one left
behind. The order matters to readers: `links.html` carries the signature of the group's pages (`farm.index.roles`), so
it comes after all that it covers; the catalogue comes last, so that what it offers is on all lists.

Most that there is to read can be predicted from the JSON page as it was and from the catalogue, which spares requests:
with the two reads, of catalogue and `links.html`, a rebuild costs six here, signed or not. docs/wheel-index.md has all.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from farm.index import html, labels, pages, roles
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, parse_catalogue, parse_projects, projects_json
from farm.index.keys import newest_root, online_keys, start
from farm.index.pages import ProjectPage
from farm.index.signing import Signer
from farm.index.stores import Store, Stored
from farm.index.swap import Prediction, Swapped, predicted, swap

HOME_KEY = "index.html"
HOME = html.document(
    "Wheels",
    [],
    ['<p><a href="whl/">Groups of wheels</a>: a root for installers for each GPU and CPU</p>'],
)
"""What answers the root of the index until `farm site build` writes its own page."""

Change = Callable[[ProjectPage | None], ProjectPage]
"""From a project's page (None: absent) to the new one; the same object leaves it as it is."""


class Look(NamedTuple):
    """What a group's `links.html` was, and a project's page there; each may have changed since."""

    flat: Stored | None
    page: Stored | None


class Listed(NamedTuple):
    """What came of a change of a page.

    Attributes:
        changed: False when every page showed it already.
        pages: The pages that were looked at and their content now, but for the catalogue.
    """

    changed: bool
    pages: Mapping[str, bytes]


class Listing:
    """The pages of an index, in the hands of one writer.

    Args:
        store: Where.
        signer: Signs the pages that change.
        catalogue: The catalogue, where it was read already.

    Raises:
        PublishRefusedError: The index has other online keys than the signer's.
    """

    def __init__(self, store: Store, signer: Signer | None = None, catalogue: Prediction | None = None) -> None:
        self.store, self.signer = store, signer
        self.catalogue = catalogue or Prediction(store.get(CATALOGUE_KEY))
        self.known = parse_catalogue(self.catalogue.stored.data if self.catalogue.stored else None)
        self.keys = self.known.keys
        if signer is not None:
            self._know_keys(signer)
            roles.may_sign(self.known.model_copy(update={"keys": self.keys}), signer)

    def look(self, group: str, project: str) -> Look:
        """What there is of a project; that `links.html` does not list it is taken for a no, without a look."""
        links = pages.links_key(group)
        flat = None if self._is_new(group) else self.store.get(links)
        new = flat is None or project not in html.parse_links(flat.data, links)
        return Look(flat, None if new else self.store.get(pages.json_key(group, project)))

    def _is_new(self, group: str) -> bool:
        return group not in self.known.groups and group not in self.known.links

    def change(
        self,
        group: str,
        project: str,
        change: Change,
        *,
        adding: Collection[pages.File] | None = None,
        look: Look | None = None,
    ) -> Listed:
        """Changes the JSON page of a project, and all pages that follow from it.

        Args:
            group: Whose page.
            project: Which page.
            change: What to do.
            adding: The files that `change` adds: only their channels show the change.
            look: What `look` saw, which spares the reads if it is still so.
        """
        key = pages.json_key(group, project)
        flat = look.flat if look else self.store.get(pages.links_key(group))

        def changed(old: bytes | None) -> bytes | None:
            before = None if old is None else pages.parse_page(old, key)
            after = change(before)
            ahead.update(show_labels(self.store, group, after))
            return None if after is before else after.render()

        ahead: dict[str, bytes] = {}
        done = swap(self.store, key, changed, pages.JSON, prediction=Prediction(look.page) if look else None)
        page = pages.parse_page(done.data, key)
        written = {**ahead, key: done.data}
        theirs = None if adding is None else frozenset(file.channel for file in adding if file.channel)
        before = done.before if done.written else None
        # This order for readers: project pages, lists of them, the signed flat page, the list of groups, the catalogue.
        derived = self._html(group, page, written, before, theirs, fresh=done.before is None)
        # The call first, then `or`: each step must run, whatever those before it changed.
        derived = self._lists(group, page, written) or derived
        derived = self._links(group, page, written, Prediction(flat)) or derived
        if self._is_new(group):
            derived = self.add_group(group) or derived
        derived = self._catalogued(group, page) or derived
        return Listed(done.written or derived, written)

    def add_group(self, group: str) -> bool:
        """Puts a group on the list of groups; False if it was there. The first one brings the index's root page."""
        if not self.known.groups:
            self.store.create(HOME_KEY, HOME, content_type=pages.HTML)

        def new(old: bytes | None) -> bytes | None:
            groups = set() if old is None else html.parse_root(old, roles.GROUPS_KEY)
            if group in groups and (self.signer is None or old is None or b'id="signature"' in old):
                return None
            page = roles.groups_html(groups | {group})
            return page if self.signer is None else roles.signed(page, roles.GROUPS_KEY, old, {}, self.signer)

        # what a signed list holds cannot be predicted; but the first group of an index is alone on it
        prediction = None if self.known.groups or self.known.links else Prediction(None)
        return swap(self.store, roles.GROUPS_KEY, new, pages.HTML, prediction=prediction).written

    def _know_keys(self, signer: Signer) -> None:
        """Which keys may sign: from the catalogue, or from the root, which the first signature makes."""
        if self.keys is not None:
            return
        root = newest_root(self.store)
        if root is None and start(self.store, signer):
            self.keys = (signer.keyid,)
            return
        # Where `start` failed, another publisher has made the root by now.
        root = root or newest_root(self.store)
        self.keys = tuple(sorted(online_keys(root.signed))) if root else (signer.keyid,)

    def _html(
        self,
        group: str,
        page: ProjectPage,
        written: dict[str, bytes],
        before: Stored | None,
        channels: frozenset[str] | None,
        *,
        fresh: bool,
    ) -> bool:
        """Brings the project's HTML pages to at least the page's generation; False when they had it.

        Args:
            group: Whose page.
            page: The JSON page.
            written: The pages that were looked at are added.
            before: The JSON page as it was before we changed it: from it follows what the others show.
            channels: Whose roots; None for all.
            fresh: The page is new, so nothing was derived from it before.
        """
        changed = False
        old = None if before is None else pages.parse_page(before.data, "")
        for channel in (None, *sorted(page.channels if channels is None else channels)):
            key = html_place(group, page.name, channel)
            prediction = Prediction(None) if fresh else None
            if before and old:
                known = channel is None or channel in old.channels
                prediction = (
                    predicted(self.store, before, html.project_html(old, channel)) if known else Prediction(None)
                )
            done = show_html(self.store, key, page, channel, prediction)
            written[key] = done.data
            changed = changed or done.written
        return changed

    def _lists(self, group: str, page: ProjectPage, written: dict[str, bytes]) -> bool:
        """Puts the project on the lists that the catalogue does not promise; True if one changed."""
        present = self.known.groups.get(group, {}).get(page.name)
        shown = set(present or ())
        new: list[str | None] = [None] if present is None else []
        changed = False
        for channel in (*new, *sorted(page.channels - shown)):
            names = self.known.listed(group, channel)
            for listed in lists_of(group, channel):
                sample = self.catalogue.stored
                prediction = (
                    predicted(self.store, sample, listed.render(names)) if names and sample else Prediction(None)
                )
                changed = add_to_list(self.store, listed, page.name, written, prediction) or changed
        return changed

    def _links(self, group: str, page: ProjectPage, written: dict[str, bytes], flat: Prediction) -> bool:
        key = pages.links_key(group)

        def new(old: bytes | None) -> bytes | None:
            sections = {} if old is None else html.parse_links(old, key)
            # Else a faster writer has shown this page or a newer one here, which stays.
            late = page.name not in sections or sections[page.name].generation < page.generation
            if late and not page.meta.links:
                sections |= {page.name: html.links_section(page)}
            text = html.links_html(group, sections)
            if self.signer is not None:
                text = roles.signed(text, key, old, written, self.signer)
                return None if text == old else text
            if old is None or late:
                there = None if old is None else html.signature_of(old, key)
                return text if there is None else html.with_signature(text, there)  # which does not cover it then
            return None

        done = swap(self.store, key, new, pages.HTML, prediction=flat)
        written[key] = done.data
        return done.written

    def _catalogued(self, group: str, page: ProjectPage) -> bool:
        def new(old: bytes | None) -> bytes | None:
            before = parse_catalogue(old)
            after = before.with_project(group, page.name, page.channels)
            if self.signer is not None and before.keys is None:
                after = after.model_copy(update={"keys": self.keys})
            return None if after is before else after.render()

        return swap(self.store, CATALOGUE_KEY, new, CATALOGUE_TYPE, prediction=self.catalogue).written


class ProjectList(NamedTuple):
    """A list of projects, as HTML or JSON: of a group, or of a channel in it."""

    key: str
    title: str

    def render(self, names: set[str]) -> bytes:
        return projects_json(names) if self.key.endswith(".json") else html.root_html(self.title, names)

    def parse(self, data: bytes) -> set[str]:
        """The names on it; ForeignObjectError if it is not one of ours."""
        return parse_projects(data, self.key) if self.key.endswith(".json") else html.parse_root(data, self.key)

    @property
    def content_type(self) -> str:
        return pages.JSON if self.key.endswith(".json") else pages.HTML


def lists_of(group: str, channel: str | None) -> list[ProjectList]:
    """The lists on which a project of the group, or of a channel in it, stands."""
    if channel is not None:
        return [ProjectList(f"{pages.channel_root(channel, group)}index.html", f"{channel}, {group}")]
    return [ProjectList(pages.root_key(group), group), ProjectList(pages.json_root_key(group), group)]


def derive_links(store: Store, group: str, page: ProjectPage) -> dict[str, bytes]:
    """Brings all that follows from a page of links to at least its generation: HTML, and the lists of projects."""
    written: dict[str, bytes] = {}
    for channel in (None, *sorted(page.channels)):
        key = html_place(group, page.name, channel)
        done = show_html(store, key, page, channel, None)
        written[key] = done.data
        for listed in lists_of(group, channel):
            add_to_list(store, listed, page.name, written, None)
    return written


def show_labels(store: Store, group: str, page: ProjectPage) -> dict[str, bytes]:
    """Brings the pages of labels of a project to what its page has; before the page, since that leads to them."""
    shown: dict[str, bytes] = {}
    for version, filename in page.labelled.items():
        wanted = page.labels(version)

        def new(old: bytes | None, wanted: Mapping[str, pages.Properties] = wanted) -> bytes | None:
            return None if old is not None and labels.has(old, wanted) else labels.render(wanted)

        key = pages.labels_key(group, page.name, filename)
        shown[key] = swap(store, key, new, "application/json").data
    return shown


def html_place(group: str, project: str, channel: str | None) -> str:
    """The key of a project's HTML page, in its group's root or in that of a channel."""
    return f"{pages.channel_root(channel, group)}{project}/index.html" if channel else pages.html_key(group, project)


def add_to_list(
    store: Store, listed: ProjectList, project: str, written: dict[str, bytes], prediction: Prediction | None
) -> bool:
    """Puts a project on one list of projects; True if it was missing."""

    def new(old: bytes | None) -> bytes | None:
        projects = set() if old is None else listed.parse(old)
        return None if project in projects else listed.render(projects | {project})

    done = swap(store, listed.key, new, listed.content_type, prediction=prediction)
    written[listed.key] = done.data
    return done.written


def show_html(store: Store, key: str, page: ProjectPage, channel: str | None, prediction: Prediction | None) -> Swapped:
    """Brings an HTML page of a project to at least the generation of its JSON page."""

    def new(old: bytes | None) -> bytes | None:
        if old is not None and html.generation_of(old, key) >= page.generation_in(channel):
            return None
        return html.project_html(page, channel)

    return swap(store, key, new, pages.HTML, prediction=prediction)
