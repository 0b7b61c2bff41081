"""Locks on open files that the kernel drops with their holder, on POSIX and on Windows.

The Windows half follows the documentation of `msvcrt.locking`; it was run under Wine, not on Windows.
"""

import sys

if sys.platform == "win32":
    import errno
    import msvcrt
    import os
    import time

    _BYTE = 1 << 40
    """Windows locks keep others from reading: this byte is far behind every content."""

    def lock(descriptor: int, *, wait: bool) -> None:
        """Locks an open file; BlockingIOError where somebody else has it and `wait` is false."""
        while True:
            os.lseek(descriptor, _BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if error.errno not in (errno.EACCES, 0):  # EACCES: somebody has it; Wine's C library says nothing
                    raise
                if not wait:
                    raise BlockingIOError(error.errno, error.strerror) from error
                time.sleep(0.02)  # LK_LOCK looks only once a second, and gives up after ten
            else:
                return
            finally:
                os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def lock(descriptor: int, *, wait: bool) -> None:
        """Locks an open file; BlockingIOError where somebody else has it and `wait` is false."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
