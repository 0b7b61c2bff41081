"""A new wheel from an old one, with unchanged members copied as compressed bytes.

Same input, same bytes: order is kept, new members come last in the order given, RECORD at the very end, and what
is new carries the date 1980-01-01. Nothing is recompressed, so the cost is that of copying the file.
"""

import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from farm.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Archive, check_name
from farm.wheel.record import Row, render_record
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

_CHUNK = 1 << 20
_LEVEL = 6


@dataclass(frozen=True)
class NewMember:
    """A member to write: `content` is the bytes themselves or a file to stream; `mode` its permission bits."""

    name: str
    content: bytes | Path
    mode: int = 0o644


def rewrite(
    source: Archive,
    dest: Path,
    *,
    record: str,
    hashes: Mapping[str, tuple[str, int]],
    drop: frozenset[str] = frozenset(),
    rename: Mapping[str, str] | None = None,
    new: Sequence[NewMember] = (),
) -> dict[str, tuple[str, int]]:
    """Write `dest` from `source`: some members dropped or renamed, new ones added, RECORD rebuilt.

    Args:
        source: The wheel to copy from.
        dest: The file to write. It appears whole (temporary file, fsync, rename) or not at all.
        record: Name of RECORD in the new wheel. Members of `source` with the old name must be in `drop`.
        hashes: (sha256 in hexadecimal, length in bytes) of every kept file of `source`, by old name.
        drop: Names in `source` to leave out. To replace a member, drop it and add a new one.
        rename: Old name to new name.
        new: What to add, deflated, in this order.

    Returns:
        (sha256, length) of each new member, by name.

    Raises:
        VerificationFailedError: Two members would get one name, or a name is unsafe.
        UsageError: `dest` cannot be written or a new member's file cannot be read.
    """
    renamed = rename or {}
    kept = [(entry, renamed.get(name, name)) for name, entry in source.members.items() if name not in drop]
    _check_names([name for _, name in kept] + [member.name for member in new] + [record])
    try:
        with ExitStack() as stack:
            handle, temporary_name = tempfile.mkstemp(prefix=".wheel-", suffix=".tmp", dir=dest.parent)
            temporary = Path(temporary_name)
            stack.callback(temporary.unlink, missing_ok=True)
            with os.fdopen(handle, "wb", buffering=0) as file:
                writer = _Writer(file)
                rows = []
                for entry, name in kept:
                    writer.copy(source, entry, name)
                    if not entry.is_dir:
                        rows.append(Row(name, *hashes[entry.name]))
                written = {}
                for member in new:
                    written[member.name] = writer.add(member)
                    rows.append(Row(member.name, *written[member.name]))
                rows.append(Row(record, None, None))
                writer.add(NewMember(record, render_record(rows)))
                writer.finish()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(dest)
            _sync_folder(dest.parent)
    except OSError as error:
        raise UsageError(f"{dest}: cannot be written ({error})") from error
    return written


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.entries: list[Entry] = []

    def copy(self, source: Archive, entry: Entry, name: str) -> None:
        """Copy a member raw, under a fresh local header: no descriptor, no odd extra fields."""
        offset = self.file.tell()
        moved = replace(entry, name=name, header_offset=offset)
        header = local_header(moved, wide=needs_zip64(entry.size, entry.compressed))
        self._write(header)
        if not self._copy_range(source, entry, offset + len(header)):
            for chunk in source.raw(entry):
                self._write(chunk)
        self.entries.append(moved)

    def add(self, member: NewMember) -> tuple[str, int]:
        """Deflate a new member, then write its header over the room left for it."""
        offset = self.file.tell()
        length = len(member.content) if isinstance(member.content, bytes) else member.content.stat().st_size
        wide = needs_zip64(length + (length >> 8) + 1024)  # deflate adds 5 bytes in 16 KiB at worst
        mode = stat.S_IFREG | member.mode
        blank = Entry(member.name, DEFLATED, *DOS_EPOCH, 0, 0, 0, mode << 16, MADE_BY_UNIX, offset)
        self._write(local_header(blank, wide=wide))
        data = self.file.tell()
        sha = hashlib.sha256()
        deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        crc = size = 0
        for chunk in _pieces(member.content):
            sha.update(chunk)
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            self._write(deflater.compress(chunk))
        self._write(deflater.flush())
        if size != length:
            raise VerificationFailedError(f"member {member.name!r}: its file changed while it was read")
        end = self.file.tell()
        entry = replace(blank, crc=crc, size=size, compressed=end - data)
        self.file.seek(offset)
        self._write(local_header(entry, wide=wide))
        self.file.seek(end)
        self.entries.append(entry)
        return sha.hexdigest(), size

    def finish(self) -> None:
        start = self.file.tell()
        directory = b"".join(central_header(entry) for entry in self.entries)
        self._write(directory + end_records(len(self.entries), start, len(directory)))

    def _copy_range(self, source: Archive, entry: Entry, position: int) -> bool:
        """Let the kernel copy (it may share blocks); False, with the file position unmoved, where it cannot."""
        if not hasattr(os, "copy_file_range"):
            return False
        done = 0
        while done < entry.compressed:
            try:
                count = os.copy_file_range(
                    source.fileno(),
                    self.file.fileno(),
                    entry.compressed - done,
                    entry.data_offset + done,
                    position + done,
                )
            except OSError:
                count = 0  # another file system, an old kernel
            if count == 0:
                return False
            done += count
        self.file.seek(position + entry.compressed)
        return True

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.file.write(view) :]


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        check_name(name)
        if name in seen:
            raise VerificationFailedError(f"member {name!r}: the new wheel would hold it twice")
        seen.add(name)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
