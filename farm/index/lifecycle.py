"""Changes of published wheels: yank, remove, promote, prune.

Each is an event first, which decides it; pages and bytes follow. So a command that was killed anywhere is completed by
running it again, or by `farm index reconcile`. A removed wheel's record stays: its name is taken for ever.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from farm.base.errors import UsageError
from farm.index.layout import (
    check_group,
    json_page_of,
    metadata_key,
    parse_wheel_name,
    wheel_key,
    without_rebuild,
)
from farm.index.pages import File, ProjectPage, parse_page, read_page
from farm.index.publish import Pages, check_place, check_store, delete_files
from farm.index.records import Kind, Record, State, Wheel, add_event, read_wheel
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
    filenames: Iterable[str],
    kind: Kind,
    reason: str,
    *,
    group: str | None = None,
    unless: Callable[[Wheel], bool] = lambda _wheel: False,
) -> tuple[list[str], list[str]]:
    """Adds an event to each wheel and shows it on all pages, or completes what an earlier call began.

    Saying again what is so already adds no event. A removal takes the wheels off all pages and deletes their bytes.

    `group`: where to, of a promotion. `unless` says of which wheels it is not true after all.

    Returns:
        The wheels, and the pages that show it, by key.

    Raises:
        UsageError: There is no such wheel, or it was removed, or the reason is not a short line of text.
    """
    catalogue = check_store(store)
    if group is not None:
        check_group(group)
    changed: list[Wheel] = []
    for filename in dict.fromkeys(filenames):
        wheel = read_wheel(store, filename) if kind == "remove" else _listed(store, filename)
        if group is not None and group not in wheel.groups:
            # Before the event, which stays.
            check_place(read_page(store, group, wheel.record.project), wheel)
        # The event first: it decides, and everything after it can be repeated by a second call.
        kept = partial(_kept, wheel.record, unless)
        state = add_event(store, filename, kind, reason, group=group, unless=kept)
        if kind != "remove" or state.removed is not None:
            changed.append(Wheel(wheel.record, state))
    pages, shown = Pages(store, catalogue), list[str]()
    for place, projects in _by_place(changed).items():
        shown += pages.write(place, projects).keys
    for wheel in changed:
        if wheel.state.removed is not None:
            # After all pages: an installer that read a page a moment ago at worst gets a 404.
            delete_files(store, wheel.name)
    return [wheel.name for wheel in changed], sorted(shown)


def _kept(record: Record, unless: Callable[[Wheel], bool], now: State) -> bool:
    return unless(Wheel(record, now))


def _by_place(wheels: Iterable[Wheel]) -> dict[str, dict[str, list[Wheel]]]:
    """Group -> project -> wheels."""
    found: dict[str, dict[str, list[Wheel]]] = defaultdict(lambda: defaultdict(list))
    for wheel in wheels:
        for group in wheel.groups:
            found[group][wheel.record.project].append(wheel)
    return found


def _listed(store: Store, filename: str) -> Wheel:
    """A wheel that is on the page of its group; UsageError if it is not, or was removed."""
    wheel = read_wheel(store, filename)
    if wheel.state.removed is not None:
        raise UsageError(f"{filename} was removed: {wheel.state.removed}")
    # The record comes before the page: between the two a publish is under way, or was killed.
    page = read_page(store, wheel.record.groups[0], wheel.record.project)
    if page is None or filename not in page.entries:
        raise UsageError(
            f"{filename} is claimed and not yet listed in {wheel.record.groups[0]}: its publish did not finish",
            hint="publish it again, or run `farm index reconcile`",
        )
    return wheel


def prune(store: Store, filenames: Iterable[str]) -> list[str]:
    """Removes wheels that rules took, but for those that somebody promoted since; gives those that were removed."""
    return record_event(store, filenames, "remove", "pruned", unless=lambda wheel: len(wheel.groups) > 1)[0]


def prunable(store: Store, rules: Retention, *, now: datetime | None = None, group: str | None = None) -> list[str]:
    """The wheels that retention rules take, by name; none that was promoted to another group.

    Those too whose removal was killed before their bytes went.

    `now` is the clock's for None, `group` all for None.

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
            killed |= {name for name in gone if {wheel_key(name), metadata_key(name)} & present}
    old = [n for n, file in taken.items() if file.upload_time and datetime.fromisoformat(file.upload_time) < before]
    # In two groups: somebody promoted it, and a rule for one group does not take it out of another.
    return sorted({name for name in old if len(places[name]) == 1} | killed)


def _own_pages(store: Store, present: Collection[str]) -> Iterator[tuple[str, ProjectPage]]:
    """Group and JSON page of every project."""
    for key in sorted(present):
        place = json_page_of(key)
        if place is not None and (found := store.get(key)) is not None:
            yield place[0], parse_page(found.data, key)


def _taken(page: ProjectPage, rules: Retention) -> Iterator[File]:
    """The wheels of a project but for the newest, in lines of which `keep` stay."""
    lines: dict[tuple[str, ...], dict[str, list[File]]] = defaultdict(lambda: defaultdict(list))
    for file in page.files:
        _name, version, tags = file.filename.removesuffix(".whl").split("-", 2)
        parsed = parse_wheel_name(file.filename)[1]
        if rules.rebuilds:
            # A line is what replaces one another: rebuilds of one version with the same tags.
            lines[without_rebuild(version), tags][version].append(file)
        if parsed.is_prerelease if rules.pre else not rules.rebuilds:
            lines[("",)][without_rebuild(version)].append(file)
    for line in lines.values():
        ordered = sorted(line.values(), key=lambda files: parse_wheel_name(files[0].filename)[1])
        # The newest `keep` of each line stay; several files of one version count once.
        for files in ordered[: -rules.keep]:
            yield from files
