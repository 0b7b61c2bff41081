"""Copies a part of one file to another without taking it through this process.

Long parts go from the cached pages of the one straight to the disk of the other (O_DIRECT): the copy in memory costs
more time than all else that a repair does, and the fsync that follows has nothing left to write.
"""

import mmap
import os
from contextlib import suppress

_BLOCK = 4096  # of disks and pages; where either has larger ones, the system refuses and the other way is taken
_LONG = 4 << 20
_WINDOW = 8 << 20  # mapped at a time, so that memory does not grow with the file


def copy_range(source: int, target: int, start: int, end: int) -> int:
    """Write bytes `start` to `end` of one open file at the position of another, by the kernel.

    Returns:
        How far it got: less than `end` on systems that cannot, between some file systems, or at the source's end.
    """
    position = os.lseek(target, 0, os.SEEK_CUR)
    border = start + -position % _BLOCK
    if end - border >= _LONG and border % _BLOCK == 0 and hasattr(os, "O_DIRECT"):
        start = _by_kernel(source, target, start, border)
        if start == border:
            start = _directly(source, target, start, end - end % _BLOCK)
    return _by_kernel(source, target, start, end)


def _by_kernel(source: int, target: int, start: int, end: int) -> int:
    while start < end and hasattr(os, "copy_file_range"):
        try:
            count = os.copy_file_range(source, target, end - start, start)
        except OSError:  # another file system, an old kernel; a full disk is met again by who writes the rest
            break
        if not count:
            break
        start += count
    return start


def _directly(source: int, target: int, start: int, end: int) -> int:
    """Whole blocks past the page cache; returns how far it got."""
    import fcntl  # noqa: PLC0415 (not on Windows)

    flags = fcntl.fcntl(target, fcntl.F_GETFL)
    with suppress(OSError, ValueError):  # a file system without it; a source that has become shorter
        fcntl.fcntl(target, fcntl.F_SETFL, flags | os.O_DIRECT)
        while start < end:
            with mmap.mmap(source, min(_WINDOW, end - start), access=mmap.ACCESS_READ, offset=start) as view:
                count = os.write(target, view)
            start += count
            if not count or count % _BLOCK:
                break
    fcntl.fcntl(target, fcntl.F_SETFL, flags)
    return start
