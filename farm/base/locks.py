"""Locks on open files that the kernel drops with their holder, on POSIX and on Windows.

The Windows half ran under Wine 8. It asks Windows itself, since `msvcrt.locking` of Wine fails
without a reason, and that of Windows gives up after ten seconds.
"""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

if sys.platform == "win32":
    import ctypes
    import msvcrt
    import time
    from ctypes import wintypes

    # LockFileEx, Win32 API: LOCKFILE_FAIL_IMMEDIATELY | LOCKFILE_EXCLUSIVE_LOCK;
    # ERROR_LOCK_VIOLATION.
    _AT_ONCE_ALONE = 0x1 | 0x2
    _TAKEN = 33
    _POLL_S = 0.02  # a wait inside of LockFileEx could not be interrupted

    class _Place(ctypes.Structure):
        """OVERLAPPED: Windows locks keep others from reading, so one byte far behind every content
        is locked.
        """

        _fields_ = (
            ("internal", ctypes.c_void_p * 2),
            ("offset", wintypes.DWORD),
            ("offset_high", wintypes.DWORD),
            ("event", wintypes.HANDLE),
        )

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.LockFileEx.argtypes = (wintypes.HANDLE, *(wintypes.DWORD,) * 4, ctypes.POINTER(_Place))

    def lock(descriptor: int, *, wait: bool) -> None:
        """Locks an open file; BlockingIOError where someone else has it and `wait` is false."""
        handle = msvcrt.get_osfhandle(descriptor)
        while not _kernel.LockFileEx(
            handle, _AT_ONCE_ALONE, 0, 1, 0, ctypes.byref(_Place(offset_high=1 << 8))
        ):
            number = ctypes.get_last_error()
            if number != _TAKEN:
                raise ctypes.WinError(number)
            if not wait:
                raise BlockingIOError("another process holds the lock")
            time.sleep(_POLL_S)

else:
    import fcntl

    def lock(descriptor: int, *, wait: bool) -> None:
        """Locks an open file; BlockingIOError where someone else has it and `wait` is false."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


RETRY_S = 10.0  # how long a writer waits for readers of a file that it replaces; on Windows only

_T = TypeVar("_T")


def retry_while_open(call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """On Windows a file cannot be replaced while it is read, nor opened while it is replaced: tried
    again a while.
    """
    if sys.platform != "win32":
        return call(*arguments, **named)
    end = time.monotonic() + RETRY_S
    while True:
        try:
            return call(*arguments, **named)
        except PermissionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
