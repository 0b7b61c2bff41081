"""What an operator does with wheels after they were published: yank, quarantine, remove, prune, promote.

Each is an event first (`farm.index.events`), which decides it; pages, signatures and bytes follow. So a command that
was killed anywhere is completed by running it again, or by `farm index reconcile`. A removed wheel's record stays: its
name is taken for ever.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from packaging.utils import canonicalize_name

from farm.base.errors import UsageError
from farm.index import naming, pages
from farm.index.admission import check_place
from farm.index.catalogue import without_rebuild
from farm.index.events import (
    Kind,
    State,
    add_event,
    copies_of,
    groups_of,
    list_wheels,
    read_listed,
    read_record,
    show_project,
    state_of,
)
from farm.index.listing import Listing
from farm.index.pages import File, ProjectPage
from farm.index.records import Record
from farm.index.signing import Signer
from farm.index.stores import Store


class Retention(NamedTuple):
    """Which wheels `prune` takes.

    Attributes:
        keep: How many of the newest stay: versions of each project, or rebuilds of each version and tag.
        older_than: How long ago a wheel must have been published at least.
        pre: Pre-releases.
        rebuilds: Wheels that a newer rebuild replaces. With neither of the two: every version.
    """

    keep: int
    older_than: timedelta = timedelta(0)
    pre: bool = False
    rebuilds: bool = False


def record_event(
    store: Store,
    target: str,
    kind: Kind,
    reason: str,
    *,
    mirrors: Sequence[str] | None = None,
    signer: Signer | None = None,
    time: datetime | None = None,
) -> dict[str, bytes]:
    """Adds an event and shows it on all pages, or completes what an earlier call began.

    Saying again what is so already adds no event. `mirrors`, of an event of that kind: those of a project, all of them.

    Returns:
        The pages that show it, by key.

    Raises:
        UsageError: There is no such wheel or project, or the reason is not a short line of text, or a mirror not a URL.
        InfrastructureError: The store failed; run it again.
    """
    listing = Listing(store, signer)
    if not target.endswith(".whl"):
        target = canonicalize_name(target)  # as its page is called, however it was written
    elif kind == "mirrors":
        raise UsageError(f"mirrors are those of a project, and {target[:200]!r} is a wheel's file name")
    record = None
    if target.endswith(".whl"):
        record, _state = read_listed(store, target)
    elif kind in {"yank", "unyank"}:
        raise UsageError(f"{kind} is for one wheel, and {target[:200]!r} is not a wheel's file name")
    elif not any(target in listing.known.listed(group) for group in (*listing.known.groups, *listing.known.links)):
        _groups_of(store, target)  # it may be on a page that the catalogue does not have yet
    whole = None if mirrors is None else tuple(dict.fromkeys(each.rstrip("/") for each in mirrors))
    state = add_event(store, target, kind, reason, time or datetime.now(UTC), mirrors=whole)
    shown: dict[str, bytes] = {}
    # Groups after the event: whoever lists the target in a further one from now on reads it.
    if record is not None:
        shown |= _list(listing, record)
        for copy in copies_of(store, record.project, {target}):
            shown |= _list(listing, copy)
        return shown
    for group in _groups_of(store, target):
        shown |= show_project(listing, group, target, state).pages
    return shown


def _list(listing: Listing, record: Record) -> dict[str, bytes]:
    """Shows all that was said of a wheel on its page of each group."""
    state = state_of(listing.store, record)
    shown: dict[str, bytes] = {}
    for group in groups_of(record, state):
        shown |= list_wheels(listing, [record], group, {record.filename: state}).pages
    return shown


def _groups_of(store: Store, project: str) -> list[str]:
    """The groups that have the project, from the pages themselves: a catalogue leaves out what is withheld."""
    suffix = f"/v1-json/{project}/index.json"
    groups = sorted({key.split("/")[1] for key in store.list("whl/") if key.endswith(suffix) and key.count("/") == 4})
    if not groups:
        raise UsageError(f"no project {project[:200]!r} is in the index", hint="catalog.json lists what is")
    return groups


def remove(store: Store, filenames: Collection[str], reason: str, *, signer: Signer | None = None) -> dict[str, bytes]:
    """Takes wheels off all pages and deletes their bytes; their names stay taken.

    Returns:
        The pages that changed, by key.

    Raises:
        UsageError: One of them is not in the index, or the reason is not a short line of text.
    """
    listing, now = Listing(store, signer), datetime.now(UTC)
    listed: dict[tuple[str, str], dict[str, File]] = defaultdict(dict)
    records = [read_record(store, filename) for filename in filenames]
    by_project: dict[str, set[str]] = defaultdict(set)
    states: dict[str, State] = {}
    for record in records:
        # The event first: it decides, and everything after it can be repeated by a second call.
        states[record.filename] = add_event(store, record.filename, "remove", reason, now)
        by_project[record.project].add(record.filename)
    # Copies first: what is left of a wheel says to the next run that its removal was killed.
    records = [copy for project, names in by_project.items() for copy in copies_of(store, project, names)] + records
    for record in records:
        for group in groups_of(record, states.get(record.filename, State())):
            listed[group, record.project][record.filename] = record.file()
    shown: dict[str, bytes] = {}
    for (group, project), files in sorted(listed.items()):

        def change(page: ProjectPage | None, project: str = project, files: Mapping[str, File] = files) -> ProjectPage:
            # Not only wheels that are listed: somebody may be about to list one, and is refused then.
            return pages.without(page or pages.empty(project), files)

        shown |= listing.change(group, project, change).pages
    for record in records:
        # After all pages: an installer that read a page a moment ago at worst gets a 404.
        delete_bytes(store, record.filename)
    return shown


def prune(store: Store, filenames: Iterable[str], *, signer: Signer | None = None) -> list[str]:
    """Removes wheels that rules took, but for those that somebody promoted since.

    Returns:
        Those that were removed.
    """
    taken, now = [], datetime.now(UTC)
    for filename in filenames:
        record = read_record(store, filename)
        kept = partial(_is_promoted, record)
        if add_event(store, filename, "remove", "pruned", now, unless=kept).removed is not None:
            taken.append(filename)
    remove(store, taken, "pruned", signer=signer)
    return taken


def _is_promoted(record: Record, state: State) -> bool:
    return len(groups_of(record, state)) > 1


def delete_bytes(store: Store, filename: str) -> None:
    """Deletes the files of a removed wheel, once no page leads to them."""
    for key in (pages.wheel_key(filename), pages.metadata_key(filename)):
        store.discard(key)
    for key in list(store.list(f"whl/attestations/{filename}/")):
        store.discard(key)


def promote(store: Store, filenames: Iterable[str], group: str, *, signer: Signer | None = None) -> dict[str, bytes]:
    """Lists wheels in a further group, a release root for one; their bytes stay where they are.

    Returns:
        The pages that changed, by key.

    Raises:
        UsageError: One of them is not in the index, was removed, or the name of the group is bad.
    """
    naming.check_group(group)
    shown: dict[str, bytes] = {}
    for filename in filenames:
        record, state = read_listed(store, filename)
        if record.source is not None:
            raise UsageError(f"{filename} is a copy of {record.source} for whl/variant/ alone: promote that wheel")
        if group not in groups_of(record, state):
            key = pages.json_key(group, record.project)
            page = store.get(key)
            # Before the event, which stays.
            check_place(None if page is None else pages.parse_page(page.data, key), record.project, filename)
            state = add_event(store, filename, "promote", "", datetime.now(UTC), group=group)
        for each in groups_of(record, state):
            shown |= list_wheels(Listing(store, signer), [record], each, {record.filename: state}).pages
        for copy in copies_of(store, record.project, {filename}):
            # They stay where they are, but their page counts the events about the wheel.
            shown |= _list(Listing(store, signer), copy)
    return shown


def prunable(store: Store, rules: Retention, *, now: datetime | None = None, group: str | None = None) -> list[str]:
    """The wheels that retention rules take, by name; none that was promoted to another group.

    Those too whose removal was killed before their bytes went.

    Args:
        store: The index.
        rules: What to take.
        now: The time from which ages are counted; the clock's for None.
        group: One group; None for all.

    Raises:
        UsageError: `keep` is under 1.
    """
    if rules.keep < 1:
        raise UsageError("prune keeps at least one: --keep 1")
    before = (now or datetime.now(UTC)) - rules.older_than
    places: dict[str, set[str]] = defaultdict(set)
    taken: dict[str, File] = {}
    present = frozenset(store.list("whl/"))
    killed: set[str] = set()
    for place, page in _own_pages(store, present):
        for name in page.entries:
            places[name].add(place)
        if group in {None, place}:
            taken |= {file.filename: file for file in _taken(page, rules)}
            gone = {file.filename for file in page.removed or ()}
            killed |= {name for name in gone if {pages.wheel_key(name), pages.metadata_key(name)} & present}
    old = [name for name, file in taken.items() if file.upload_time and _time(file.upload_time) < before]
    # In two groups: somebody promoted it, and a rule for one group does not take it out of another.
    return sorted({name for name in old if len(places[name]) == 1} | killed)


def _own_pages(store: Store, present: Collection[str]) -> Iterator[tuple[str, ProjectPage]]:
    """Group and JSON page of every project that is not a page of links."""
    for key in sorted(present):
        parts = key.split("/")
        if len(parts) != 5 or parts[2] != "v1-json" or parts[1] == naming.VARIANTS:  # copies go with their wheels
            continue
        if (found := store.get(key)) is not None:
            page = pages.parse_page(found.data, key)
            if not page.meta.links:
                yield parts[1], page


def _taken(page: ProjectPage, rules: Retention) -> Iterator[File]:
    """The wheels of a project but for the newest, in lines of which `keep` stay."""
    lines: dict[tuple[str, ...], dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    for file in page.entries.values():
        _name, version, tags = file.filename.removesuffix(".whl").split("-", 2)
        parsed = naming.parse_wheel_name(file.filename)[1]
        if rules.rebuilds:
            # A line is what replaces one another: rebuilds of one version with the same tags.
            lines[without_rebuild(version), tags][version].append(file)
        if parsed.is_prerelease if rules.pre else not rules.rebuilds:
            lines[("",)][without_rebuild(version)].append(file)
    for line in lines.values():
        ordered = sorted(line.values(), key=lambda files: naming.parse_wheel_name(files[0].filename)[1])
        # The newest `keep` of each line stay; several files of one version count once.
        for files in ordered[: -rules.keep]:
            yield from files


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
