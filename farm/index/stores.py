"""The interface of stores, and the way in which several writers change one object.

Two promises carry everything else: `create` stores only where nothing is, and `replace` stores only
where nothing changed. A reader sees an object whole or not at all. Nothing here deletes, except
keys below a few prefixes.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from farm.base.errors import InfrastructureError, UsageError

SCRATCH = "probe/"
DISCARDABLE = re.compile(
    rf"({SCRATCH}|whl/files/|whl/variant/(files|records)/).+|"
    r"tuf/[0-9]+\.(targets|snapshot|wheels-[0-9a-f]+)\.json",
    re.ASCII,
)
"""Only these keys may be discarded: what was tried out, the files of a wheel that was removed, and
signatures that newer ones replaced. Records, events and root keys stay for ever.
"""

MAX_GET = 64 * 1024 * 1024
"""The largest object, in bytes, that `Store.get` reads into memory: records and pages, never
wheels.
"""

CHUNK = 1024 * 1024
TRIES = 60
"""32 writers of one page needed 9 tries at most on three servers; this bounds what is surely
broken.
"""

_SEGMENT = re.compile(r"[A-Za-z0-9_+!~-][A-Za-z0-9._+!~-]*", re.ASCII)

Progress = Callable[[int], None]
"""Gets how many bytes of an object are stored so far; it may go back when a piece is sent again."""


class Stored(NamedTuple):
    """An object and the tag that `replace` compares."""

    data: bytes
    etag: str


class Stat(NamedTuple):
    """Size in bytes, and the sha256 in hex; None where the store does not know it."""

    size: int
    sha256: str | None


class Store(Protocol):
    """A flat space of keys such as `whl/files/x.whl`.

    Every method raises InfrastructureError when the store fails, and UsageError for a key that
    `check_key` refuses or a place that is configured wrongly. A failure is never reported as an
    absent object.
    """

    def get(self, key: str) -> Stored | None:
        """The object, or None where there is none. At most `MAX_GET` bytes."""

    def stat(self, key: str) -> Stat | None:
        """Size and digest of the object, or None where there is none."""

    def chunks(self, key: str) -> Iterator[bytes]:
        """The object's bytes, piece by piece. An absent object is an InfrastructureError."""

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> bool:
        """Stores what will never change; False when there was an object already: nothing changed
        then.

        Args:
            key: Where.
            data: The bytes, or a file to copy without holding it in memory.
            content_type: The media type that a client sees.
            sha256: What the bytes must hash to; computed here when not given.
            progress: Called while a file is stored, perhaps from other threads, one call at a time.
        """

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        """Stores where nothing changed since `get` gave `etag` (None: nothing was there); False if
        somebody did.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """All keys that start with `prefix` (any string, not only a folder), in no promised
        order.
        """

    def clock(self) -> datetime | None:
        """The store's own time; None where it has no other clock than this machine's."""

    def url(self, key: str) -> str:
        """Where a client finds the key; a key may be empty or end in a slash here."""

    def discard(self, key: str) -> None:
        """Removes a key that is `DISCARDABLE`; ValueError for any other. An absent one is fine."""


def check_key(key: str) -> str:
    """Gives the key back if it is safe on file systems and in URLs, else UsageError.

    Not an empty part, one that starts with a dot or is over 255 bytes; not over 900 in all (S3's
    limit is 1024).
    """
    is_safe = len(key) <= 900
    for part in key.split("/"):
        if len(part) > 255 or not _SEGMENT.fullmatch(part):
            is_safe = False
    if not is_safe:
        raise UsageError(f"not a key for the index: {key[:200]!r}")
    return key


def check_discardable(key: str) -> str:
    if not DISCARDABLE.fullmatch(check_key(key)):
        raise ValueError(f"never discarded: {key!r}")
    return key


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, piece by piece."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def stored_sha256(store: Store, key: str, stat: Stat) -> str:
    """The sha256 of an object that is there; reads it if the store does not know it."""
    if stat.sha256 is not None:
        return stat.sha256
    digest = hashlib.sha256()
    for chunk in store.chunks(key):
        digest.update(chunk)
    return digest.hexdigest()


def object_sha256(store: Store, key: str, limit: int | None = None) -> str | None:
    """The sha256 of the bytes that a client would get; None if there is no object.

    Args:
        store: The store.
        key: Which object.
        limit: Reading ends once there are this many bytes.
    """
    digest = hashlib.sha256()
    done = 0
    try:
        for chunk in store.chunks(key):
            digest.update(chunk)
            done += len(chunk)
            if limit is not None and done >= limit:
                break
    except InfrastructureError:
        if store.stat(key) is None:
            return None
        raise
    return digest.hexdigest()


class Prediction(NamedTuple):
    """A guess of the current object, which saves reading it; `None`: nothing is there. A wrong one
    costs a request.
    """

    stored: Stored | None


class Swapped(NamedTuple):
    """The old object, the new one, and whether we wrote it. The tag is of the old one."""

    before: Stored | None
    data: bytes
    written: bool


class _LostRaceError(InfrastructureError): ...


def data_of(stored: Stored | None) -> bytes | None:
    """The bytes of an object; None if there is none."""
    if stored is None:
        return None
    return stored.data


def etag_of(stored: Stored | None) -> str | None:
    """The tag by which an object is replaced; None if there is none."""
    if stored is None:
        return None
    return stored.etag


_T = TypeVar("_T")


def get_many(store: Store, keys: Iterable[str], at_a_time: int) -> dict[str, Stored | None]:
    """Read small objects, several at a time; None where there is none."""
    return dict(each_answer(store.get, keys, at_a_time))


def each_answer(
    ask: Callable[[str], _T], keys: Iterable[str], at_a_time: int
) -> Iterator[tuple[str, _T]]:
    """Ask for keys, several at a time, and yield each with its answer, in their order."""
    keys = list(keys)
    with ThreadPoolExecutor(at_a_time) as pool:
        yield from zip(keys, pool.map(ask, keys), strict=True)


def swap(
    store: Store,
    key: str,
    change: Callable[[bytes | None], bytes | None],
    content_type: str,
    *,
    prediction: Prediction | None = None,
) -> Swapped:
    """Compare and swap: reads, changes, writes if nobody else wrote, again if somebody did.

    `change` makes the new content (None: leave it) of the old (None: absent), again after a lost
    race. `prediction` spares the first read if it is right.
    """

    def attempt() -> Swapped:
        nonlocal prediction
        predicted = prediction
        prediction = None
        if predicted is None:
            old = store.get(key)
        else:
            old = predicted.stored
        new = change(data_of(old))
        if new is None or (old is not None and new == old.data):
            assert old is not None, "nothing can be left as it is where nothing is"
            return Swapped(old, old.data, written=False)
        if not store.replace(key, new, etag_of(old), content_type=content_type):
            # A wrong prediction is no lost race: read what is there and write at once, without a
            # wait.
            if predicted is not None:
                return attempt()
            raise _LostRaceError(
                f"{store.url(key)}: {TRIES} times another writer wrote first", hint="run it again"
            )
        return Swapped(old, new, written=True)

    return Retrying(
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        retry=retry_if_exception_type(_LostRaceError),
        reraise=True,
    )(attempt)
