"""Builds the site: a set of files, and only those that changed are written into the index's store."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import FarmError, InfrastructureError
from farm.index.pages import catalogue_schema
from farm.index.standing import KEY, Standing, Test, render
from farm.index.stores import Store
from farm.plan.evidence import Evidence, load_evidence
from farm.plan.matrix import Channel, load_matrix
from farm.site import answers, pages
from farm.site.wheels import STATES, Wheel

MANIFEST = "site/manifest.json"
"""What the site's files hashed to when they were last written: a rebuild reads this alone."""

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
    return [], Evidence([])


def _standing(wheel: Wheel) -> Standing:
    tests = tuple(Test(where=test.where, date=test.date, outcome=test.outcome) for test in wheel.tests)
    return Standing(state=STATES[wheel.state], tests=tests)


def write(store: Store, made: Mapping[str, bytes]) -> Written:
    """Write what changed since the last time; the manifest goes last, so that a killed writer is made good next time.

    Raises:
        InfrastructureError: The store failed, or someone else wrote the same file all the time.
    """
    # One request says what all files were: the store is asked for none that has not changed.
    stored = store.get(MANIFEST)
    before = _manifest(stored.data if stored else None)
    digests = {key: hashlib.sha256(data).hexdigest() for key, data in made.items()}
    changed = tuple(key for key, digest in digests.items() if before.get(key) != digest)
    for key in changed:
        _put(store, key, made[key])
    if changed:
        # With `before`: pages of projects that are gone stay in the store, and known.
        _put(store, MANIFEST, json.dumps({**before, **digests}, sort_keys=True, indent=0).encode())
    return Written(len(made), changed)


def _manifest(data: bytes | None) -> dict[str, str]:
    try:
        known = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}  # not ours or damaged: everything is written again
    return {key: value for key, value in known.items() if isinstance(value, str)} if isinstance(known, dict) else {}


def _put(store: Store, key: str, data: bytes) -> None:
    content_type = TYPES[Path(key).suffix]
    for _ in range(TRIES):
        there = store.get(key)
        if there is not None and there.data == data:
            return
        # Only where it is still what was read: someone else may build the site at the same time.
        if store.replace(key, data, there.etag if there else None, content_type=content_type):
            return
    raise InfrastructureError(f"{key}: another process keeps writing it", hint="run `farm site build` again")
