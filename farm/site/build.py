"""Builds the site: a set of files, and only those that changed are written into the index's store."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import InfrastructureError
from farm.base.text import plain_lines
from farm.index.pages import catalogue_schema
from farm.index.standing import KEY, Standing, Test, render
from farm.index.stores import Store
from farm.site import charts, pages
from farm.site.conflicts import conflicts
from farm.site.feed import feed
from farm.site.offers import Offer, by_builds
from farm.site.payload import Source, payload
from farm.site.state import STATES, Known, RunView

MANIFEST = "site/manifest.json"
"""Hashes of the site's files when they were last written: a rebuild reads this alone."""

MAX_LOG = 256 * 1024  # bytes of a log's end that are shown
TRIES = 5
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/atom+xml",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Written(NamedTuple):
    """How many files the site has, and the keys of those that were written now."""

    files: int
    changed: tuple[str, ...]


def files(offered: Sequence[Offer], known: Known, *, source: Source, links: Source, root: str) -> dict[str, bytes]:
    """Every file of the site by its key below the index's root. The same data give the same bytes.

    Args:
        offered: Every build of the matrix.
        known: The index's wheels and the journal's runs.
        source: Group of a variant -> pip's options for it.
        links: Group of a variant -> pip's options for its page of links.
        root: The address of the index's root, ending in a slash.
    """
    data = payload(offered, conflicts(offered), known, source, links)
    made: dict[str, bytes] = {}
    linked = {run.id: tuple(_texts(run, made)) for run in known.runs[: pages.SHOWN_RUNS]}
    made["index.html"] = pages.selector(data, offered, known).encode()
    made["farm.html"] = pages.farm_page(offered, known, linked, root).encode()
    standings = _standings(offered, known)
    made["feed.xml"] = feed(known.wheels, {name: said.state for name, said in standings.items()}, root)
    made[KEY] = render(standings)
    made["catalog.schema.json"] = json.dumps(catalogue_schema(), indent=2).encode()
    made |= badges(offered, known)
    return made


def _standings(offered: Sequence[Offer], known: Known) -> dict[str, Standing]:
    return {
        wheel.filename: Standing(
            state=STATES[known.tested(offer)],
            tests=tuple(Test(where=s.where, date=s.date, outcome=s.outcome) for s in known.smokes(offer)),
        )
        for offer in offered
        if (wheel := known.wheel(offer))
    }


def badges(offered: Sequence[Offer], known: Known) -> dict[str, bytes]:
    """A badge a variant, of the best build of its main package: `badges/sm35-avx-py311.svg`."""
    order, packages = list(STATES), by_builds(offered)
    best: dict[str, tuple[int, Offer]] = {}
    for offer in offered:
        if not offer.blocked:
            # The package first, then its best state: torch that is published counts more than a tested companion.
            rank = packages.index(offer.package) * len(order) + order.index(known.state(offer)[0])
            if offer.variant not in best or rank < best[offer.variant][0]:
                best[offer.variant] = (rank, offer)
    made = {}
    for variant, (_, offer) in best.items():
        state = known.state(offer)[0]
        right = STATES[state]
        if known.wheel(offer):
            right = f"{offer.package} {offer.version.partition('+')[0]}: {STATES[known.tested(offer)]}"
        made[f"badges/{variant}.svg"] = charts.badge(variant, right, state).encode()
    return made


def _texts(run: RunView, made: dict[str, bytes]) -> list[tuple[str, str]]:
    """The run's logs and reports as plain text beside the page: no terminal control, the end of a long one."""
    links = []
    for path in run.files:
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
                stream.seek(max(0, size - MAX_LOG))
                raw = stream.read(MAX_LOG)
        except OSError:
            continue  # it went away since it was listed
        cut = f"[the last {MAX_LOG >> 10} KiB of {size / 1e6:.1f} MB]\n" if size > MAX_LOG else ""
        text = cut + plain_lines(raw.decode("utf-8", "replace"))
        key = f"runs/{run.id}/{path.name}.txt"
        made[key] = text.encode()
        links.append((path.name, key))
    return links


def write(store: Store, made: Mapping[str, bytes]) -> Written:
    """Write what changed since the last time; the manifest goes last, so that a killed writer is made good next time.

    Raises:
        InfrastructureError: The store failed, or somebody else wrote the same file all the time.
    """
    # One request says what all files were: the store is asked for none that has not changed.
    stored = store.get(MANIFEST)
    before = _manifest(stored.data if stored else None)
    digests = {key: hashlib.sha256(data).hexdigest() for key, data in made.items()}
    changed = tuple(key for key, digest in digests.items() if before.get(key) != digest)
    for key in changed:
        _put(store, key, made[key])
    if changed:
        # With `before`: files of runs that are no longer on the page stay in the store, and known.
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
        # Only where it is still what was read: somebody else may build the site at the same time.
        if store.replace(key, data, there.etag if there else None, content_type=content_type):
            return
    raise InfrastructureError(f"{key}: another process keeps writing it", hint="run `farm site build` again")
