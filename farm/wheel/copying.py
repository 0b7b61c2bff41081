"""Copies a part of one file to another without taking it through this process.

Long parts go from the cached pages of the one straight to the disk of the other: through a pipe, which holds the pages
themselves, and past the target's cache (O_DIRECT). The copy in memory costs more time than all else that a repair
does, and the fsync that follows has nothing left to write.
"""

import os
from contextlib import suppress

_BLOCK = 4096  # of disks and pages; where either has larger ones, the system refuses and the other way is taken
_LONG = 4 << 20
_WINDOW = 1 << 20  # in the pipe at a time: the most that Linux gives without asking (/proc/sys/fs/pipe-max-size)


def copy_range(source: int, target: int, start: int, end: int) -> int:
    """Write bytes `start` to `end` of one open file at the position of another, by the kernel.

    Returns:
        How far it got: less than `end` on systems that cannot, between some file systems, or at the source's end.
    """
    position = os.lseek(target, 0, os.SEEK_CUR)
    # O_DIRECT writes whole blocks: bytes before the target's next block go the usual way.
    border = start + -position % _BLOCK
    if end - border >= _LONG and border % _BLOCK == 0 and hasattr(os, "splice") and hasattr(os, "O_DIRECT"):
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
    pipe_out, pipe_in = os.pipe()
    try:
        with suppress(OSError):  # a file system without it, a pipe that may not be so large
            fcntl.fcntl(pipe_in, fcntl.F_SETPIPE_SZ, _WINDOW)
            fcntl.fcntl(target, fcntl.F_SETFL, flags | os.O_DIRECT)
            while start < end and (waiting := os.splice(source, pipe_in, min(_WINDOW, end - start), start)):
                while waiting:
                    count = os.splice(pipe_out, target, waiting)
                    start += count
                    waiting -= count
    finally:
        fcntl.fcntl(target, fcntl.F_SETFL, flags)
        os.close(pipe_out)
        os.close(pipe_in)
    return start
