"""Changes of published wheels: yank, remove, promote.

Each is an event first, which decides it; pages and bytes follow. So a command that was killed
anywhere is completed by running it again, or by `farm index reconcile`. The record of a removed
wheel stays: its name is taken for ever.
"""

from collections import defaultdict
from collections.abc import Iterable

from farm.base.errors import UsageError
from farm.index.layout import check_group
from farm.index.page_writer import PageWriter
from farm.index.pages import read_page
from farm.index.publish import check_place, check_store, delete_files
from farm.index.records import Kind, Wheel, WheelsByPlace, add_event, read_wheel
from farm.index.stores import Store


def record_event(
    store: Store, filenames: Iterable[str], kind: Kind, reason: str, *, group: str | None = None
) -> tuple[list[str], list[str]]:
    """Add an event to each wheel and show it on all pages, or complete what an earlier call began.

    Saying again what is so already adds no event. A removal takes the wheels off all pages and
    deletes their bytes.

    Args:
        store: The index.
        filenames: The wheels.
        kind: What happened.
        reason: One line of text for people.
        group: Where to, for a promotion.

    Returns:
        The wheels, and the keys of the pages that were written.

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
            wheel = _listed_wheel(store, filename)
        if group is not None and group not in wheel.groups:
            # Asked before the event, which stays.
            check_place(read_page(store, group, wheel.record.project), wheel)
        # The event first: it decides, and everything after it can be repeated by a second call.
        state = add_event(store, filename, kind, reason, group=group)
        changed.append(Wheel(wheel.record, state))
    writer = PageWriter(store, catalogue)
    for place, projects in _by_place(changed).items():
        writer.write(place, projects)
    for wheel in changed:
        if wheel.state.removed is not None:
            # After all pages: an installer that read a page a moment ago at worst gets a 404.
            delete_files(store, wheel.name)
    return [wheel.name for wheel in changed], sorted(writer.written)


def _by_place(wheels: Iterable[Wheel]) -> WheelsByPlace:
    """The wheels by group and project."""
    places: WheelsByPlace = defaultdict(lambda: defaultdict(list))
    for wheel in wheels:
        for group in wheel.groups:
            places[group][wheel.record.project].append(wheel)
    return places


def _listed_wheel(store: Store, filename: str) -> Wheel:
    """A wheel that is on the page of its group; UsageError if it is not, or was removed."""
    wheel = read_wheel(store, filename)
    if wheel.state.removed is not None:
        raise UsageError(f"{filename} was removed: {wheel.state.removed}")
    # The record comes before the page: between the two a publish is running, or was killed.
    page = read_page(store, wheel.record.groups[0], wheel.record.project)
    if page is None or filename not in page.entries:
        raise UsageError(
            f"{filename} is claimed and not yet listed in {wheel.record.groups[0]}: its publish "
            "did not finish",
            hint="publish it again, or run `farm index reconcile`",
        )
    return wheel
