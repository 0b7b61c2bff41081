"""Proves on scratch keys that a store keeps its two promises.

Some servers accept conditional writes and ignore the condition: every writer "wins", and entries of pages are
lost without a sign. Such a store is refused before anything is published into it.
"""

import contextlib
import uuid

from farm.errors import InfrastructureError, PublishRefusedError
from farm.index.stores import SCRATCH, Store

_TEXT = "text/plain; charset=utf-8"


def probe(store: Store) -> None:
    """Creates and replaces scratch objects, rightly and wrongly, and marks the store as proved.

    Raises:
        PublishRefusedError: The store ignores a condition, or refuses one that holds; the message says which.
        InfrastructureError: The store failed.
    """
    key = f"{SCRATCH}{uuid.uuid4().hex}"
    try:
        done = store.create(key, b"one", content_type=_TEXT)
        _expect(store, "the first create", key, b"one", stored=done, wanted=True)
        done = store.create(key, b"two", content_type=_TEXT)
        _expect(store, "a second create", key, b"one", stored=done, wanted=False)
        done = store.replace(key, b"three", None, content_type=_TEXT)
        _expect(store, "a replace of nothing, where something is", key, b"one", stored=done, wanted=False)
        first = store.get(key)
        etag = first.etag if first else ""
        done = store.replace(key, b"four", etag, content_type=_TEXT)
        _expect(store, "a replace with the current tag", key, b"four", stored=done, wanted=True)
        done = store.replace(key, b"five", etag, content_type=_TEXT)
        _expect(store, "a replace with an old tag", key, b"four", stored=done, wanted=False)
    finally:
        # a policy may forbid deletes; a scratch object that stays harms nobody
        with contextlib.suppress(InfrastructureError):
            store.discard(key)
    store.proved = True


def _expect(store: Store, what: str, key: str, content: bytes, *, stored: bool, wanted: bool) -> None:
    found = store.get(key)
    if stored == wanted and found is not None and found.data == content:
        return
    holds = "nothing" if found is None else f"{found.data[:20]!r}"
    raise PublishRefusedError(
        f"{store.url('')} does not keep conditional writes: {what} was {'done' if stored else 'refused'}, "
        f"and the object then held {holds} instead of {content!r}",
        hint="publishing there would lose wheels; use a directory, or a server that honours If-Match",
    )
