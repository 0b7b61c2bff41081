"""Builds the site: a set of files, and only those that changed are written into the index's store."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import FarmError, InfrastructureError
from farm.index.pages import catalogue_schema
from farm.index.standing import KEY, Standing, Test, render
from farm.index.stores import Store
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.matrix import Channel, load_matrix
from farm.site import answers, pages
from farm.site.tested import REQUESTS
from farm.site.wheels import STATES, Wheel

TRIES = 5
TYPES = {".html": "text/html; charset=utf-8", ".json": "application/json"}


class Written(NamedTuple):
    """How many files the site has, and the keys of those that were written now."""

    files: int
    changed: tuple[str, ...]


Source = Callable[[str], tuple[str, ...]]
"""Group -> the options by which pip finds its wheels."""


def files(there: Sequence[Wheel], *, project: Path | None, source: Source, root: str) -> dict[str, bytes]:
    """Every file of the site by its key below the index's root. The same data give the same bytes.

    Args:
        there: The index's wheels, newest first (`farm.site.wheels.with_tests`).
        project: The project whose channels could be built; None: none.
        source: Group -> pip's options for it.
        root: The address of the index's root, ending in a slash.
    """
    made: dict[str, bytes] = {}
    channels, evidence = _offered(project)
    made["index.html"] = pages.index_page(answers.data(project, there), there, channels, evidence, root).encode()
    sources = {group: source(group) for group in sorted({group for wheel in there for group in wheel.groups})}
    for name, found in pages.of_project(there).items():
        made[pages.project_key(name)] = pages.project_page(name, found, sources).encode()
    made[KEY] = render({wheel.filename: _standing(wheel) for wheel in there if wheel.withdrawn is None})
    made["catalog.schema.json"] = json.dumps(catalogue_schema(), indent=2).encode()
    return made


def _offered(project: Path | None) -> tuple[list[Channel], Evidence]:
    try:
        if project is not None:
            return list(load_matrix(project).channels.values()), load_evidence(project)
    except FarmError:  # what is in the index is shown whatever the matrix says
        pass
    return [], Evidence(())


def _standing(wheel: Wheel) -> Standing:
    tests = tuple(Test(where=test.where, date=test.date, outcome=test.outcome) for test in wheel.tests)
    return Standing(state=STATES[wheel.state], tests=tests)


def write(store: Store, made: Mapping[str, bytes]) -> Written:
    """Write what differs from what is there.

    Raises:
        InfrastructureError: The store failed, or someone else wrote the same file all the time.
    """
    with ThreadPoolExecutor(REQUESTS) as pool:
        written = pool.map(lambda key: _put(store, key, made[key]), made)
        return Written(len(made), tuple(key for key, changed in zip(made, written, strict=True) if changed))


def _put(store: Store, key: str, data: bytes) -> bool:
    content_type = TYPES[Path(key).suffix]
    for _ in range(TRIES):
        there = store.get(key)
        if there is not None and there.data == data:
            return False
        # Only where it is still what was read: someone else may build the site at the same time.
        if store.replace(key, data, there.etag if there else None, content_type=content_type):
            return True
    raise InfrastructureError(f"{key}: another process keeps writing it", hint="run `farm site build` again")
