"""The data of the page's search: `official.facts`, what the index has for a card, and what could be built for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farm import catalog
from farm.base.errors import FarmError
from farm.plan.compat import official
from farm.plan.recommend import machine_of, own_builds
from farm.site.wheels import Wheel

LIMIT = 6
"""Builds of a card in the data: for an old driver some of the first three may be none."""


def data(project: Path | None, there: Sequence[Wheel]) -> dict[str, Any]:
    """Data that answers.js and page.js read."""
    newest: dict[tuple[str, str], list[Wheel]] = {}
    for wheel in there:
        for group in wheel.groups if wheel.withdrawn is None else ():
            newest.setdefault((wheel.project, group), []).append(wheel)
    rows = [
        [
            name,
            group,
            found[0].version,
            list(found[0].sms),
            sorted({wheel.tags[0] for wheel in found}),
            found[0].report.code if found[0].report else "",
            found[0].without,
        ]
        for (name, group), found in sorted(newest.items())
    ]
    return official.facts() | {"there": rows, "own": own(project) if project else {}}


def own(project: Path) -> dict[str, dict[str, list[list[str]]]]:
    """By platform and SM, builds of which `farm why --official` names the first three that the driver runs.

    Release, CUDA, how far it was proved, words, the first driver that runs it, what the official wheel has beside it.
    """
    found: dict[str, dict[str, list[list[str]]]] = {}
    for place in official.PLATFORMS:
        for name in catalog.architectures().architectures:
            sm = int(name.removeprefix("sm"))
            try:
                builds = own_builds(project, machine_of((sm,), place), limit=LIMIT)
            except FarmError:  # a matrix that cannot be read: the rest of the page stands without it
                return {}
            if builds:
                found.setdefault(place, {})[str(sm)] = [
                    [
                        each.torch,
                        str(each.cuda),
                        f"{each.standing}; {each.cost}",
                        each.words,
                        each.driver or "0",
                        each.without,
                    ]
                    for each in builds
                ]
    return found
