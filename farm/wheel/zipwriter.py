"""A ZIP file as the farm writes it: members in the order given, without descriptors.

Members of another archive keep their compressed bytes. New ones are deflated by several threads,
as deflating releases the interpreter's lock, and written in their order: the same input gives the
same bytes.
"""

import hashlib
import os
import stat
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import THREADS, Archive, zlib
from farm.wheel.zipformat import (
    DEFLATED,
    DOS_EPOCH,
    MADE_BY_UNIX,
    Entry,
    central_header,
    end_records,
    local_header,
    needs_zip64,
)

_BLOCK = 1 << 20
_GATHERED = 64 << 10  # compressed bytes of a member that is copied together with its neighbours
_IN_MEMORY = 1 << 20  # compressed bytes of a new member; more go to a temporary file
_PACKED_AHEAD = 2 * THREADS  # each may hold a temporary file open


class NewMember(NamedTuple):
    """A member to write: `content` is the bytes themselves or a file to stream; `mode` its
    permission bits.
    """

    name: str
    content: bytes | Path
    mode: int = 0o644


class PackedMember(NamedTuple):
    """A new member, deflated.

    Attributes:
        entry: As the directory will describe it, without its place.
        sha256: Of its content, in hexadecimal.
        data: Its compressed bytes, from the start.
    """

    entry: Entry
    sha256: str
    data: tempfile.SpooledTemporaryFile[bytes]


def packed(members: Iterable[NewMember], folder: Path) -> Iterator[PackedMember]:
    """Deflate members in several threads.

    Args:
        members: What to deflate.
        folder: For temporary files of large members.

    Yields:
        Each in its order, a few of them ahead of the one that is taken.
    """
    waiting: deque[Future[PackedMember]] = deque()
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            for member in members:
                waiting.append(threads.submit(_pack, member, folder))
                if len(waiting) >= _PACKED_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        for future in waiting:
            if not future.exception():
                future.result().data.close()


def _pack(member: NewMember, folder: Path) -> PackedMember:
    sha = hashlib.sha256()
    crc = size = 0
    packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=str(folder)))
        for chunk in _pieces(member.content):
            sha.update(chunk)
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            data.write(packer.compress(chunk))
        data.write(packer.flush())
        if isinstance(member.content, Path) and size != member.content.stat().st_size:
            raise VerificationFailedError(
                f"member {member.name!r}: its file changed while it was read"
            )
        compressed = data.tell()
        data.seek(0)
        stack.pop_all()  # from here on its reader closes the file
    mode = stat.S_IFREG | member.mode
    entry = Entry(
        member.name, DEFLATED, *DOS_EPOCH, crc, compressed, size, mode << 16, MADE_BY_UNIX, 0
    )
    return PackedMember(entry, sha.hexdigest(), data)


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while chunk := file.read(_BLOCK):
            yield chunk


class ZipWriter:
    """Writes a ZIP file; `finish` writes its directory.

    Args:
        file: An empty file, opened without a buffer.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[Entry] = []
        self._position = 0
        # Headers and small members wait here: a wheel has thousands, and a call of the system for
        # each would take longer than the bytes.
        self._buffer = bytearray()

    def copy(self, source: Archive, entry: Entry, name: str) -> None:
        """Copy a member's compressed bytes under a new local header: no descriptor, no odd extra
        fields.
        """
        self._begin(entry._replace(name=name))
        start = entry.data_offset
        end = start + entry.compressed
        if entry.compressed > _GATHERED:
            start = self._copy_by_kernel(source, start, end)
        for chunk in source.span(start, end):
            self._write(chunk)

    def add(self, member: PackedMember) -> None:
        """Write a new member."""
        self._begin(member.entry)
        with member.data as data:
            while chunk := data.read(_BLOCK):
                self._write(chunk)

    def finish(self) -> None:
        """Write the directory."""
        start = self._position
        directory = b"".join(central_header(entry) for entry in self._entries)
        self._write(directory + end_records(len(self._entries), start, len(directory)))
        self._flush()

    def _begin(self, entry: Entry) -> None:
        """Write the local header of a member whose bytes follow."""
        placed = entry._replace(header_offset=self._position)
        self._entries.append(placed)
        self._write(local_header(placed, wide=needs_zip64(entry.size, entry.compressed)))

    def _copy_by_kernel(self, source: Archive, start: int, end: int) -> int:
        """Append bytes of the source without taking them through this process, where both files
        allow it.

        Returns:
            Up to where they were copied.
        """
        self._flush()
        while start < end and hasattr(os, "copy_file_range"):
            try:
                count = os.copy_file_range(source.fileno(), self._file.fileno(), end - start, start)
            except OSError:  # another file system, an old kernel; a full disk is met again later
                break
            if not count:
                break
            start += count
            self._position += count
        return start

    def _write(self, data: bytes) -> None:
        self._buffer += data
        self._position += len(data)
        if len(self._buffer) >= _BLOCK:
            self._flush()

    def _flush(self) -> None:
        with memoryview(self._buffer) as view:
            written = 0
            while written < len(view):
                written += self._file.write(view[written:])
        self._buffer.clear()
