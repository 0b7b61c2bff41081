"""Something true on the screen while a step prints nothing: a download's bytes, what a container
does.

A program that draws its progress overwrites one line many times; of those lines the newest is
passed on now and then.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

TICK_S = 2.0  # a line that is overwritten is passed on at most this often
DESCRIBE_S = 6.0  # well below the ten seconds that a screen may stand still

Line = Callable[[str], object]
Describe = Callable[[float], str | None]


class Heartbeat:
    """Passes lines on to `out`, and speaks when there are none; at the end of the context it stops.

    After `describe_s` seconds without a line a thread calls `describe` with the seconds of silence,
    for what goes on in words; None: nothing is known. Whatever it raises ends the asking: it must
    not end the work.
    """

    def __init__(self, out: Line, describe: Describe, describe_s: float = DESCRIBE_S) -> None:
        self._out = out
        self._describe = describe
        self._describe_s = describe_s
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pending: str | None = None
        self._spoke = self._heard = time.monotonic()

    def line(self, text: str) -> None:
        """A whole line."""
        with self._lock:
            self._pending = None
            self._heard = self._spoke = time.monotonic()
        self._out(text)

    def overwrite(self, text: str) -> None:
        """A line that the next one overwrites."""
        with self._lock:
            self._pending = text
            self._heard = time.monotonic()

    def emit(self, now: float) -> None:
        """Speaks if it is time to; `now` is of `time.monotonic`."""
        with self._lock:
            text = self._pending
            self._pending = None
            heard = self._heard
            asks = text is None and now - self._spoke >= self._describe_s
        if asks:
            text = self._describe(now - heard)
        with self._lock:
            # What came while it was asked is newer.
            if text is None or self._stopped.is_set() or (asks and self._heard != heard):
                return
            self._spoke = now
            self._out(text)  # the lock is held: else it could come after the end

    def _run(self) -> None:
        while not self._stopped.wait(TICK_S):
            try:
                self.emit(time.monotonic())
            except Exception:  # whatever it was about: the work goes on without these words
                return

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, name="farm-heartbeat", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        with self._lock:  # what is being said now comes before the end
            pass


def megabytes(done: int, total: int | None = None) -> str:
    """`12.3 of 85.0 MB`, `12.3 MB` where the total is unknown."""
    if not total:
        return f"{done / 1e6:.1f} MB"
    return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
