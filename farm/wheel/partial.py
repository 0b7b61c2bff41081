"""A few bytes out of a large deflated member, without unpacking it whole.

Deflate (RFC 1951) can be read from its beginning only, and what a library needs is written near its end: behind
200 MB of code in PyTorch's case. But a deflate stream is made of blocks, and one can be found without what stands
before it: its header must hold a complete Huffman code, which of a hundred thousand bit positions hardly one does
by chance. From there on only the 32 KiB before the block are unknown, which later bytes may be copies of. So the
stream is unpacked twice, with two dictionaries that differ in every byte: what comes out alike does not depend on
them, and as soon as 32 KiB in a row do, all that follows is known. The stream has to stop exactly at the member's
end, which also tells where in the member the bytes belong.

What is read so has not passed the member's CRC: it serves to ask what a library needs, never to vouch for a wheel.
The search is the one of rapidgzip (Knespel and Brunst, 2023) and pugz (Kerbiriou and Chikhi, 2019).
"""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import chain, islice
from typing import IO, overload

from farm.base.errors import VerificationFailedError
from farm.wheel.archive import Archive
from farm.wheel.inflate import InflateErrors, inflater
from farm.wheel.zipformat import DEFLATED, Entry

_WHOLE = 1 << 20  # smaller members are simply unpacked
_HEAD = 32 << 20  # of this much is kept in memory
_TAIL = 256 << 20  # of this much is kept, in a temporary file above _IN_MEMORY
_IN_MEMORY = 48 << 20  # a file takes a third longer
_SEARCH = 1 << 17  # the blocks of common compressors are 10 to 60 kB
_PIECE = 1 << 14  # unpacked, it stays in the processor's cache, and in memory that the process has already
_TRIAL = 1 << 16
_HEADER = 11  # bytes that hold a block's 74 bits up to the code for its codes, wherever in the first it begins
_CODES = 1 << 10  # bytes: a block's codes take at most 290
_STEP = 1 << 12  # by which the search goes on: a block begins within a few
_MOST = 72 << 20  # deflate packs at most 1032 to 1
_WINDOW = 1 << 15
_ENOUGH = 20_000  # bytes that a false block start does not yield
_TRIES = 4
_LEFT = bytes(range(256)) * (_WINDOW >> 8)
_RIGHT = bytes(255 - byte for byte in _LEFT)
_LITERALS = (0b000010011, 0b111111111)  # 144 and 255, as the fixed codes write them
# Where a block with its own codes may begin, with the usual numbers of codes: RFC 1951 section 3.2.7.
_BLOCK = re.compile(
    b"(?=[%s][%s])"
    % (
        re.escape(bytes(byte for byte in range(256) if byte & 7 == 4 and 12 <= byte >> 3 <= 29)),
        re.escape(bytes(byte for byte in range(256) if 20 <= byte & 31 <= 29)),
    )
)
_SHARE = [128 >> length if length else 0 for length in range(8)]
_SHARES = [high + low for high in _SHARE for low in _SHARE]  # of two lengths
_SHARES = [high + low for high in _SHARES for low in _SHARES]  # of four


class TooFarInsideError(Exception):
    """The bytes cannot be had cheaply: unpack the member."""


class Unpacked:
    """What has been unpacked of a stream: in memory as it came, or in a temporary file where that is much."""

    def __init__(self) -> None:
        self.size = 0
        self._chunks: list[bytes] = []
        self._starts: list[int] = []
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        """Forget everything."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._chunks.clear()
        self._starts.clear()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        if self._file is None and self.size + len(chunk) > _IN_MEMORY:
            from tempfile import TemporaryFile  # noqa: PLC0415 (slow to import, and not always needed)

            self._file = TemporaryFile()  # noqa: SIM115 (`close` closes it)
            self._file.writelines(self._chunks)
            self._chunks.clear()
        if self._file is not None:
            self._file.write(chunk)
        else:
            self._starts.append(self.size)
            self._chunks.append(chunk)
        self.size += len(chunk)

    def read(self, start: int, stop: int) -> bytes:
        if self._file is not None:
            self._file.seek(start)
            return self._file.read(stop - start)
        index = max(bisect_right(self._starts, start) - 1, 0)
        there = b"".join(self._chunks[index : bisect_left(self._starts, stop)])  # of one chunk, no copy
        return there[start - self._starts[index] : stop - self._starts[index]] if there else b""


class Sliced(ABC):
    """What can be sliced like `bytes`, and reads what is asked for."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _slice(self, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop`, which lies behind it and not behind the end."""

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> bytes: ...
    def __getitem__(self, place: int | slice) -> int | bytes:
        if isinstance(place, int):
            return self._slice(place, place + 1)[0]
        start, stop, _ = place.indices(len(self))
        return self._slice(start, stop) if start < stop else b""


class PartialMember(Sliced):
    """A member that can be sliced like `bytes`. Close it: its end may lie in a temporary file.

    Raises (from every access):
        TooFarInsideError: The bytes lie too far inside.
        VerificationFailedError: The member is damaged.
    """

    def __init__(self, archive: Archive, entry: Entry) -> None:
        self._archive = archive
        self._entry = entry
        self._head = bytearray()
        self._tail: Unpacked | None = None
        self._tail_from = entry.size
        if entry.method == DEFLATED and entry.size > _WHOLE:
            self._more: Iterator[bytes] = archive.inflate(entry, _PIECE)
        else:
            self._more = archive.chunks(entry.name)

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def __len__(self) -> int:
        return self._entry.size

    def find(self, what: bytes, start: int, stop: int) -> int:
        at = self[start:stop].find(what)
        return at if at < 0 else start + at

    def _slice(self, start: int, stop: int) -> bytes:
        if stop > len(self._head):
            size = len(self)
            if size > _WHOLE and self._entry.method == DEFLATED and start > size // 2:
                tail = self._tail if self._tail and start >= self._tail_from else self._load_tail(start)
                return tail.read(start - self._tail_from, stop - self._tail_from)
            if stop > _HEAD:
                raise TooFarInsideError
            while len(self._head) < stop and (chunk := next(self._more, b"")):
                self._head += chunk
            if len(self._head) < min(stop, size):
                raise VerificationFailedError(f"member {self._entry.name!r}: its compressed data are cut off")
        return bytes(memoryview(self._head)[start:stop])

    def _load_tail(self, start: int) -> Unpacked:
        entry = self._entry
        wanted = entry.size - start
        end = entry.data_offset + entry.compressed
        # Where to begin: three quarters of what the wanted bytes take if all of the member packs alike, and a margin.
        back = _SEARCH * 4 + entry.compressed * wanted * 3 // (entry.size * 4)  # tables pack better than code
        while wanted <= _TAIL and back < entry.compressed:
            self.close()
            for place, shift in islice(self._block_starts(end - back), _TRIES):
                with ExitStack() as stack:
                    tail = stack.enter_context(closing(Unpacked()))
                    if (
                        _unpack(self._archive.span(place, end, _PIECE), shift, tail)
                        and wanted <= tail.size <= entry.size
                    ):
                        stack.pop_all()
                        self._tail, self._tail_from = tail, entry.size - tail.size
                        return tail
            # Too near the end: it held no block's start, or what was unpacked began behind what is wanted.
            back *= 2
        raise TooFarInsideError

    def _block_starts(self, begin: int) -> Iterator[tuple[int, int]]:
        """Places (byte in the file, bit in it) behind `begin` where a block of the stream seems to begin."""
        whole = b"".join(self._archive.span(begin, begin + _SEARCH + _TRIAL))
        for start in range(0, _SEARCH, _STEP):
            span = int.from_bytes(whole[start : start + _STEP + _HEADER], "little")
            for shift in range(8):
                moved = (span >> shift).to_bytes(_STEP + _HEADER, "little")
                for match in _BLOCK.finditer(moved, 0, _STEP):
                    at = match.start()
                    if not _is_complete(int.from_bytes(moved[at : at + 10], "little")):
                        continue
                    if _is_block(whole[start + at : start + at + _TRIAL], shift):
                        yield begin + start + at, shift


def _is_complete(header: int) -> bool:
    """Whether the code for the code lengths is complete: the sum of 2^-length over its symbols is 1."""
    # Three bits of block header and type, five and five for the numbers of codes, four for HCLEN (RFC 1951, 3.2.7).
    count = (header >> 13 & 15) + 4
    header = header >> 17 & (1 << 3 * count) - 1
    total = 0
    while header:
        total += _SHARES[header & 4095]
        header >>= 12
    return total == 128


def _is_block(raw: bytes, shift: int) -> bool:
    """Whether what begins at bit `shift` can be unpacked, and to how much; most of what cannot fails in its codes."""
    output = b""
    for part in (raw[:_CODES], raw):
        block = int.from_bytes(part, "little") >> shift
        try:
            output = inflater(_LEFT, lenient=True).decompress(block.to_bytes(len(part), "little"))
        except InflateErrors:
            return False
    return len(output) >= _ENOUGH


def _with_start(first: int, shift: int, literal: int) -> bytes:
    """What to put in place of a byte in which a block begins at bit `shift`, so that a stream begins there.

    A block of the fixed codes, ten bits when empty, that literals of nine bits lengthen to end at that bit. (Moving
    the stream instead would not do: stored blocks begin at a byte's border.)
    """
    # 9 is 1 modulo 8: each literal of nine bits moves the end of the block by one bit.
    count = (shift - 2) % 8
    bits = 0b010 | sum(literal << 3 + 9 * index for index in range(count))
    length = 10 + 9 * count
    return (bits | first >> shift << length).to_bytes((length + 8 - shift) // 8, "little")


def _unpack(pieces: Iterator[bytes], shift: int, known: Unpacked) -> bool:
    """Unpack from bit `shift` of the first piece on; write what is known of the output, up to the stream's end.

    Returns:
        Whether the stream ends where the pieces do.
    """
    left, right = inflater(_LEFT, lenient=True), inflater(_RIGHT, lenient=True)
    first = next(pieces)
    starts = [_with_start(first[0], shift, literal) for literal in _LITERALS]
    settled = False
    room = 2 * _TAIL
    try:
        left.decompress(starts[0])
        right.decompress(starts[1])
        for piece in chain([first[1:]], pieces):
            output = left.decompress(piece, _MOST)
            room -= len(output)
            if room < 0 or left.unconsumed_tail:
                return False
            if not settled:
                if output != right.decompress(piece, _MOST):
                    # They still differ, so the window before this point was not known: nothing until here counts.
                    known.close()
                    continue
                # A copy reaches back at most 32 KiB: from here on the second stream would only repeat the first.
                settled = known.size + len(output) >= _WINDOW
            known.add(output)
    except InflateErrors:
        return False
    # A true start ends with the last block exactly where the member ends; a chance hit does not.
    return settled and left.eof and not left.unused_data
