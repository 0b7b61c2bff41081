"""Ctrl-C, and the signals that count as it, at a moment when something can be undone."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class OutputClosed(KeyboardInterrupt):
    """Nobody reads the output any more; no OSError, which a writer of files would take for a
    failure of the disk.
    """


NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Holds back a first Ctrl-C (or SIGTERM, SIGHUP) to the end of the block; a second one ends it
    at once.

    For a question whose answer names what was made: Docker makes a container also where no one
    waits for its answer any more. Signals reach the main thread alone; in another one this changes
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
    before = {
        number: handler for number in numbers if callable(handler := signal.getsignal(number))
    }
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            before[number](number, frame)

    try:
        for number in before:
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
