"""Deflate for new members, in memory that does not grow with them.

With the package `isal` (an extra) this takes a tenth of zlib's time and gives files about a tenth larger; without it,
zlib packs blocks of 1 MiB in several threads. The bytes depend on which of the two it is and on its version, not on
the number of threads, the machine or the time. Both write plain deflate (RFC 1951).
"""

import os
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

isal_zlib: Any
try:
    isal_zlib = import_module("isal.isal_zlib")
except ImportError:
    isal_zlib = None

BLOCK = 1 << 20
_WINDOW = 1 << 15
_LEVEL = 6
_ISAL_LEVEL = 2  # 3, its highest, takes half as long again for 1 % less
_MAX_THREADS = 8


def deflate(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A raw deflate stream of what `chunks` hold together; chunks of 1 MiB are best."""
    if isal_zlib is None:
        yield from _threaded(chunks)
        return
    packer = isal_zlib.compressobj(_ISAL_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    for chunk in chunks:
        yield packer.compress(chunk)
    yield packer.flush()


def _threaded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Every chunk by itself, with the 32 KiB before it as dictionary, so hardly anything is lost by the cut."""
    from concurrent.futures import Future, ThreadPoolExecutor  # noqa: PLC0415 (slow to import, and not always needed)

    threads = min(_MAX_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[bytes]] = deque()
    before = b""
    with ThreadPoolExecutor(threads) as pool:
        for chunk in chunks:
            waiting.append(pool.submit(_block, chunk, before))
            before = chunk[-_WINDOW:]
            # One chunk more than threads: none of them waits, and memory stays bounded.
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    yield b"\x03\x00"  # an empty block that is marked as the last one


def _block(chunk: bytes, before: bytes) -> bytes:
    if before:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=before)
    else:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    # A sync flush ends at a byte's border with an empty stored block, so that chunks can be put one behind the other.
    return packer.compress(chunk) + packer.flush(zlib.Z_SYNC_FLUSH)
