"""Changes of published wheels: yank, remove, promote.

Each is an event first, which decides it; pages and bytes follow. So a command that was killed anywhere is completed by
running it again, or by `farm index reconcile`. A removed wheel's record stays: its name is taken for ever.
"""

from collections import defaultdict
from collections.abc import Iterable

from farm.base.errors import UsageError
from farm.index.layout import check_group
from farm.index.pages import read_page
from farm.index.publish import Pages, check_place, check_store, delete_files
from farm.index.records import Kind, Wheel, add_event, read_wheel
from farm.index.stores import Store


def record_event(
    store: Store,
    filenames: Iterable[str],
    kind: Kind,
    reason: str,
    *,
    group: str | None = None,
) -> tuple[list[str], list[str]]:
    """Adds an event to each wheel and shows it on all pages, or completes what an earlier call began.

    Saying again what is so already adds no event. A removal takes the wheels off all pages and deletes their bytes.

    `group`: where to, of a promotion.

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
        changed.append(Wheel(wheel.record, add_event(store, filename, kind, reason, group=group)))
    pages, shown = Pages(store, catalogue), list[str]()
    for place, projects in _by_place(changed).items():
        shown += pages.write(place, projects).keys
    for wheel in changed:
        if wheel.state.removed is not None:
            # After all pages: an installer that read a page a moment ago at worst gets a 404.
            delete_files(store, wheel.name)
    return [wheel.name for wheel in changed], sorted(shown)


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
