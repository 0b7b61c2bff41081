"""Writing every page from the records and events, which never change: the way back from anything.

Costs a request for each record and event; publishing never needs it. Publishers may run meanwhile:
pages change by compare and swap here too, and a page only ever gains what records and events say. A
file is listed only if its bytes are those of its record: they were compared when it was listed, or
they are compared now.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from farm.base.errors import PublishRefusedError
from farm.index import pages
from farm.index.layout import CATALOGUE, json_page_of, metadata_key, record_key, wheel_key
from farm.index.page_writer import PageWriter
from farm.index.pages import Catalogue, File, ProjectPage, parse_catalogue
from farm.index.publish import check_store, delete_files
from farm.index.records import READERS, Wheel, WheelsByPlace, parse_record, read_all, read_state
from farm.index.stores import Store, each_answer, stored_sha256

FILES = "whl/files/"


class Reconciled(NamedTuple):
    """What was done.

    Attributes:
        written: Pages that were written.
        missing: Wheels without their files, which are left out.
        differing: Wheels whose files have other bytes than recorded, which are left out.
        orphans: Files without a record; deleted with `take_back`.
    """

    written: tuple[str, ...]
    missing: tuple[str, ...]
    differing: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()


def reconcile(store: Store, *, take_back: bool = False) -> Reconciled:
    """Make every page what records and events say; a page of somebody else is written over.

    Args:
        store: The index.
        take_back: Also take off pages what no record or event says (any more): a yank, a removal,
            a wheel; and delete files without a record.

    Raises:
        PublishRefusedError: There are such pages, and `take_back` is not given; nothing was
            changed.
    """
    # One listing for all: what comes later is a publisher's, and each page is looked at again
    # before it is written.
    present = frozenset(store.list(""))
    rebuild = Rebuild(store, read_all(store, present), present)
    unbacked = sorted(rebuild.unbacked_statements())
    if unbacked and not take_back:
        raise PublishRefusedError(
            f"pages show what no record or event says any more: {'; '.join(unbacked)}",
            hint="restore records/ and events/ from a backup, or take it off the pages: reconcile "
            "--take-back",
        )
    check_store(store)
    done = rebuild.write_all()
    orphans = orphans_of(rebuild.wheels, present)
    if take_back:
        for key in orphans:
            # A publisher makes the record before the files: look again.
            if store.get(record_key(wheel_of(key))) is None:
                store.discard(key)
    return done._replace(orphans=tuple(orphans))


def wheel_of(key: str) -> str:
    """The wheel that a file below `whl/files/` belongs to."""
    return key.removeprefix(FILES).removesuffix(".metadata")


def orphans_of(wheels: Mapping[str, Wheel], present: Collection[str]) -> list[str]:
    """Files of which there is no record."""
    orphans = []
    for key in present:
        if not key.startswith(FILES):
            continue
        name = wheel_of(key)
        if name not in wheels and record_key(name) not in present:
            orphans.append(key)
    return sorted(orphans)


class Rebuild:
    """All pages, written anew.

    Attributes:
        missing: Wheels without their files.
        differing: Wheels whose files have other bytes than recorded.
    """

    def __init__(self, store: Store, wheels: dict[str, Wheel], present: frozenset[str]) -> None:
        self.store = store
        self.present = present
        self.wheels = wheels
        self.writer = PageWriter(store, exact=True)
        self.places = sorted(filter(None, map(json_page_of, present)))
        self.missing = set[str]()
        to_compare: list[Wheel] = []
        listed_sha256 = self._listed_files()
        for name, wheel in wheels.items():
            if wheel.state.removed is not None:
                continue
            if len(self._files(name)) < 2:
                self.missing.add(name)
            elif listed_sha256.get(name) != wheel.record.sha256:
                to_compare.append(wheel)
        self.differing = self._find_differing(to_compare)

    def _listed_files(self) -> dict[str, str]:
        """The wheels on pages with their hashes; these bytes were compared when they were
        listed.
        """
        sha256_by_name: dict[str, str] = {}
        for group, project in self.places:
            page = self.writer.page(group, project)
            if page is None:
                continue
            for file in page.files:
                sha256_by_name[file.filename] = file.hashes.sha256
        return sha256_by_name

    def _find_differing(self, wheels: list[Wheel]) -> set[str]:
        names = [wheel.name for wheel in wheels]
        answers = each_answer(self._has_recorded_bytes, names, READERS)
        return {name for name, is_same in answers if not is_same}

    def _has_recorded_bytes(self, name: str) -> bool:
        record = self.wheels[name].record
        promised = {
            wheel_key(name): record.sha256,
            metadata_key(name): record.metadata_sha256,
        }
        for key, sha256 in promised.items():
            stat = self.store.stat(key)
            if stat is None or stored_sha256(self.store, key, stat) != sha256:
                return False
        return True

    def _files(self, name: str) -> set[str]:
        return {wheel_key(name), metadata_key(name)} & self.present

    def unbacked_statements(self) -> Iterator[str]:
        """Statements of pages about wheels that no record or event backs."""
        for group, project in self.places:
            page = self.writer.page(group, project)
            if page is None:
                continue
            for file in page.ever:
                yield from self._unbacked(page, file)

    def _unbacked(self, page: ProjectPage, file: File) -> Iterator[str]:
        wheel = self.wheels.get(file.filename)
        is_removed = file in (page.removed or ())
        if wheel is None:
            if self.store.get(record_key(file.filename)) is None:
                yield f"{file.filename}, which has no record"
            return
        shown_event = file.event or 0
        if not is_removed and shown_event <= wheel.state.number:
            return
        state = wheel.state
        if state.removed is None:  # an event may have come since
            state = read_state(self.store, file.filename)
        if is_removed and state.removed is None:
            yield f"the removal of {file.filename}"
        elif shown_event > state.number:
            state_text = f"yanked ({file.yanked})"
            if file.yanked is False:
                state_text = "not yanked"
            yield f"event {shown_event} of {file.filename}, by which it is {state_text}"

    def write_all(self) -> Reconciled:
        """Write all pages, and delete the files of removed wheels."""
        places = self._wheels_by_place()
        projects = {}
        for group, wheels_by_project in sorted(places.items()):
            if wheels_by_project:
                projects[group] = sorted(wheels_by_project)
                self.writer.write(group, wheels_by_project, keep=self._published_since)
        if projects:
            self.writer.add_groups(set(projects))
        if projects or CATALOGUE in self.present:
            self._write_catalogue(projects)
        for name, wheel in self.wheels.items():
            # A removal that was killed before its bytes went is finished here.
            if wheel.state.removed is not None and self._files(name):
                delete_files(self.store, name)
        return Reconciled(
            written=tuple(dict.fromkeys(self.writer.written)),
            missing=tuple(sorted(self.missing)),
            differing=tuple(sorted(self.differing)),
        )

    def _wheels_by_place(self) -> WheelsByPlace:
        """The wheels that are listed, by group and project."""
        places: WheelsByPlace = defaultdict(lambda: defaultdict(list))
        for wheel in self.wheels.values():
            has_files = wheel.name not in self.missing and wheel.name not in self.differing
            for group in wheel.groups:
                wheels = places[group][wheel.record.project]
                if has_files:
                    wheels.append(wheel)
        for group, project in self.places:
            page = self.writer.page(group, project)
            if page is not None and page.name == project:
                # A project without records keeps its page, empty: installers get no 404.
                places[group].setdefault(project, [])
        return places

    def _published_since(self, _group: str, page: ProjectPage) -> Iterator[Wheel]:
        """The wheels of a page that were published since the records were read."""
        for name in page.entries:
            was_read = name in self.wheels or record_key(name) in self.present
            if was_read and name not in self.missing:
                continue
            stored = self.store.get(record_key(name))
            if stored is None:
                continue
            files = (wheel_key(name), metadata_key(name))
            if all(map(self.store.stat, files)):
                record = parse_record(stored.data, record_key(name))
                yield Wheel(record, read_state(self.store, name))

    def _write_catalogue(self, projects: Mapping[str, Iterable[str]]) -> None:
        """Write the catalogue of what was written, and of what a publisher added meanwhile."""

        def change(old: bytes | None) -> bytes:
            before: Catalogue = self.writer.parsed(parse_catalogue, old) or Catalogue()
            after = before.model_copy(update={"groups": {}})
            for group in sorted({*before.groups, *projects}):
                names = set(projects.get(group, ()))
                added = set(before.groups.get(group, ())) - names
                for project in sorted(added):
                    if self.writer.page(group, project):
                        names.add(project)
                if names:
                    after = after.having(group, names)
            return after.render()

        self.writer.swap(CATALOGUE, change, pages.CATALOGUE_TYPE)
