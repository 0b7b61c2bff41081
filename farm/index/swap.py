"""Compare and swap: how several writers change one page without losing a change."""

from collections.abc import Callable
from typing import NamedTuple

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from farm.base.errors import InfrastructureError
from farm.index.stores import Store, Stored

SWAP_TRIES = 60
"""32 writers of one page needed 9 tries at most on three servers; this bounds what is surely broken."""


class Prediction(NamedTuple):
    """What is probably there, so that it need not be read first; `None` for nothing. A wrong one costs a request."""

    stored: Stored | None


class Swapped(NamedTuple):
    """What was there, what is there now, and whether we wrote it. The tag is of what was there."""

    before: Stored | None
    data: bytes
    written: bool


class _LostRaceError(InfrastructureError):
    pass


def swap(
    store: Store,
    key: str,
    change: Callable[[bytes | None], bytes | None],
    content_type: str,
    *,
    prediction: Prediction | None = None,
) -> Swapped:
    """Reads, changes, writes if nobody else wrote, again if somebody did.

    Args:
        store: Where.
        key: What.
        change: From the old content (None: absent) to the new (None: leave it). Called again after a
            lost race.
        content_type: The media type.
        prediction: Spares the first read if it is right.
    """

    def once() -> Swapped:
        nonlocal prediction
        predicted, prediction = prediction, None
        old = store.get(key) if predicted is None else predicted.stored
        new = change(None if old is None else old.data)
        if new is None:
            assert old is not None, "nothing can be left as it is where nothing is"
            return Swapped(old, old.data, written=False)
        if not store.replace(key, new, None if old is None else old.etag, content_type=content_type):
            # A wrong prediction is no lost race: read what is there and write at once, without a wait.
            if predicted is not None:
                return once()
            raise _LostRaceError(f"{store.url(key)}: {SWAP_TRIES} times somebody else wrote first", hint="run it again")
        return Swapped(old, new, written=True)

    return Retrying(
        stop=stop_after_attempt(SWAP_TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        retry=retry_if_exception_type(_LostRaceError),
        reraise=True,
    )(once)


def predicted(store: Store, sample: Stored, data: bytes) -> Prediction | None:
    """That `data` is there, with the tag it should have; None where the store's tags cannot be foretold.

    `sample` shows whether they can: a bucket that encrypts with a key of its own makes other tags.
    """
    bare, likely = sample.etag.strip('"'), store.likely_etag(sample.data).strip('"')
    if bare != likely:
        return None
    # Only the middle is replaced: the store's quotes, or none, stay.
    tag = sample.etag.replace(bare, store.likely_etag(data).strip('"'))
    return Prediction(Stored(data, tag))
