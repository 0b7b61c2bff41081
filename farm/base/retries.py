"""Trying again while another program has a file open, which Windows asks for and POSIX does not."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

RETRY_S = 10.0
"""How long a writer waits for readers of a file that it replaces; on Windows only."""

_T = TypeVar("_T")


def retry_while_open(call: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """On Windows a file cannot be replaced while it is read, nor opened while it is replaced: tried again.

    Who reads may be another thread, another program of ours, a virus scanner or the search index.

    Raises:
        PermissionError: Still refused after `RETRY_S` seconds.
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
