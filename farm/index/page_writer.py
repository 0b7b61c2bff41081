"""Writing the pages of an index: from the JSON page of a project to the catalogue.

The order keeps readers safe, since nothing is shown to a client that is not there:

1. The JSON page of the project takes the wheels in (compare and swap).
2. Its HTML page follows, and the lists of projects if the project is new to the group.
3. The list of groups and the catalogue follow if something is new: by then all that they offer is
   on pages.

Each derived page states which generation of the JSON page it shows, so a slow writer never puts an
older state over a newer one, and any later write of the project repairs what a killed one left.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from farm.index import pages
from farm.index.layout import CATALOGUE, GROUPS, HOME, html_key, json_key, simple_root
from farm.index.pages import Catalogue, ProjectNames, ProjectPage, parse_catalogue, parse_page
from farm.index.records import ForeignObjectError, Wheel, parse, read_state
from farm.index.stores import Prediction, Store, Stored, Swapped, swap

HOME_PAGE = pages.document(
    "Wheels",
    [],
    ['<p><a href="whl/">Groups of wheels</a>: a root for installers for each GPU and CPU</p>'],
)
"""The root page of the index until `farm site build` writes its own."""

KeepPolicy = Callable[[str, ProjectPage], Iterable[Wheel]]
"""From group and page to the wheels that stay on it although the caller has no record of them."""


class PageWriter:
    """The pages of an index, written by one process.

    Args:
        store: The index.
        catalogue: The stored catalogue, if it was read already.
        exact: Compare every page with what it must be, and not by its generation alone; a page
            that this farm did not write is overwritten. `farm.index.reconcile` then writes the
            lists of the whole index itself.

    Attributes:
        written: Keys of the pages that were written.
        refused: Wheels that could not be listed, each with the reason.
        catalogue: The catalogue as last read or written.
    """

    def __init__(
        self, store: Store, catalogue: Prediction | None = None, *, exact: bool = False
    ) -> None:
        self.store = store
        self.exact = exact
        self.written = list[str]()
        self.refused = dict[str, str]()
        self._stored_catalogue: Prediction | None = catalogue or Prediction(store.get(CATALOGUE))
        stored = self._stored_catalogue.stored
        self.catalogue: Catalogue = self.parsed(parse_catalogue, stored) or Catalogue()

    def write(
        self,
        group: str,
        projects: Mapping[str, Iterable[Wheel]],
        *,
        seen: Prediction | None = None,
        keep: KeepPolicy | None = None,
    ) -> None:
        """Write the pages of projects: the one way in which a wheel gets onto a page or off it.

        Args:
            group: The group whose pages are written.
            projects: Some or all wheels of each project.
            seen: The JSON page of the only project as it was read, which saves reading it again.
            keep: Which other entries of these pages stay; None keeps them all.
        """
        new_projects = set[str]()
        json_pages: dict[str, ProjectPage] = {}
        for project, wheels in projects.items():
            page, is_new = self._write_json(group, project, list(wheels), seen, keep)
            json_pages[project] = page
            if is_new:
                new_projects.add(project)
        self.write_derived_pages(group, json_pages, new=new_projects)

    def write_derived_pages(
        self, group: str, json_pages: Mapping[str, ProjectPage], *, new: Collection[str] = ()
    ) -> None:
        """Bring all that follows from JSON pages to at least their generation.

        Args:
            group: The group of the pages.
            json_pages: The JSON pages by project.
            new: Projects whose JSON page was just created, so nothing follows from it yet.
        """
        for project, page in json_pages.items():
            self._write_html(group, page, is_new=project in new)
        has_new_projects = self.catalogue.having(group, json_pages) is not self.catalogue
        if self.exact or has_new_projects:
            for key in (f"{simple_root(group)}index.html", f"whl/{group}/v1-json/index.json"):
                self._write_list(key, group, set(json_pages))
        if self.exact:
            return
        if group not in self.catalogue.groups:
            self.add_groups({group})
        if has_new_projects:
            self._write_catalogue(group, json_pages)

    def swap(
        self,
        key: str,
        change: Callable[[bytes | None], bytes | None],
        content_type: str,
        prediction: Prediction | None = None,
    ) -> Swapped:
        """Compare and swap a page, and note that it was written; None from `change` leaves it."""
        swapped = swap(self.store, key, change, content_type, prediction=prediction)
        if swapped.written:
            self.written.append(key)
        return swapped

    def parsed(
        self,
        parser: Callable[[bytes, str], Any],
        content: Stored | bytes | None,
        key: str = CATALOGUE,
    ) -> Any:
        """Parse a page; None if it is absent.

        Raises:
            ForeignObjectError: This farm did not write it. With `exact` it counts as absent.
        """
        if isinstance(content, Stored):
            data: bytes | None = content.data
        else:
            data = content
        if data is None:
            return None
        try:
            return parser(data, key)
        except ForeignObjectError:
            if self.exact:
                return None
            raise

    def page(self, group: str, project: str) -> ProjectPage | None:
        """The JSON page of a project as it is now."""
        key = json_key(group, project)
        stored = self.store.get(key)
        page: ProjectPage | None = self.parsed(parse_page, stored, key)
        return page

    def _write_json(
        self,
        group: str,
        project: str,
        wheels: list[Wheel],
        seen: Prediction | None,
        keep: KeepPolicy | None,
    ) -> tuple[ProjectPage, bool]:
        """The JSON page after the change, and whether it is new."""
        key = json_key(group, project)

        def change(old: bytes | None) -> bytes | None:
            page: ProjectPage | None = self.parsed(parse_page, old, key)
            if page is not None and page.name != project:
                page = None  # another project's page
            update = self._updated(group, project, page, wheels, keep)
            self.refused.update(update.refused)
            if old is not None and update.page is page and not self.exact:
                return None
            return update.page.render()

        swapped = self.swap(key, change, pages.JSON, seen)
        return parse_page(swapped.data, key), swapped.before is None

    def _updated(
        self,
        group: str,
        project: str,
        page: ProjectPage | None,
        wheels: list[Wheel],
        keep: KeepPolicy | None,
    ) -> pages.Update:
        """The page with these wheels and those that stay."""
        if page is None:
            above = 0
            if self.exact:
                above = self._shown_generation(group, project)
            return pages.updated(None, project, wheels, above=above, force=self.exact)
        entries = wheels
        if self.exact:
            entries = [self._refresh(wheel, page) for wheel in wheels]
        dropped = set[str]()
        if keep is not None:
            entries = [*keep(group, page), *entries]
            dropped = page.entries.keys() - {wheel.name for wheel in entries}
        return pages.updated(page, project, entries, drop=dropped, force=self.exact)

    def _refresh(self, wheel: Wheel, page: ProjectPage) -> Wheel:
        """The wheel, with its events read again if the page shows newer ones."""
        shown_event = 0
        entry = page.entries.get(wheel.name)
        if entry is not None:
            shown_event = entry.event or 0
        shows_newer = shown_event > wheel.state.number
        if wheel.state.removed is None:
            for file in page.removed or ():
                if file.filename == wheel.name:
                    shows_newer = True
        if not shows_newer:
            return wheel
        return wheel._replace(state=read_state(self.store, wheel.name))

    def _shown_generation(self, group: str, project: str) -> int:
        """The generation that the HTML page of the project shows; 0 if there is none."""
        key = html_key(group, project)
        return self.parsed(pages.generation_of, self.store.get(key), key) or 0

    def _write_html(self, group: str, page: ProjectPage, *, is_new: bool) -> None:
        key = html_key(group, page.name)

        def change(old: bytes | None) -> bytes | None:
            old_generation = self.parsed(pages.generation_of, old, key) or 0
            if not self.exact and old_generation >= page.generation:
                return None
            if self.exact and old_generation > page.generation:
                # A publisher wrote the page meanwhile.
                return pages.project_html(self.page(group, page.name) or page)
            return pages.project_html(page)

        self.swap(key, change, pages.HTML, self._absent_if(is_new))

    def _write_list(self, key: str, group: str, names: set[str]) -> None:
        is_json = key.endswith(".json")

        def change(old: bytes | None) -> bytes | None:
            old_names: set[str] = self.parsed(parse_names, old, key) or set()
            if self.exact:
                # What a publisher added meanwhile stays.
                added = old_names - names
                old_names = {name for name in added if self.store.get(html_key(group, name))}
            if names <= old_names:
                return None
            if is_json:
                return ProjectNames.of(old_names | names).render()
            return pages.list_html(group, old_names | names)

        content_type = pages.HTML
        if is_json:
            content_type = pages.JSON
        prediction = self._absent_if(group not in self.catalogue.groups)
        self.swap(key, change, content_type, prediction)

    def _absent_if(self, is_new: bool) -> Prediction | None:
        """The prediction that a page is absent, where it is new; it saves reading it."""
        if is_new and not self.exact:
            return Prediction(None)
        return None

    def add_groups(self, groups: set[str]) -> None:
        """Put groups on the list of groups. The first one brings the index's root page."""
        is_first = not self.catalogue.groups
        prediction = self._absent_if(is_first)
        if is_first or self.exact:
            self.swap(HOME, _home_if_absent, pages.HTML, prediction)

        def change(old: bytes | None) -> bytes | None:
            old_groups: set[str] = self.parsed(pages.parse_list, old, GROUPS) or set()
            if self.exact:
                added = old_groups - groups
                old_groups = {
                    group for group in added if self.store.get(f"{simple_root(group)}index.html")
                }
            if groups <= old_groups:
                return None
            # For people; no installer reads it, since the right group depends on the machine.
            return pages.list_html("Groups of wheels", old_groups | groups, folder="simple/")

        self.swap(GROUPS, change, pages.HTML, prediction)

    def _write_catalogue(self, group: str, names: Iterable[str]) -> None:
        def change(old: bytes | None) -> bytes | None:
            before: Catalogue = self.parsed(parse_catalogue, old) or Catalogue()
            after = before.having(group, names)
            if after is before and old is not None:
                return None
            return after.render()

        swapped = self.swap(CATALOGUE, change, pages.CATALOGUE_TYPE, self._stored_catalogue)
        self.catalogue = parse_catalogue(swapped.data)
        self._stored_catalogue = None


def _home_if_absent(old: bytes | None) -> bytes | None:
    if old:
        return None
    return HOME_PAGE


def complete_publish(store: Store, group: str, project: str) -> None:
    """Write what a publisher that failed left out after the project's JSON page.

    The catalogue is written last, so one read of it shows whether anything is missing.
    """
    writer = PageWriter(store)
    page = writer.page(group, project)
    if page is not None and project not in writer.catalogue.groups.get(group, ()):
        writer.write_derived_pages(group, {project: page})


def parse_names(data: bytes, key: str) -> set[str]:
    """The projects on a list; ForeignObjectError if this farm did not write it."""
    if key.endswith(".json"):
        return {project.name for project in parse(ProjectNames, data, key).projects}
    return pages.parse_list(data, key)
