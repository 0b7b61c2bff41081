"""Publishing, so that it may be killed anywhere and run any number of times at once.

The order is what keeps readers safe; nothing is shown to a client that is not there.

1. The record claims the name for these bytes, or the publish is refused.
2. The wheel and its `.metadata` are stored.
3. The JSON page of the project takes the file in (compare and swap).
4. Its HTML page follows, and the lists of projects if something is new.
5. The list of groups and the catalogue follow if something is new: what they offer is on all pages
by then.

Every step does nothing when it is done already, so a publisher that was killed anywhere is
completed by running it again, and publishers of the same or other wheels may run at the same time.
Each derived page says which generation of the JSON page it shows: a slow writer never puts an older
state over a newer one, and any later publish of the project repairs what a killed one left behind.
The number of requests does not depend on what is there; `docs/reference/wheel-index.md` has it. A wheel that
goes up in parts needs 5 more, and one for each part.

Later changes (yank, remove, promote) are an event first, which decides them; pages and bytes
follow. So a command that was killed anywhere is completed by running it again, or by `farm index
reconcile`. A removed wheel's record stays: its name is taken for ever.

Many wheels: files and folders of them, or all wheels of other indexes. One that may not be
published is left out, with the reason; run again it takes what is missing. How such a file was
built nobody can say here: its provenance says where it came from, and no more. Of another index its
record says it.
"""

import contextlib
import hashlib
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from farm.base.errors import (
    InfrastructureError,
    PublishRefusedError,
    UsageError,
    VerificationFailedError,
)
from farm.base.interrupts import deferred_interrupts
from farm.base.temporary import temporary_folder
from farm.index import pages
from farm.index.admission import PYPI_RULES, Admission, Checked, check_name, describe
from farm.index.layout import (
    CATALOGUE,
    GROUPS,
    HOME,
    SMOKE,
    check_group,
    html_key,
    json_key,
    metadata_key,
    parse_wheel_name,
    record_key,
    simple_root,
    wheel_key,
)
from farm.index.pages import (
    Catalogue,
    ProjectNames,
    ProjectPage,
    parse_catalogue,
    parse_page,
    read_page,
)
from farm.index.records import (
    PREDICATE,
    ForeignObjectError,
    Kind,
    Record,
    Wheel,
    add_event,
    parse,
    parse_record,
    read_all,
    read_state,
    read_wheel,
    there,
)
from farm.index.stores import SCRATCH, Prediction, Progress, Store, Stored, Swapped, swap

FEWEST = 16
"""Wheels are listed together once there are that many, and as many as were listed before: each
change writes a page whole, and so the bytes written grow with the number of wheels and not with its
square.
"""
HOME_PAGE = pages.document(
    "Wheels",
    [],
    ['<p><a href="whl/">Groups of wheels</a>: a root for installers for each GPU and CPU</p>'],
)
"""The root page of the index until `farm site build` writes its own."""

Rest = Callable[[str, ProjectPage], Iterable[Wheel]]
"""Group and page, to the wheels of entries that the caller has no record of; other entries go."""


class NameTakenError(PublishRefusedError):
    """The name stands for other bytes already."""


def check_store(store: Store) -> Prediction:
    """Makes sure that something may be published here; gives the catalogue as it is, which costs
    one request.

    At the first publish a page is created on a scratch key, created again and replaced by a stale
    tag: a store that does either of the last two would lose wheels, and is refused
    (PublishRefusedError).
    """
    found = store.get(CATALOGUE)
    name = hashlib.sha256(store.url("").encode()).hexdigest()
    with contextlib.suppress(ForeignObjectError):  # whoever needs the catalogue reports it
        # A bucket that was copied brings its catalogue along, but not the promises of the server it
        # was on.
        if parse_catalogue(found.data if found else None).tried == name:
            return Prediction(found)
        fault = _try(store)
        if fault:
            raise PublishRefusedError(
                f"{store.url('')} does not keep conditional writes: {fault}",
                hint="publishing there would lose wheels; use a folder, or a server that honours "
                "If-Match and "
                "If-None-Match (Ceph: in buckets without versioning and object lock)",
            )

        def note(old: bytes | None) -> bytes:
            return parse_catalogue(old).model_copy(update={"tried": name}).render()

        swap(store, CATALOGUE, note, pages.CATALOGUE_TYPE, prediction=Prediction(found))
        found = store.get(CATALOGUE)
    return Prediction(found)


def _try(store: Store) -> str:
    """The fault of a store; empty for none."""
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        if not store.replace(key, b"first", None, content_type=pages.HTML):
            return "a new object was refused as existing"
        if store.create(key, b"second", content_type=pages.HTML):
            return "an object that exists was created again (If-None-Match)"
        found = store.get(key)
        if found is None or found.data != b"first":
            return "an object that was just stored is not there"
        if not store.replace(key, b"third", found.etag, content_type=pages.HTML):
            return "an object was not replaced by the tag that it has (If-Match)"
        if store.replace(key, b"fourth", found.etag, content_type=pages.HTML):
            return "an object was replaced by a tag that it does not have (If-Match)"
    finally:
        with (
            deferred_interrupts(),
            contextlib.suppress(InfrastructureError),
        ):  # a policy may forbid deletes; it harms nobody
            store.discard(key)
    return ""


class Pages:
    """The pages of an index, in the hands of one writer.

    Args:
        catalogue: What is stored of the catalogue, where it was read already.
        exact: Every page is compared with what it must be and not by its generation alone, and one
            that is none of ours is written over. `farm.index.reconcile` then writes the lists of
            the whole index itself.

    Attributes:
        keys: The pages that were written.
        shown: The pages that were looked at.
        refused: Wheels that could not be listed, each with the reason.
    """

    def __init__(
        self, store: Store, catalogue: Prediction | None = None, *, exact: bool = False
    ) -> None:
        self.store = store
        self.exact = exact
        self.keys = list[str]()
        self.shown = list[str]()
        self.refused = dict[str, str]()
        self.stored: Prediction | None = catalogue or Prediction(store.get(CATALOGUE))
        self.known: Catalogue = self.ours(parse_catalogue, self.stored.stored) or Catalogue()

    def write(
        self,
        group: str,
        projects: Mapping[str, Iterable[Wheel]],
        *,
        seen: Prediction | None = None,
        rest: Rest | None = None,
    ) -> None:
        """Writes the pages of projects from their records: the one way in which a wheel gets onto a
        page or off it.

        Args:
            group: Whose pages.
            projects: Some or all wheels of each project.
            seen: The JSON page of the one project as it was read, which spares a read if it is
                still so.
            rest: What to do with further entries of these pages; None: they stay as they are.
        """
        new = set[str]()
        made = {
            name: self._json(group, name, list(each), seen, rest, new)
            for name, each in projects.items()
        }
        self.derive(group, made, new=new)

    def derive(
        self, group: str, made: Mapping[str, ProjectPage], *, new: Collection[str] = ()
    ) -> None:
        """Brings all that follows from JSON pages to at least their generation; nothing followed
        yet of `new` ones.
        """
        for name, page in made.items():
            self._html(group, page, Prediction(None) if name in new else None)
        after = self.known.having(group, made)
        if self.exact or after is not self.known:
            for key in (f"{simple_root(group)}index.html", f"whl/{group}/v1-json/index.json"):
                self._list(key, group, set(made))
        if self.exact:
            return
        if group not in self.known.groups:
            self.add_groups({group})
        if after is not self.known:
            self._catalogue(group, made)

    def swap(
        self,
        key: str,
        change: Callable[[bytes | None], bytes | None],
        content_type: str,
        prediction: Prediction | None = None,
    ) -> Swapped:
        """Compare and swap of a page, which is noted; None from `change` leaves it."""
        swapped = swap(self.store, key, change, content_type, prediction=prediction)
        self.shown.append(key)
        if swapped.written:
            self.keys.append(key)
        return swapped

    def ours(
        self,
        parser: Callable[[bytes, str], Any],
        found: Stored | bytes | None,
        key: str = CATALOGUE,
    ) -> Any:
        """The current page; a foreign one counts as absent where pages are written anew, else it is
        an error.
        """
        data = found.data if isinstance(found, Stored) else found
        try:
            return None if data is None else parser(data, key)
        except ForeignObjectError:
            if self.exact:
                return None
            raise

    def page(self, group: str, project: str) -> ProjectPage | None:
        """A project's JSON page as it is now."""
        key = json_key(group, project)
        found: ProjectPage | None = self.ours(parse_page, self.store.get(key), key)
        return found

    def _json(
        self,
        group: str,
        project: str,
        wheels: list[Wheel],
        seen: Prediction | None,
        rest: Rest | None,
        new: set[str],
    ) -> ProjectPage:
        key = json_key(group, project)
        known = {wheel.name for wheel in wheels}

        def change(old: bytes | None) -> bytes | None:
            page: ProjectPage | None = self.ours(parse_page, old, key)
            if page is not None and page.name != project:
                page = None
            more = [] if rest is None or page is None else list(rest(group, page))
            if rest is None or page is None:
                gone = set()
            else:
                gone = page.entries.keys() - known - {each.name for each in more}
            if page is None and self.exact:
                above = self._highest(group, project)
            else:
                above = 0
            more += (
                [self._again(each, page) for each in wheels]
                if self.exact and page is not None
                else wheels
            )
            made = pages.updated(page, project, more, drop=gone, above=above, force=self.exact)
            self.refused.update(made.refused)
            if old is not None and made.page is page and not self.exact:
                return None
            return made.page.render()

        swapped = self.swap(key, change, pages.JSON, seen)
        if swapped.before is None:
            new.add(project)
        return parse_page(swapped.data, key)

    def _again(self, wheel: Wheel, page: ProjectPage) -> Wheel:
        """A wheel, whose events are read again where its page shows more."""
        shown = page.entries.get(wheel.name)
        gone = wheel.state.removed is None and any(
            file.filename == wheel.name for file in page.removed or ()
        )
        if not gone and (shown is None or (shown.event or 0) <= wheel.state.number):
            return wheel
        return wheel._replace(state=read_state(self.store, wheel.name))

    def _highest(self, group: str, project: str) -> int:
        """The generation that the HTML page of the project shows; 0 for none."""
        key = html_key(group, project)
        return self.ours(pages.generation_of, self.store.get(key), key) or 0

    def _html(self, group: str, page: ProjectPage, prediction: Prediction | None) -> None:
        key = html_key(group, page.name)

        def change(old: bytes | None) -> bytes | None:
            shown = self.ours(pages.generation_of, old, key) or 0
            if not self.exact:
                return None if shown >= page.generation else pages.project_html(page)
            # A later generation: a publisher was there since.
            return pages.project_html(
                page if shown <= page.generation else self.page(group, page.name) or page
            )

        self.swap(key, change, pages.HTML, None if self.exact else prediction)

    def _list(self, key: str, group: str, names: set[str]) -> None:
        def change(old: bytes | None) -> bytes | None:
            shown = self.ours(parse_names, old, key) or set()
            if self.exact:  # what a publisher added since stays
                shown = {name for name in shown - names if self.store.get(html_key(group, name))}
            if names <= shown:
                return None
            every = shown | names
            if key.endswith(".json"):
                return ProjectNames.of(every).render()
            return pages.list_html(group, every)

        empty = group not in self.known.groups and not self.exact
        content_type = pages.JSON if key.endswith(".json") else pages.HTML
        self.swap(key, change, content_type, Prediction(None) if empty else None)

    def add_groups(self, groups: set[str]) -> None:
        """Puts groups on the list of groups. The first one brings the index's root page."""
        empty = not self.known.groups
        nothing = Prediction(None) if empty and not self.exact else None
        if empty or self.exact:
            home = swap(
                self.store,
                HOME,
                lambda old: None if old else HOME_PAGE,
                pages.HTML,
                prediction=nothing,
            )
            if home.written:
                self.keys.append(HOME)

        def change(old: bytes | None) -> bytes | None:
            shown = self.ours(pages.parse_list, old, GROUPS) or set()
            if self.exact:
                shown = {
                    each
                    for each in shown - groups
                    if self.store.get(f"{simple_root(each)}index.html")
                }
            # No installer reads it: which group is right depends on the machine.
            if groups <= shown:
                return None
            return pages.list_html("Groups of wheels", shown | groups, folder="simple/")

        self.swap(GROUPS, change, pages.HTML, nothing)

    def _catalogue(self, group: str, names: Iterable[str]) -> None:
        def change(old: bytes | None) -> bytes | None:
            known: Catalogue = self.ours(parse_catalogue, old) or Catalogue()
            after = known.having(group, names)
            return None if after is known and old is not None else after.render()

        swapped = self.swap(CATALOGUE, change, pages.CATALOGUE_TYPE, self.stored)
        self.known = parse_catalogue(swapped.data)
        self.stored = None


def finish(store: Store, group: str, project: str) -> None:
    """Writes what a publisher that failed had still to write after the project's JSON page; mostly
    one read.

    The catalogue comes last, so it shows whether there is anything.
    """
    pages = Pages(store)
    page = pages.page(group, project)
    if page is not None and project not in pages.known.groups.get(group, ()):
        pages.derive(group, {project: page})


def parse_names(data: bytes, key: str) -> set[str]:
    """The projects on a list; ForeignObjectError if it is not one of ours."""
    if key.endswith(".json"):
        return {each.name for each in parse(ProjectNames, data, key).projects}
    return pages.parse_list(data, key)


class Claimed(NamedTuple):
    """A wheel that has its name and is stored; `changed`: something of it was not there before."""

    wheel: Wheel
    changed: bool
    fresh: bool


class PublishResult(NamedTuple):
    """What the index holds about the wheel, and where; `changed` is False when everything was in
    place before.
    """

    record: Record
    changed: bool
    wheel_url: str
    index_url: str


def publish(
    store: Store,
    wheel: Path,
    *,
    group: str,
    upload_time: datetime,
    provenance: Mapping[str, Any],
    channel: str | None = None,
    policy: Admission = PYPI_RULES,
    progress: Progress | None = None,
) -> PublishResult:
    """Publishes a wheel, or completes what an earlier call began.

    The first publish of a file decides about `upload_time` and `provenance`; `progress` gets the
    bytes that are stored.

    Raises:
        PublishRefusedError: The name stands for other bytes, another group or nearly another
            project; the wheel is not admitted; or the store does not keep conditional writes.
            Nothing was changed.
        UsageError: A bad group or channel, an unreadable wheel, no credentials.
        InfrastructureError: The store failed; run it again.
    """
    ours = describe(
        wheel,
        group=check_group(group),
        upload_time=upload_time,
        provenance=provenance,
        channel=None if channel is None else check_group(channel),
        policy=policy,
    )
    pages_ = Pages(store, check_store(store))
    project = ours.record.project
    # Everything that can refuse comes before the claim: a refused wheel must not take the name.
    check_name(project, pages_.known.names, policy)
    seen = Prediction(store.get(json_key(group, project)))
    if seen.stored is None:
        page = None
    else:
        page = parse_page(seen.stored.data, json_key(group, project))
    check_place(page, Wheel(ours.record))
    claimed = claim(store, ours, progress)
    pages_.write(group, {project: [claimed.wheel]}, seen=seen if claimed.fresh else None)
    take_back(store, pages_.refused)
    if pages_.refused:
        raise PublishRefusedError(pages_.refused[ours.record.filename], hint=REBUILD)
    changed = claimed.changed or bool(pages_.keys)
    url = store.url(wheel_key(ours.record.filename))
    return PublishResult(claimed.wheel.record, changed, url, store.url(simple_root(group)))


REBUILD = "append .1 (.2 ...) to the local version: --rebuild 1"


def check_place(page: ProjectPage | None, wheel: Wheel) -> None:
    """PublishRefusedError if the wheel cannot be on the page: it has the same one by another
    spelling, for one.
    """
    if page is not None and (refused := pages.updated(page, page.name, [wheel]).refused):
        raise PublishRefusedError(refused[wheel.name], hint=REBUILD)


def claim(store: Store, ours: Checked, progress: Progress | None = None) -> Claimed:
    """Claims the name and stores the files; PublishRefusedError if it is taken. What else could
    refuse was asked.
    """
    # The first write. From here on a kill leaves a publish that the same call completes.
    record, key = ours.record, record_key(ours.record.filename)
    wheel = Wheel(record)
    fresh = store.create(key, record.render(), content_type="application/json")
    if not fresh:
        wheel = _claimed_before(store, parse_record(there(store, key).data, key), record)
        record = wheel.record
    place = wheel_key(record.filename)
    beside = metadata_key(record.filename)
    stored = [
        store_file(
            store, place, ours.path, record.size, record.sha256, fresh=fresh, progress=progress
        ),
        store_file(
            store, beside, ours.metadata, len(ours.metadata), record.metadata_sha256, fresh=fresh
        ),
    ]
    return Claimed(wheel, fresh or any(stored), fresh)


def _claimed_before(store: Store, record: Record, ours: Record) -> Wheel:
    """The wheel whose record holds the name, if it is this very one."""
    if record.sha256 != ours.sha256:
        raise NameTakenError(
            f"{ours.filename} is taken: the index holds sha256 {record.sha256}, this file has "
            f"{ours.sha256}",
            hint="published names never change their bytes; append .1 (.2 ...) to the local "
            "version",
        )
    # Same bytes, other root: a record is never rewritten.
    if record.groups != ours.groups:
        raise PublishRefusedError(
            f"{ours.filename} is published in {', '.join(record.groups)}, not in "
            f"{', '.join(ours.groups)}",
            hint=f"farm index promote {ours.filename} --to {ours.groups[0]} lists it there too",
        )
    state = read_state(store, record.filename)
    if state.removed is not None:
        raise PublishRefusedError(
            f"{record.filename} was removed ({state.removed or 'no reason given'}); its name "
            "stays taken",
            hint=REBUILD,
        )
    return Wheel(record, state)


def store_file(
    store: Store,
    key: str,
    data: bytes | Path,
    size: int,
    sha256: str,
    *,
    fresh: bool,
    progress: Progress | None = None,
) -> bool:
    """Stores a file of a claimed wheel; False when it was there. Looks first unless the claim is
    new.
    """
    # A new claim means that nobody stored the file yet: one request less in the usual case.
    if fresh:
        found = None
    else:
        found = store.stat(key)
    if found is None:
        if store.create(
            key, data, content_type="application/octet-stream", sha256=sha256, progress=progress
        ):
            return True
        found = store.stat(key)  # the same wheel's other publisher was faster
    if found is None or found.size != size or found.sha256 not in {sha256, None}:
        raise InfrastructureError(
            f"{store.url(key)} holds other bytes than its record says",
            hint="something other than the farm changed it; `farm index check` lists what else is "
            "broken",
        )
    return False


def take_back(store: Store, filenames: Iterable[str]) -> None:
    """Deletes the files of wheels that could not be listed since somebody removed them
    meanwhile.
    """
    for filename in filenames:
        if read_state(store, filename).removed is not None:
            delete_files(store, filename)


def delete_files(store: Store, filename: str) -> None:
    """Deletes the files of a removed wheel, once no page leads to them."""
    for key in (wheel_key(filename), metadata_key(filename)):
        store.discard(key)


# --- yank, remove, promote ---


def record_event(
    store: Store, filenames: Iterable[str], kind: Kind, reason: str, *, group: str | None = None
) -> tuple[list[str], list[str]]:
    """Adds an event to each wheel and shows it on all pages, or completes what an earlier call
    began.

    Saying again what is so already adds no event. A removal takes the wheels off all pages and
    deletes their bytes. `group`: where to, of a promotion. Gives the wheels, and the keys of the
    pages that were written.

    Raises:
        UsageError: There is no such wheel, or it was removed, or the reason is not a short line of
            text.
    """
    catalogue = check_store(store)
    if group is not None:
        check_group(group)
    changed: list[Wheel] = []
    for filename in dict.fromkeys(filenames):
        if kind == "remove":
            wheel = read_wheel(store, filename)
        else:
            wheel = _listed(store, filename)
        if group is not None and group not in wheel.groups:
            # Before the event, which stays.
            check_place(read_page(store, group, wheel.record.project), wheel)
        # The event first: it decides, and everything after it can be repeated by a second call.
        changed.append(Wheel(wheel.record, add_event(store, filename, kind, reason, group=group)))
    pages = Pages(store, catalogue)
    listed = defaultdict[str, dict[str, list[Wheel]]](lambda: defaultdict(list))
    for wheel in changed:
        for place in wheel.groups:
            listed[place][wheel.record.project].append(wheel)
    for place, projects in listed.items():
        pages.write(place, projects)
    for wheel in changed:
        if wheel.state.removed is not None:
            # After all pages: an installer that read a page a moment ago at worst gets a 404.
            delete_files(store, wheel.name)
    return [wheel.name for wheel in changed], sorted(pages.keys)


def _listed(store: Store, filename: str) -> Wheel:
    """A wheel that is on the page of its group; UsageError if it is not, or was removed."""
    wheel = read_wheel(store, filename)
    if wheel.state.removed is not None:
        raise UsageError(f"{filename} was removed: {wheel.state.removed}")
    # The record comes before the page: between the two a publish is under way, or was killed.
    page = read_page(store, wheel.record.groups[0], wheel.record.project)
    if page is None or filename not in page.entries:
        raise UsageError(
            f"{filename} is claimed and not yet listed in {wheel.record.groups[0]}: its publish "
            "did not finish",
            hint="publish it again, or run `farm index reconcile`",
        )
    return wheel


# --- many wheels ---


class Offer(NamedTuple):
    """A wheel that may be published: a file, or the name of one in another index, `source`.

    `record` is what the other index says of it, `reports` are the keys of its smoke tests there.
    """

    path: Path
    group: str
    channel: str | None = None
    record: Record | None = None
    source: Store | None = None
    reports: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Wheels that were published (or would be), and those that were left out, each with the
    reason.
    """

    wheels: tuple[str, ...]
    left_out: Mapping[str, str]


def in_folders(
    places: Iterable[Path], group: str, channel: str | None = None
) -> tuple[list[Offer], dict[str, str]]:
    """The wheels in folders and below them, and wheels that are named themselves; and what is none,
    with the reason.
    """
    offers: dict[str, Offer] = {}
    left_out: dict[str, str] = {}
    for place in places:
        if place.is_dir() and place.suffix != ".whl":
            found = sorted(place.rglob("*.whl"))
        else:
            found = [place]
        if not found or not (place.exists() or place.is_symlink()):
            raise UsageError(
                f"no wheels in {place}" if place.is_dir() else f"{place}: no such file or folder"
            )
        for path in found:
            before = offers.get(path.name)
            if not path.is_file():  # a pipe would be waited for
                if path.is_symlink():
                    kind = "a dangling link"
                elif path.is_dir():
                    kind = "a folder"
                else:
                    kind = "not a file"
                left_out[path.name] = f"{path} is {kind}"
            elif before is None:
                offers[path.name] = Offer(path, group, channel)
            elif before.path.resolve() != path.resolve():
                left_out[path.name] = f"{before.path} and {path} have the same name"
    return list(offers.values()), left_out


def in_index(source: Store, group: str | None = None) -> tuple[list[Offer], dict[str, str]]:
    """The wheels of another index, with their groups, records and smoke tests; not those that are
    yanked there.
    """
    wheels = read_all(source, [*source.list("records/"), *source.list("events/")])
    offers = list[Offer]()
    left_out = dict[str, str]()
    reports: dict[str, list[str]] = defaultdict(list)
    for key in source.list(SMOKE):
        reports[key.split("/")[1]].append(key)
    for name, (record, state) in wheels.items():
        if state.removed is not None or state.yanked is not False:
            left_out[name] = f"{name} is {'yanked' if state.removed is None else 'removed'} there"
        else:
            place = group or record.groups[0]
            offers.append(
                Offer(Path(name), place, record.channel, record, source, tuple(reports[name]))
            )
    return offers, left_out


def publish_all(
    store: Store,
    offers: Iterable[Offer],
    *,
    policy: Admission = PYPI_RULES,
    progress: Callable[[str], None] = lambda _name: None,
) -> Batch:
    """Publishes wheels, and leaves out those that may not be published here; `progress` gets the
    name of each.
    """
    offers = list(offers)
    for name in {
        each for offer in offers for each in (offer.group, offer.channel) if each is not None
    }:
        check_group(name)
    writer = _Writer(store, policy, progress)
    for offer in offers:
        try:
            writer.add(offer)
        except (PublishRefusedError, VerificationFailedError) as error:
            writer.left_out[offer.path.name] = str(error)
        except (InfrastructureError, UsageError):
            writer.flush()  # what was claimed before
            raise
    writer.flush()
    return Batch(tuple(writer.listed), writer.left_out)


class _Writer:
    """Wheels that are stored and wait to be listed together."""

    def __init__(self, store: Store, policy: Admission, progress: Callable[[str], None]) -> None:
        self.store = store
        self.policy = policy
        self.progress = progress
        self.pages = Pages(store, check_store(store))
        self.shown: dict[tuple[str, str], ProjectPage] = {}
        """The pages as they will be, with those that wait."""
        self.waiting: dict[str, dict[str, list[Wheel]]] = {}
        self.listed: list[str] = []
        self.left_out: dict[str, str] = {}

    def add(self, offer: Offer) -> None:
        """Claims the name and stores the files; what is listed already is not fetched again."""
        try:
            project, _version = parse_wheel_name(offer.path.name)
        except ValueError as error:
            raise PublishRefusedError(str(error)) from error
        page = self._page(offer.group, project)
        there = None if page is None else page.entries.get(offer.path.name)
        projects = self.waiting.setdefault(offer.group, {})
        if (
            there is not None
            and offer.record is not None
            and offer.record.sha256 == there.hashes.sha256
        ):
            self._copy_reports(offer)
            projects.setdefault(
                project, []
            )  # all that follows from the page is looked at: a call may have been killed
            return
        with temporary_folder("farm-publish-") as folder:
            ours = self._describe(offer, folder)
            if there is not None and there.hashes.sha256 == ours.record.sha256:
                projects.setdefault(project, [])
                return
            check_name(
                project, self.pages.known.names | {name for _, name in self.shown}, self.policy
            )
            check_place(page, Wheel(ours.record))
            claimed = claim(self.store, ours)
        self._copy_reports(offer)
        projects.setdefault(project, []).append(claimed.wheel)
        self.shown[offer.group, project] = pages.updated(page, project, [claimed.wheel]).page
        if sum(len(one) for group in self.waiting.values() for one in group.values()) >= max(
            FEWEST, len(self.listed)
        ):
            self.flush()

    def _describe(self, offer: Offer, folder: Path) -> Checked:
        """The wheel, fetched where it is in another index; its provenance and upload time are those
        of its record.
        """
        before = offer.record
        now = datetime.now(UTC)
        ours = describe(
            offer.path
            if offer.source is None or before is None
            else _fetched(offer.source, before, folder),
            group=offer.group,
            upload_time=now
            if before is None
            else min(datetime.fromisoformat(before.upload_time), now),
            provenance={} if before is None else before.provenance,
            channel=offer.channel,
            policy=self.policy,
        )
        if before is not None:
            return ours
        record = ours.record.model_copy(update={"provenance": {PREDICATE: _adopted(ours.record)}})
        return ours._replace(record=record)

    def _copy_reports(self, offer: Offer) -> None:
        for key in offer.reports:
            if offer.source is not None and (found := offer.source.get(key)) is not None:
                self.store.create(key, found.data, content_type="application/json")

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for group, projects in (
            (group, projects) for group, projects in waiting.items() if projects
        ):
            self.pages.refused = {}
            self.pages.write(group, projects)
            self.left_out |= self.pages.refused
            take_back(self.store, self.pages.refused)
            names = [each.name for wheels in projects.values() for each in wheels]
            names = [name for name in names if name not in self.pages.refused]
            self.listed += names
            for name in names:
                self.progress(name)

    def _page(self, group: str, project: str) -> ProjectPage | None:
        if (group, project) not in self.shown:
            page = read_page(self.store, group, project)
            if page is None:
                return None
            self.shown[group, project] = page
        return self.shown[group, project]


def _fetched(source: Store, record: Record, folder: Path) -> Path:
    digest = hashlib.sha256()
    path = folder / record.filename
    with path.open("wb") as file:
        for chunk in source.chunks(wheel_key(record.filename)):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != record.sha256:
        raise VerificationFailedError(
            f"{source.url(wheel_key(record.filename))} is not as its record says"
        )
    return path


def _adopted(record: Record) -> dict[str, Any]:
    """The SLSA predicate of a wheel that was not built here: what it was taken from."""
    definition = {
        "buildType": "urn:torch-farm:adopted:v1",
        "externalParameters": {"wheel": record.filename},
        "resolvedDependencies": [{"uri": record.filename, "digest": {"sha256": record.sha256}}],
    }
    return {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:torch-farm"}}}
