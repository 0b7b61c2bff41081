"""An index as its users see it: over http(s), or from where it is stored. Reads only, bounded, without credentials."""

import hashlib
from collections.abc import Iterator
from typing import Protocol
from urllib.parse import quote

from farm.base.errors import InfrastructureError, UsageError
from farm.index.answers import as_sent, ask, bounded, parts_of
from farm.index.backends import open_store
from farm.index.records import GZIP, foreign
from farm.index.stores import MAX_GET, Store, check_key


class Reader(Protocol):
    """Objects of an index by their keys. A failure is an InfrastructureError, never an absent object."""

    def get(self, key: str) -> bytes | None:
        """A page or another small object; None where there is none."""

    def digest(self, key: str) -> str | None:
        """The sha256 of an object of any size; None where there is none."""

    def keys(self) -> list[str] | None:
        """All keys; None where nobody can say."""


def open_reader(url: str) -> Reader:
    """Opens an index by the URL of its root: http(s)://, or whatever `farm.index.backends.open_store` takes."""
    if parts_of(url).scheme in {"http", "https"}:
        return _Http(url)
    return _Stored(open_store(url))


class _Stored:
    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, key: str) -> bytes | None:
        found = self.store.get(key)
        if found is not None and found.data.startswith(GZIP):
            raise foreign(key, "", found.data)
        return None if found is None else found.data

    def digest(self, key: str) -> str | None:
        return None if self.store.stat(key) is None else _digest(self.store.chunks(key))

    def keys(self) -> list[str] | None:
        return list(self.store.list(""))


class _Http:
    def __init__(self, url: str) -> None:
        parts = parts_of(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError("not the URL of an index's root", hint="https://host/path, without user name, ? and #")
        self.root = as_sent(url).rstrip("/")

    def get(self, key: str) -> bytes | None:
        chunks = self._chunks(key)
        if chunks is None:
            return None
        data = bounded(chunks, MAX_GET)
        if len(data) > MAX_GET:
            raise InfrastructureError(f"{self.root}/{key} is over {MAX_GET} bytes: no page")
        # No page begins with these two bytes, so something encoded it twice.
        if data.startswith(GZIP):
            raise InfrastructureError(
                f"{self.root}/{key} is still gzip-encoded once its Content-Encoding is taken off",
                hint="a server or proxy encodes pages twice, or hides the header: docs/index-servers.md",
            )
        return data

    def digest(self, key: str) -> str | None:
        chunks = self._chunks(key)
        return None if chunks is None else _digest(chunks)

    def keys(self) -> list[str] | None:
        return None

    def _chunks(self, key: str) -> Iterator[bytes] | None:
        """The object's bytes; None for 404. Where pages lie at keys that end in a slash, they are found there."""
        check_key(key)
        # A web server answers the folder with its index.html; a bucket with `pages=slash` has the page at that very
        # key.
        places = [key, key.removesuffix("index.html")] if key.endswith("/index.html") else [key]
        for place in places:
            url = f"{self.root}/{quote(place)}"
            # Buckets hold pages gzip-encoded, and send them so whatever is asked; proxies may decode them or not.
            answer = ask(url, {"Accept-Encoding": "gzip", "Cache-Control": "no-cache"})
            if answer is not None:
                return answer.chunks
        return None


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
