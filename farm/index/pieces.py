"""Parts of a file on their way to a server."""

import hashlib
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from farm.base.errors import UsageError
from farm.index.stores import Progress, file_chunks


class Span(NamedTuple):
    """A part of a file: its number from 1 on, where it lies in bytes, and its MD5."""

    number: int
    start: int
    length: int
    md5: bytes


class Piece(io.BufferedIOBase):
    """Bytes `start` to `start + length` of a file, as a file that can be rewound.

    botocore reads a body twice over http, first to sign it; `sending` tells the two apart.
    """

    def __init__(self, path: Path, start: int, length: int, moved: Callable[[int], None]) -> None:
        super().__init__()
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        self._start, self._length, self._at = start, length, 0
        self._moved = moved
        self.sending = False

    def read(self, size: int | None = -1, /) -> bytes:
        left = self._length - self._at
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        if self.sending:
            self._moved(self._at)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = min(max(base + offset, 0), self._length)
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


class Meter:
    """Adds up how far each part is, and tells one sum."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done: dict[int, int] = {}
        self._lock = threading.Lock()

    def part(self, number: int) -> Callable[[int], None]:
        def moved(done: int) -> None:
            with self._lock:
                self._done[number] = done
                if self._progress is not None:
                    self._progress(sum(self._done.values()))

        return moved


def spans(path: Path, part: int) -> tuple[list[Span], str]:
    """Cuts a file into parts of `part` bytes; gives them and the sha256 of the whole, in hex.

    Raises:
        UsageError: The file cannot be read.
    """
    whole = hashlib.sha256()
    found: list[Span] = []
    start, length, md5 = 0, 0, hashlib.md5(usedforsecurity=False)
    try:
        # One pass over the file for all sums.
        for chunk in file_chunks(path):
            whole.update(chunk)
            view = memoryview(chunk)
            while view:
                piece = view[: part - length]
                md5.update(piece)
                length += len(piece)
                view = view[len(piece) :]
                if length == part:
                    found.append(Span(len(found) + 1, start, length, md5.digest()))
                    start, length, md5 = start + length, 0, hashlib.md5(usedforsecurity=False)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    # An empty file has one part as well: S3 completes no upload without parts.
    if length or not found:
        found.append(Span(len(found) + 1, start, length, md5.digest()))
    return found, whole.hexdigest()
