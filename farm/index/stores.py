"""What the index asks of the place where its bytes lie.

Two promises carry everything else: `create` stores only where nothing is, and `replace` stores only where
nothing changed. A reader sees an object whole or not at all. Nothing here deletes, except keys below a few prefixes.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from farm.base.errors import UsageError

SCRATCH = "probe/"
DISCARDABLE = (SCRATCH, "whl/files/", "whl/attestations/")
"""Only keys below these may be discarded: what the probe tried out, and the files of a wheel
that was removed. Records and events stay for ever."""

MAX_GET = 64 * 1024 * 1024
"""The largest object, in bytes, that `Store.get` reads into memory: records and pages, never wheels."""

CHUNK = 1024 * 1024

_SEGMENT = re.compile(r"[A-Za-z0-9_+!~-][A-Za-z0-9._+!~-]*", re.ASCII)


Progress = Callable[[int], None]
"""Gets how many bytes of an object are stored so far; it may go back when a piece is sent again."""


@dataclass(frozen=True)
class StoreTraits:
    """What a store was found to need.

    Attributes:
        bare_etags: `If-Match` is understood only without the quotes around the ETag.
        reads_first: Conditions are ignored. Each write looks first instead, which is safe for one writer at a
            time and no more; only `--single-writer` asks for it.
    """

    bare_etags: bool = False
    reads_first: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that was tried out on a store.

    Attributes:
        what: What was tried.
        good: Did it come out as one would wish?
        needed: May nothing be published where it did not?
        seen: The evidence.
    """

    what: str
    good: bool
    needed: bool
    seen: str


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

    Every method raises InfrastructureError when the store fails, and UsageError for a key that `check_key`
    refuses or a place that is configured wrongly. A failure is never reported as an absent object.
    """

    proved: bool
    """True once `farm.index.probe.prove` has passed on this object."""

    traits: StoreTraits
    """What the probe found; the store heeds it."""

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
        """Stores what will never change.

        A large file may go in pieces; what a killed call left of them is found and used by the next.

        Args:
            key: Where.
            data: The bytes, or a file to copy without holding it in memory.
            content_type: The media type that a client sees.
            sha256: What the bytes must hash to; computed here when not given.
            progress: Called while a file is stored, perhaps from other threads, one call at a time.

        Returns:
            False when there was an object already; nothing changed then.
        """

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        """Stores where nothing changed since `get` gave `etag`; None stands for "there was nothing".

        Returns:
            False when somebody else was faster; nothing changed then.
        """

    def likely_etag(self, data: bytes) -> str:
        """The tag that `replace` most likely gave to these bytes: it can spare a read, but is no promise."""

    def list(self, prefix: str) -> Iterator[str]:
        """All keys that start with `prefix` (any string, not only a folder), in no promised order."""

    def url(self, key: str) -> str:
        """Where a client finds the key; a key may be empty or end in a slash here."""

    def discard(self, key: str) -> None:
        """Removes a key below one of `DISCARDABLE`; ValueError for any other. An absent one is fine."""

    def examine(self, scratch: str) -> Iterator[Finding]:
        """Tries out what else is worth knowing about this kind of store, on keys that start with `scratch`."""


def check_key(key: str) -> str:
    """Gives the key back if it is safe on file systems and in URLs.

    Raises:
        UsageError: An empty part, a part that starts with a dot, a character outside ASCII letters, digits
            and `._+!~-`, a part over 255 or a key over 900 bytes (S3's limit is 1024; a prefix needs room).
    """
    parts = key.split("/")
    if len(key) > 900 or not all(len(part) <= 255 and _SEGMENT.fullmatch(part) for part in parts):
        raise UsageError(f"not a key for the index: {key[:200]!r}")
    return key


def check_discardable(key: str) -> str:
    """Gives the key back if it may be discarded; ValueError if not."""
    if not check_key(key).startswith(DISCARDABLE):
        raise ValueError(f"only keys below {', '.join(DISCARDABLE)} are ever discarded, not {key!r}")
    return key


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, piece by piece."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
