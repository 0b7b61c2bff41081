"""A large ELF library, read while it is unpacked: nothing is written to disk, and hardly anything kept.

Unpacked once from its beginning to its end, a library is hashed and searched for device code, which makes up most of
it. What the loader reads is kept: the beginning, the segments without code, and the section headers. Where a library
is not as linkers make them, this gives up, and the library is unpacked to a file (`Archive.content`).
"""

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Iterator

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.elf import Elf, read_elf
from farm.wheel.fatbin import FATBIN_SECTION, UNUSED_SECTION, Container, Found, all_fatbins
from farm.wheel.library import Library, elf_library, group
from farm.wheel.magic import ELF_MAGIC
from farm.wheel.partial import Sliced, TooFarInsideError

_WINDOW = 2 << 20  # bytes behind the place that was read last
_HEAD = 24 << 20  # symbols, their names and relocations stand in front of the code
_MARGIN = 64 << 10  # the names of sections stand beside their headers
_MOST = 64 << 20  # is kept
_PT_LOAD, _PF_X = 1, 1


class Streamed(Sliced):
    """A member that can be sliced like `bytes` as it is unpacked, and behind it where it is kept.

    Raises (from every access):
        TooFarInsideError: The bytes were not kept.
        VerificationFailedError: The member is damaged.
    """

    def __init__(self, chunks: Iterator[bytes], size: int) -> None:
        self._more = chunks
        self._size = size
        self._sha = hashlib.sha256()
        self._starts: list[int] = []
        self._chunks: list[bytes | None] = []
        self._read = 0  # so much was unpacked
        self._passed = 0  # so many chunks have left the window
        self._room = _MOST
        self._keep = [(0, _HEAD)]

    def keep(self, ranges: list[tuple[int, int]]) -> None:
        """Keep what lies there (offset, end) once it has been unpacked."""
        self._keep += ranges

    def finish(self) -> str:
        """Unpack the rest; the sha256 of all in hexadecimal."""
        while self._pull():
            pass
        return self._sha.hexdigest()

    def __len__(self) -> int:
        return self._size

    def find(self, what: bytes, start: int, stop: int) -> int:
        """As `bytes.find`; reads no further than it has to, and copies nothing but borders of chunks."""
        stop = min(stop, self._size)
        over = len(what) - 1
        while start + over < stop:
            first = self._slice(start, start + 1)  # it is there now
            index = bisect_right(self._starts, start) - 1
            chunk, begin = self._chunks[index] or first, self._starts[index]
            if (at := chunk.find(what, start - begin, stop - begin)) >= 0:
                return begin + at
            end = begin + len(chunk)
            border = max(start, end - over)
            if end < stop and (at := self._slice(border, min(end + over, stop)).find(what)) >= 0:
                return border + at
            start = end
        return -1

    def _slice(self, start: int, stop: int) -> bytes:
        while self._read < stop and self._pull():
            pass
        index = bisect_right(self._starts, start) - 1
        parts = []
        at = start
        while at < stop:
            chunk = self._chunks[index]
            if chunk is None:
                raise TooFarInsideError
            begin = self._starts[index]
            parts.append(chunk[at - begin : stop - begin])
            at = begin + len(chunk)
            index += 1
        return b"".join(parts)  # of one, no copy

    def _pull(self) -> bool:
        chunk = next(self._more, b"")
        if not chunk:
            return False
        self._sha.update(chunk)
        self._starts.append(self._read)
        self._chunks.append(chunk)
        self._read += len(chunk)
        while self._starts[self._passed] < self._read - _WINDOW:
            self._leave(self._passed)
            self._passed += 1
        return True

    def _leave(self, index: int) -> None:
        start, chunk = self._starts[index], self._chunks[index] or b""
        if any(low < start + len(chunk) and start < high for low, high in self._keep) and self._room >= len(chunk):
            self._room -= len(chunk)
        else:
            self._chunks[index] = None


def read_streamed(archive: Archive, name: str) -> Library | None:
    """As `farm.wheel.library.read_library` without a CPU level; None: it has to be unpacked.

    Raises:
        VerificationFailedError: The member is damaged.
    """
    data = Streamed(archive.chunks(name), archive.entry(name).size)
    try:
        head = data[:64]
        if head[:6] != ELF_MAGIC + b"\2\1":
            return None
        data.keep(_kept(data, head))
        found = all_fatbins(data)
        sha256 = data.finish()
        elf = read_elf(data)
        containers = _of_sections(elf, found)
        # A cubin: machine code for a GPU, as a file.
        if containers is None or elf.machine == "cuda":
            return None
        return elf_library(name, sha256, data, elf, *group(containers), None)
    except (TooFarInsideError, VerificationFailedError, struct.error):
        return None  # what is wrong with it is said by who reads it from a file


def _kept(data: Streamed, head: bytes) -> list[tuple[int, int]]:
    """Segments without code, and the section headers with what stands beside them."""
    # e_phoff, e_shoff, e_phnum and e_shnum of a 64-bit ELF header.
    table, sections = struct.unpack_from("<QQ", head, 32)
    (count,) = struct.unpack_from("<H", head, 56)
    (headers,) = struct.unpack_from("<H", head, 60)
    ranges = [(sections - _MARGIN, sections + 64 * headers + _MARGIN)]
    for index in range(count):
        at = table + 56 * index
        kind, flags, offset, _, _, size, *_ = struct.unpack("<IIQQQQQQ", data[at : at + 56])
        if kind == _PT_LOAD and not flags & _PF_X:
            ranges.append((offset, offset + size))
    return ranges


def _of_sections(elf: Elf, found: list[Found]) -> list[Container] | None:
    """The fat binaries that count, given the sections; None: they are not where linkers put them."""
    wanted = found
    for section in elf.sections:
        if section.name not in (FATBIN_SECTION, UNUSED_SECTION) or not section.size:
            continue
        start, end = section.offset, section.offset + section.size
        inside = [each for each in found if start <= each.offset < end]
        if any(each.end > end for each in inside):
            return None
        if section.name == UNUSED_SECTION:
            wanted = [each for each in wanted if not start <= each.offset < end]
            continue
        # Back to back, from the section's start to its end, with nothing but zeros between.
        places = [each.offset for each in inside]
        if places[:1] != [start] or inside[-1].following < end:
            return None
        if [each.following for each in inside[:-1]] != places[1:]:
            return None
    return [each.container for each in wanted]
