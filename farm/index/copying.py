"""Copies an index to another store: a mirror, a backup, a move. Run again it copies what is missing.

What nothing else follows from travels: records, events, wheels and their `.metadata`, each compared with its digest,
the public keys, and pages of links to other indexes. Other pages do not: `reconcile` writes them at the destination,
signed with the destination's key.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farm.base.errors import PublishRefusedError, VerificationFailedError
from farm.base.temporary import temporary_folder
from farm.index import pages
from farm.index.events import bring_events, fold, groups_of, read_events
from farm.index.keys import newest_root, online_keys, remember_online, root_key
from farm.index.probe import prove
from farm.index.reconcile import reconcile
from farm.index.records import Record, parse_record
from farm.index.signing import Signer
from farm.index.stores import Store


class Copied(NamedTuple):
    """Wheels whose bytes were copied (or would be), and names that stand for other bytes at the destination."""

    wheels: tuple[str, ...]
    taken: tuple[str, ...]


def copy_index(
    source: Store,
    destination: Store,
    *,
    group: str | None = None,
    signer: Signer | None = None,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _name: None,
) -> Copied:
    """Copies all wheels, or those listed in one group, with their events; then rebuilds the destination's pages.

    Args:
        source: Where from; only read.
        destination: Where to; it may hold other wheels too.
        group: One group; None for all.
        signer: Signs the destination.
        dry_run: Only say what is missing.
        progress: Gets the name of each wheel that was copied.

    Raises:
        VerificationFailedError: An object of the source does not match its record; what came before it is copied.
        InfrastructureError: A store failed; run it again.
    """
    if not dry_run:
        prove(destination)
    present = frozenset(destination.list(""))
    copied, taken = [], []
    targets = {key.split("/")[1] for key in source.list("events/")}
    for key in sorted(source.list("records/")):
        record = _record(source, key)
        said = {name: read_events(source, name) for name in (record.filename, record.source) if name in targets}
        state = fold(said.get(record.filename, []))
        if group is not None and group not in groups_of(record, state):
            continue
        theirs = _record(destination, key) if key in present else record
        # A name is never given to other bytes, in a copy neither: the destination's stay, and the name is reported.
        if theirs.sha256 != record.sha256:
            taken.append(record.filename)
            continue
        files = [file for file in _files(record) if file[0] not in present]
        there = [file for file in files if source.stat(file[0]) is not None]  # a removed wheel has none
        if there:
            copied.append(record.filename)
        if dry_run:
            continue
        if key not in present:
            destination.create(key, record.render(), content_type="application/json")
        for name, events in said.items():
            # Before the bytes: a yank must hold from the first moment.
            bring_events(destination, name, events)
        for place, sha256 in there:
            _copy(source, destination, place, sha256)
        if there:
            progress(record.filename)
    if not dry_run:
        for target in sorted(targets):
            if not target.endswith(".whl"):
                bring_events(destination, target, read_events(source, target))
        _links(source, destination, group, present)
        _keys(source, destination, signer)
        # Pages are not copied: they follow from records and events, and the destination may have wheels of its own.
        reconcile(destination, signer)
    return Copied(tuple(copied), tuple(taken))


def _record(store: Store, key: str) -> Record:
    found = store.get(key)
    if found is None:
        raise PublishRefusedError(f"{store.url(key)} was listed but is missing", hint="run it again")
    return parse_record(found.data, key)


def _files(record: Record) -> Iterator[tuple[str, str]]:
    yield pages.metadata_key(record.filename), record.metadata_sha256
    yield pages.wheel_key(record.filename), record.sha256


def _links(source: Store, destination: Store, group: str | None, present: frozenset[str]) -> None:
    """The JSON pages of links to what the wheels need, where the destination has no page of that project."""
    for key in sorted(source.list("whl/" if group is None else f"whl/{group}/")):
        parts = key.split("/")
        if key in present or parts[2:3] != ["v1-json"] or len(parts) != 5 or (found := source.get(key)) is None:
            continue
        if pages.parse_page(found.data, key).meta.links:
            destination.create(key, found.data, content_type=pages.JSON)


def _keys(source: Store, destination: Store, signer: Signer | None) -> None:
    """Whose signatures count, so that users of a restored index go on with the root key that they have.

    Not where the destination has keys of its own, and not for a signer that the source's owner never let publish.
    """
    newest = newest_root(source)
    if newest is None or (signer is not None and signer.keyid not in online_keys(newest.signed)):
        return
    # In order: a user's client follows the chain of roots from the first on.
    for number in range(1, newest.signed.version + 1):
        key = root_key(number)
        if (found := source.get(key)) is None:
            break
        if not destination.create(key, found.data, content_type="application/json"):
            there = destination.get(key)
            if there is None or there.data != found.data:
                break  # other keys, which stay: a chain is never mixed with another
    remember_online(destination)


def _copy(source: Store, destination: Store, key: str, sha256: str) -> None:
    with temporary_folder("farm-copy-") as folder:
        path, digest = folder / "object", hashlib.sha256()
        with path.open("wb") as file:
            for chunk in source.chunks(key):
                digest.update(chunk)
                file.write(chunk)
        # Before it is stored, since what is stored under a name stays.
        if digest.hexdigest() != sha256:
            raise VerificationFailedError(
                f"{source.url(key)} does not match its record", hint="farm index check lists what else is broken there"
            )
        destination.create(key, path, content_type="application/octet-stream", sha256=sha256)
