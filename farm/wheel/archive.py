"""A wheel as a ZIP file, read strictly and without extracting it.

A wheel is read by several programs (pip, uv, the index, this one), and a file that two of them read
differently is an attack. So everything that the format allows but no wheel needs is refused: bytes
that belong to no member, a local header that contradicts the directory, encryption, several disks,
a comment, names in an unknown encoding.

Opening checks everything that can be known from the directory: names, overlaps, sizes, the
compression ratio. Reading a member checks the rest: its length and its CRC. All memory is bounded:
members are streamed, and one that is wanted whole is kept in memory up to 16 MiB and in an unnamed
temporary file above.
"""

import hashlib
import mmap
import os
import stat
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.member_names import check_link, check_names
from farm.wheel.zipdirectory import read_directory
from farm.wheel.zipformat import STORED, Entry, refuse

zlib: Any
try:
    # The extra `fast`: the same format and checks in half the time.
    zlib = import_module("zlib_ng.zlib_ng")
except ImportError:
    import zlib

Buffer = bytes | mmap.mmap

_HEADERS = 4 << 10  # local headers of neighbours are read together
# Stays in the processor's cache from unpacking to hashing: a tenth less time than 1 MiB.
_CHUNK = 1 << 18
_IN_MEMORY = 16 << 20
_RATIO_FROM = 64 << 20  # small archives of zeros are harmless
_MAGIC = 4  # bytes by which a library is known
_MAX_LINK = 4096
THREADS = min(os.cpu_count() or 1, 4)
"""For packing and unpacking, which release the interpreter's lock; each holds up to 16 MiB."""


class Limits(NamedTuple):
    """Limits of a wheel: members, bytes of one and of all, ratio of unpacked to packed."""

    members: int = 200_000
    member_bytes: int = 8 << 30
    total_bytes: int = 32 << 30
    ratio: int = 200


def check_is_file(path: Path) -> None:
    """Before it is opened: opening a pipe waits for who writes it, and some devices have no end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise UsageError(
            f"{path} is {kind}, not a wheel", hint="`pip wheel` or `pip download` makes one"
        )


class Archive:
    """A wheel opened for reading.

    Args:
        path: The file.
        limits: What is refused as too large.

    Attributes:
        members: Name to entry, in the order of the file.
        unportable: Members that Linux unpacks and another system cannot, each with the reason.
        bytes_read: Bytes of members that were read so far, as they are in the file.

    Raises:
        UsageError: There is no such file.
        VerificationFailedError: The archive is malformed, ambiguous or unsafe; the message names
            the member.
    """

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self.bytes_read = 0
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        try:
            check_is_file(path)
            self._file = cast("BinaryIO", path.open("rb", buffering=0))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        try:
            with os.fdopen(os.dup(self._file.fileno()), "rb", buffering=_HEADERS) as buffered:
                entries = read_directory(buffered, path.stat().st_size, self.limits.members)
            self._check_sizes(entries)
            self.members, self.unportable = check_names(entries)
            self._check_links()
        except VerificationFailedError as error:
            self._file.close()
            raise VerificationFailedError(f"{path.name}: {error}", hint=error.hint) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def raw(self, entry: Entry) -> Generator[bytes, None, None]:
        """The compressed bytes of a member, in chunks of at most 256 KiB."""
        return self.span(entry.data_offset, entry.data_offset + entry.compressed)

    def span(self, start: int, end: int) -> Generator[bytes, None, None]:
        """The file's bytes from `start` to `end`, in chunks of at most 256 KiB."""
        while start < end:
            chunk = self._read_at(start, min(_CHUNK, end - start))
            if not chunk:
                refuse(f"{self.path.name}: the file ends before byte {end}")
            yield chunk
            start += len(chunk)

    def _read_at(self, offset: int, count: int) -> bytes:
        with self._lock:  # members are read by several threads
            self._file.seek(offset)
            chunk = self._file.read(count)
            self.bytes_read += len(chunk)
        return chunk

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a member, in chunks of at most 1 MiB, its length and CRC checked at the
        end.
        """
        entry = self.entry(name)
        crc = length = 0
        pieces: Iterable[bytes]
        if entry.method == STORED:
            pieces = self.raw(entry)
        elif max(entry.compressed, entry.size) <= _CHUNK:
            pieces = (self._inflate_small(entry),)
        else:
            pieces = self.inflate(entry)
        for chunk in pieces:
            crc = zlib.crc32(chunk, crc)
            length += len(chunk)
            # Longer than declared: what is too much is not handed on.
            if length > entry.size:
                break
            yield chunk
        if length != entry.size:
            refuse(f"is not of the length that the directory declares ({entry.size} bytes)", name)
        if crc != entry.crc:
            refuse("its CRC does not match: damaged", name)

    def entry(self, name: str) -> Entry:
        """The directory entry of a member, or `VerificationFailedError` where there is none."""
        try:
            return self.members[name]
        except KeyError:
            refuse(f"{self.path.name}: it is missing", name)

    def read(self, name: str, limit: int = 16 << 20) -> bytes:
        """A small member whole; `limit` in bytes."""
        if self.entry(name).size > limit:
            refuse(f"{self.entry(name).size} bytes; at most {limit} are read", name)
        return b"".join(self.chunks(name))

    @contextmanager
    def content(
        self,
        name: str,
        magics: tuple[bytes, ...],
    ) -> Iterator[tuple[str, Buffer | None]]:
        """Read a member once: (its sha256 in hexadecimal, its content if it begins with one of
        `magics`, else None).

        The content is valid inside the `with` block only.
        """
        sha = hashlib.sha256()
        chunks = self.chunks(name)
        first = b""
        while len(first) < _MAGIC and (chunk := next(chunks, b"")):
            first += chunk
        sha.update(first)
        if not first.startswith(magics):
            for chunk in chunks:
                sha.update(chunk)
            yield sha.hexdigest(), None
        elif self.entry(name).size <= _IN_MEMORY:
            following = []
            for chunk in chunks:
                sha.update(chunk)
                following.append(chunk)
            yield sha.hexdigest(), b"".join([first, *following])
        else:
            with tempfile.TemporaryFile() as spool:
                spool.write(first)
                for chunk in chunks:
                    sha.update(chunk)
                    spool.write(chunk)
                spool.flush()
                with mmap.mmap(spool.fileno(), 0, access=mmap.ACCESS_READ) as view:
                    yield sha.hexdigest(), view

    def inflate(self, entry: Entry) -> Generator[bytes, None, None]:
        """The content of a deflated member as it comes; see `chunks` for the checked."""
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            for raw in self.raw(entry):
                if unpacker.eof:
                    refuse("compressed data behind its end", entry.name)
                pending = raw
                while pending:
                    chunk = unpacker.decompress(pending, _CHUNK)
                    if chunk:
                        yield chunk
                    pending = unpacker.unconsumed_tail
            # The loop above stops when the input is used up: more output may wait inside.
            while not unpacker.eof:
                chunk = unpacker.decompress(b"", _CHUNK)
                if not chunk:
                    refuse("its compressed data are cut off", entry.name)
                yield chunk
        except zlib.error as error:
            raise _damaged(entry, error) from error
        if unpacker.unused_data:
            refuse("compressed data behind its end", entry.name)

    def _inflate_small(self, entry: Entry) -> bytes:
        """The content of a deflated member of one chunk: a wheel has thousands of them.

        One that is longer than declared is given by a byte too long.
        """
        raw = b"".join(self.raw(entry))
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content: bytes = unpacker.decompress(raw, entry.size + 1)
        except zlib.error as error:
            raise _damaged(entry, error) from error
        if len(content) <= entry.size:
            if not unpacker.eof:
                refuse("its compressed data are cut off", entry.name)
            if unpacker.unused_data:
                refuse("compressed data behind its end", entry.name)
        return content

    def _check_sizes(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.size > self.limits.member_bytes:
                refuse(
                    f"{entry.size} bytes; more than {self.limits.member_bytes} are refused",
                    entry.name,
                )
            if entry.method == STORED and entry.size != entry.compressed:
                refuse("stored, but with two different sizes", entry.name)
        total = sum(entry.size for entry in entries)
        packed = sum(entry.compressed for entry in entries)
        if total > self.limits.total_bytes:
            refuse(f"{total} bytes unpacked; more than {self.limits.total_bytes} are refused")
        if total > _RATIO_FROM and total > self.limits.ratio * packed:
            refuse(f"{total} bytes from {packed}: looks like a decompression bomb")

    def _check_links(self) -> None:
        for entry in self.members.values():
            kind = stat.S_IFMT(entry.mode)
            if kind == stat.S_IFREG and not entry.is_dir:
                continue
            if kind == stat.S_IFLNK:
                raw = self.read(entry.name, _MAX_LINK)
                check_link(entry.name, raw)
            elif (
                kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR) > entry.is_dir
            ):
                refuse("neither a file, a folder nor a symbolic link", entry.name)


def _damaged(entry: Entry, error: Exception) -> VerificationFailedError:
    return VerificationFailedError(f"member {entry.name!r}: damaged compressed data ({error})")
