"""Writes every page from the records and events, which never change: the way back from anything.

Costs a request for each record and event; publishing never needs it. Publishers may run meanwhile: pages change by
compare and swap here too, and a page only ever gains what records and events say.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from farm.base.errors import PublishRefusedError
from farm.index import pages
from farm.index.layout import (
    CATALOGUE,
    json_page_of,
    metadata_key,
    record_key,
    wheel_key,
)
from farm.index.pages import Catalogue, File, ProjectPage, parse_catalogue
from farm.index.publish import Pages, Written, check_store, delete_files
from farm.index.records import Wheel, parse_record, read_all, read_state
from farm.index.stores import Store


class Reconciled(NamedTuple):
    """The result: pages that were written, and wheels without their bytes, which are left out."""

    written: tuple[str, ...]
    missing: tuple[str, ...]


def reconcile(store: Store, *, take_back: bool = False) -> Reconciled:
    """Makes every page what records and events say.

    A page that is none of ours is written over: its content follows from the records.

    Args:
        store: The index.
        take_back: Also take off pages what no record or event says (any more): a yank, a removal, a wheel.

    Raises:
        PublishRefusedError: There are such pages, and `take_back` is not set. Nothing was changed.
        ForeignObjectError: A record or event is not ours: nothing follows from it.
        InfrastructureError: The store failed; run it again.
    """
    # One listing for all: what comes later is a publisher's, and each page is looked at again before it is written.
    present = frozenset(store.list(""))
    rebuild = Rebuild(store, read_all(store, present), present)
    lost = sorted(rebuild.taken_back())
    if lost and not take_back:
        raise PublishRefusedError(
            f"pages show what no record or event says any more: {'; '.join(lost)}",
            hint="restore records/ and events/ from a backup, or take it off the pages: reconcile --take-back",
        )
    check_store(store)
    return rebuild.all()


class Rebuild:
    """All pages anew; `missing`: wheels without their files, which are on no page."""

    def __init__(self, store: Store, wheels: dict[str, Wheel], present: frozenset[str]) -> None:
        self.store, self.present, self.wheels = store, present, wheels
        self.pages = Pages(store, exact=True)
        self.missing = {
            name for name, each in wheels.items() if each.state.removed is None and len(self._files(name)) < 2
        }
        self.places = sorted(place for key in present if (place := json_page_of(key)) is not None)

    def _files(self, name: str) -> set[str]:
        return {wheel_key(name), metadata_key(name)} & self.present

    def taken_back(self) -> Iterator[str]:
        """Statements of pages about wheels that no record or event backs."""
        for group, project in self.places:
            page = self.pages.page(group, project)
            for file in page.ever if page else ():
                wheel, gone = self.wheels.get(file.filename), page and file in (page.removed or ())
                if wheel is None and self.store.get(record_key(file.filename)) is None:
                    yield f"{file.filename}, which has no record"
                if wheel is None or (not gone and (file.event or 0) <= wheel.state.number):
                    continue
                state = wheel.state if wheel.state.removed is not None else read_state(self.store, file.filename)
                if gone and state.removed is None:
                    yield f"the removal of {file.filename}"
                elif (file.event or 0) > state.number:
                    yield f"event {file.event} of {file.filename}, by which it is {_state_of(file)}"

    def all(self) -> Reconciled:
        done = Written([], [], {})
        listed: dict[str, dict[str, list[Wheel]]] = defaultdict(lambda: defaultdict(list))
        for wheel in self.wheels.values():
            for group in wheel.groups:
                # Without its bytes a wheel is on no page.
                listed[group][wheel.record.project] += [] if wheel.name in self.missing else [wheel]
        for group, project in self.places:
            page = self.pages.page(group, project)
            if page is not None and page.name == project:
                # Of which no record is left: its page stays, empty, so that installers get no 404 as an answer.
                listed[group].setdefault(project, [])
        known = {group: sorted(projects) for group, projects in sorted(listed.items()) if projects}
        for group in known:
            self.pages.write(group, listed[group], rest=self._rest, done=done)
        if known:
            self.pages.add_groups(set(known), done)
        if known or CATALOGUE in self.present:
            self._catalogue(known, done)
        for name, wheel in self.wheels.items():
            # A removal that was killed before its bytes went is finished here.
            if wheel.state.removed is not None and self._files(name):
                delete_files(self.store, name)
        return Reconciled(tuple(dict.fromkeys(done.keys)), tuple(sorted(self.missing)))

    def _rest(self, _group: str, page: ProjectPage) -> Iterator[Wheel]:
        """The wheels of a page that were published since ours were read."""
        for name in page.entries:
            if name not in self.missing and (name in self.wheels or record_key(name) in self.present):
                continue  # it is ours, or has a record that cannot be read
            found = self.store.get(record_key(name))
            if found is not None and all(self.store.stat(key) for key in (wheel_key(name), metadata_key(name))):
                yield Wheel(parse_record(found.data, record_key(name)), read_state(self.store, name))

    def _catalogue(self, known: Mapping[str, Iterable[str]], done: Written) -> None:
        """The catalogue of what was written, and of what a publisher added meanwhile."""

        def change(old: bytes | None) -> bytes:
            before: Catalogue = self.pages.ours(parse_catalogue, old) or Catalogue()
            made = before.model_copy(update={"groups": {}})
            for group in sorted({*before.groups, *known}):
                own = set(known.get(group, ()))
                since = {
                    name for name in before.groups.get(group, ()) if name not in own and self.pages.page(group, name)
                }
                made = made.having(group, own | since) if own | since else made
            return made.render()

        self.pages.swap(CATALOGUE, change, pages.CATALOGUE_TYPE, done)


def _state_of(file: File) -> str:
    return "not yanked" if file.yanked is False else f"yanked ({file.yanked})"
