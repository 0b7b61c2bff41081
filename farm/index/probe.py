"""Proves on scratch keys that a store keeps its two promises, alone and under concurrency.

Some servers accept conditional writes and ignore the condition: every writer "wins", and entries of pages are
lost without a sign. Such a store is refused before anything is published into it.

A proof is kept in the catalogue, which every publish reads first anyway, and is believed for `DAYS`. It names the
endpoint (a hash of it), so that a bucket which is copied to another server is proved again.
"""

import contextlib
import hashlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.base.interrupts import held
from farm.index.catalogue import CATALOGUE_KEY, CATALOGUE_TYPE, Proof, parse_catalogue
from farm.index.pages import ForeignObjectError
from farm.index.stores import SCRATCH, Finding, Store, Stored, StoreTraits
from farm.index.swap import swap

DAYS = 7
"""How long a proof is believed."""

WRITERS = 12
ROUNDS = 3
SWAPS = 3
"""In the race each of `WRITERS` creates `ROUNDS` new keys, and adds one to a counter `SWAPS` times."""

PATIENCE_S = 20.0
"""No addition is begun after that; a slow store need not come to the end."""

START_S = 60.0
"""How long the writers of a race wait for each other to start."""

_TEXT = "text/plain; charset=utf-8"
_T = TypeVar("_T")


def proved_catalogue(store: Store, *, single_writer: bool = False) -> Stored | None:
    """The catalogue as it is, once it is sure that something may be published there; None where there is none.

    Costs one request when a proof is there. Arguments and errors are those of `prove`.
    """
    found = store.get(CATALOGUE_KEY)
    if store.proved:
        return found
    known = None if single_writer else _known(store, found)
    if known is not None:
        store.traits = StoreTraits(bare_etags=known.bare_etags)
        store.proved = True
        return found
    probe(store, single_writer=single_writer)
    return store.get(CATALOGUE_KEY)


def prove(store: Store, *, single_writer: bool = False) -> None:
    """Makes sure, at most once per store object, that something may be published there.

    Args:
        store: Where to; its `traits` and `proved` are set.
        single_writer: The caller promises that nobody else writes. A store that ignores conditions is accepted then,
            and each write looks first.

    Raises:
        PublishRefusedError: A promise is not kept; the message holds the evidence.
        InfrastructureError: The store failed.
    """
    if not store.proved:
        proved_catalogue(store, single_writer=single_writer)


def probe(store: Store, *, single_writer: bool = False) -> list[Finding]:
    """Tries the promises out, marks the store as proved and keeps the proof in it.

    Returns:
        What was tried and seen.

    Raises:
        PublishRefusedError: As `prove`.
        InfrastructureError: As `prove`.
    """
    findings = examine(store)
    accept(store, findings, single_writer=single_writer)
    return findings


def accept(store: Store, findings: list[Finding], *, single_writer: bool = False) -> None:
    """Draws the conclusion from what `examine` saw, as `probe` does.

    Raises:
        PublishRefusedError: A promise is not kept; the message holds the evidence.
    """
    failed = [finding for finding in findings if finding.needed and not finding.good]
    if failed and not single_writer:
        evidence = "\n".join(f"  expected: {finding.what}; seen: {finding.seen}" for finding in failed)
        raise PublishRefusedError(
            f"{store.url('')} does not keep conditional writes:\n{evidence}",
            hint="publishing there would lose wheels; use a directory, or a server that honours If-Match and "
            "If-None-Match (Ceph: in buckets without versioning and object lock). "
            "Where nobody else ever writes: --single-writer",
        )
    if failed:
        store.traits = StoreTraits(reads_first=True)
    else:
        # a catalogue that is not ours stays as it is, and whoever needs it reports it
        with contextlib.suppress(ForeignObjectError):
            keep_proof(store)
    store.proved = True


def examine(store: Store, *, traits: bool = False) -> list[Finding]:
    """What is seen when the promises are tried out; sets `store.traits` to what made them hold.

    Args:
        store: Any store.
        traits: Also what is good to know and not needed.
    """
    scratch = f"{SCRATCH}{uuid.uuid4().hex}"
    store.traits = StoreTraits()
    # HTTP quotes ETags; some servers (Ceph) match them only without, so that is tried second.
    findings = _alone(store, f"{scratch}-quoted")
    if not all(finding.good for finding in findings):
        store.traits = StoreTraits(bare_etags=True)
        bare = _alone(store, f"{scratch}-bare")
        if all(finding.good for finding in bare):
            findings = bare
        else:
            store.traits = StoreTraits()
    findings.append(_created_by_many(store, scratch))
    findings.append(_swapped_by_many(store, f"{scratch}-swapped"))
    if traits:
        findings.extend(store.examine(scratch))
    return findings


def _known(store: Store, found: Stored | None) -> Proof | None:
    try:
        proof = parse_catalogue(found.data if found else None).proved()
    except ForeignObjectError:
        return None
    # A copied or moved bucket brings its catalogue along, but not the promises of the server it was on.
    if proof is None or proof.store != _name(store.url("")):
        return None
    return proof if timedelta(0) <= datetime.now(UTC) - proof.time < timedelta(days=DAYS) else None


def keep_proof(store: Store, *, seen_as: str | None = None) -> None:
    """Writes down that the store keeps its promises, now, with its `traits`.

    Args:
        store: The store.
        seen_as: The URL under which others reach it; its own for None.
    """
    proof = Proof(store=_name(seen_as or store.url("")), time=datetime.now(UTC), bare_etags=store.traits.bare_etags)
    kept = proof.model_dump(mode="json", by_alias=True)

    def change(old: bytes | None) -> bytes:
        return parse_catalogue(old).model_copy(update={"proof": kept}).render()

    swap(store, CATALOGUE_KEY, change, CATALOGUE_TYPE)


def _name(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()


@contextlib.contextmanager
def _discarded(store: Store, *keys: str) -> Iterator[None]:
    try:
        yield
    finally:
        with held():
            for key in keys:
                # a policy may forbid deletes; a scratch object that stays harms nobody
                with contextlib.suppress(InfrastructureError):
                    store.discard(key)


def _alone(store: Store, key: str) -> list[Finding]:
    """One writer after the other: what must be done and what must not."""
    found = []

    def expect(what: str, content: bytes, *, stored: bool, wanted: bool) -> None:
        now = store.get(key)
        holds = None if now is None else now.data
        seen = f"{'done' if stored else 'refused'}, the object then held {holds if holds is None else holds[:20]!r}"
        found.append(Finding(what, good=stored == wanted and holds == content, needed=True, seen=seen))

    with _discarded(store, key, f"{key}-absent"):
        done = store.create(key, b"one", content_type=_TEXT)
        expect("a first create is done", b"one", stored=done, wanted=True)
        done = store.create(key, b"two", content_type=_TEXT)
        expect("a second create is refused", b"one", stored=done, wanted=False)
        done = store.replace(key, b"three", None, content_type=_TEXT)
        expect("a replace of nothing, where something is, is refused", b"one", stored=done, wanted=False)
        first = store.get(key)
        # A tag that matches nothing, so that the remaining tries still run and show what the server does.
        etag = first.etag if first else '"none"'
        done = store.replace(key, b"four", etag, content_type=_TEXT)
        expect("a replace with the current tag is done", b"four", stored=done, wanted=True)
        done = store.replace(key, b"five", etag, content_type=_TEXT)
        expect("a replace with an old tag is refused", b"four", stored=done, wanted=False)
        done = store.replace(f"{key}-absent", b"six", etag, content_type=_TEXT)
        there = store.get(f"{key}-absent") is not None
        seen = f"{'done' if done else 'refused'}, the object then was {'there' if there else 'not there'}"
        what = "a replace of an absent object by tag is refused"
        found.append(Finding(what, good=not done and not there, needed=True, seen=seen))
    return found


def _created_by_many(store: Store, scratch: str) -> Finding:
    keys = [f"{scratch}-created-{number}" for number in range(ROUNDS)]
    with _discarded(store, *keys):
        bad, most = 0, 0
        for key in keys:
            won = _race(lambda number, key=key: store.create(key, b"%d" % number, content_type=_TEXT))  # type: ignore[misc]
            now = store.get(key)
            winners = [b"%d" % number for number, done in enumerate(won) if done]
            most = max(most, len(winners))
            # Exactly one winner, and the object holds what that one wrote.
            bad += winners != [now.data if now else None]
    seen = f"{WRITERS} writers, {ROUNDS} rounds: {bad} went wrong; at most {most} were told that they had won"
    return Finding("of many creators one wins", good=bad == 0, needed=True, seen=seen)


def _swapped_by_many(store: Store, key: str) -> Finding:
    end = time.monotonic() + PATIENCE_S

    def held_by(stored: Stored | None) -> int:
        return int(stored.data.split()[0]) if stored else 0

    def count(number: int) -> int:
        added = 0
        while added < SWAPS and time.monotonic() < end:
            old = store.get(key)
            new = b"%d by %d" % (held_by(old) + 1, number)  # unlike all others: a store may compare content
            if store.replace(key, new, old.etag if old else None, content_type=_TEXT):
                added += 1
            else:
                time.sleep(random.random() * 0.05)  # noqa: S311  so that the losers do not meet again
        return added

    with _discarded(store, key):
        try:
            claimed = sum(_race(count))
        except (ValueError, IndexError):  # torn or empty content
            return Finding(_SWAPS, good=False, needed=True, seen="a reader saw an object that was half written")
        held = held_by(store.get(key))
    lost = max(claimed - held, 0)
    seen = f"{WRITERS} writers were told that {claimed} of {WRITERS * SWAPS} additions were done; {lost} were lost"
    # A slow store may not come to the end. More than was told may be done: an answer was lost on its way, and before
    # the retry asked, another writer had replaced the object.
    return Finding(_SWAPS, good=1 < claimed <= held, needed=True, seen=seen)


_SWAPS = "of many replacements none is lost"


def _race(run: Callable[[int], _T]) -> list[_T]:
    """Runs `run(number)` in `WRITERS` threads that start together.

    Raises:
        InfrastructureError: This machine does not start so many threads, or not within `START_S` seconds.
    """
    gate = threading.Barrier(WRITERS, timeout=START_S)

    def start(number: int) -> _T:
        gate.wait()
        return run(number)

    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            try:
                started = [pool.submit(start, number) for number in range(WRITERS)]
            except RuntimeError:  # "can't start new thread": those that started would wait for the rest
                gate.abort()
                raise threading.BrokenBarrierError from None
            return [each.result() for each in started]
    except threading.BrokenBarrierError:
        raise InfrastructureError(
            f"{WRITERS} threads could not be started together within {START_S:g} s, to try the store with",
            hint="run the same command again when the machine is less busy; limits: ulimit -u, the container's pids",
        ) from None
