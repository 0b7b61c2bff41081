"""A store for dry runs: it reads another one, and keeps in memory what would be written there."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from pathlib import Path

from farm.base.errors import InfrastructureError
from farm.index.stores import MAX_GET, Finding, Progress, Stat, Store, Stored, check_discardable, check_key, file_chunks


class Rehearsal:
    """Any change of an index, carried out on this, is a dry run: the store beneath is only read.

    Attributes:
        beneath: The store that is read.
        changed: What would be written, by key; None for what would be deleted.
    """

    proved = True  # trying a store out would write to it

    def __init__(self, beneath: Store) -> None:
        self.beneath = beneath
        self.traits = beneath.traits
        self.changed: dict[str, bytes | Path | None] = {}
        self._sorted: list[str] = []  # its keys, since a removal lists a folder for each wheel

    def _change(self, key: str, data: bytes | Path | None) -> None:
        if key not in self.changed:
            insort(self._sorted, key)
        self.changed[key] = data

    def get(self, key: str) -> Stored | None:
        if check_key(key) not in self.changed:
            return self.beneath.get(key)
        data = self.changed[key]
        if isinstance(data, Path):
            if data.stat().st_size > MAX_GET:
                raise InfrastructureError(f"{self.url(key)} is over {MAX_GET} bytes: no page")
            data = data.read_bytes()
        # Any tag serves that follows the content: only `replace` of this class compares it.
        return None if data is None else Stored(data, f'"{hashlib.sha256(data).hexdigest()}"')

    def stat(self, key: str) -> Stat | None:
        if check_key(key) not in self.changed:
            return self.beneath.stat(key)
        data = self.changed[key]
        if data is None:
            return None
        return Stat(data.stat().st_size if isinstance(data, Path) else len(data), None)

    def chunks(self, key: str) -> Iterator[bytes]:
        if check_key(key) not in self.changed:
            return self.beneath.chunks(key)
        data = self.changed[key]
        if data is None:
            raise InfrastructureError(f"{self.url(key)} is not there")
        return file_chunks(data) if isinstance(data, Path) else iter([data])

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,  # noqa: ARG002  as Store has it
        sha256: str | None = None,  # noqa: ARG002  as above
        progress: Progress | None = None,  # noqa: ARG002  as above
    ) -> bool:
        if self.stat(key) is not None:
            return False
        self._change(key, data)
        return True

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:  # noqa: ARG002  as above
        now = self.get(key)
        if etag != (None if now is None else now.etag):
            return False
        self._change(key, data)
        return True

    def likely_etag(self, data: bytes) -> str:
        return self.beneath.likely_etag(data)

    def list(self, prefix: str) -> Iterator[str]:
        yield from (key for key in self.beneath.list(prefix) if key not in self.changed)
        yield from [key for key in self._changed_below(prefix) if self.changed[key] is not None]

    def _changed_below(self, prefix: str) -> Iterator[str]:
        place = bisect_left(self._sorted, prefix)
        while place < len(self._sorted) and (key := self._sorted[place]).startswith(prefix):
            yield key
            place += 1

    def url(self, key: str) -> str:
        return self.beneath.url(key)

    def discard(self, key: str) -> None:
        self._change(check_discardable(key), None)

    def examine(self, scratch: str) -> Iterator[Finding]:  # noqa: ARG002  as above
        return iter(())
