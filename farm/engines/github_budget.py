"""Keeps the farm's requests to GitHub under half of its secondary limits: the other half is for the user's own.

Source: GitHub Docs, "Rate limits for the REST API": at most 900 points a minute, of which a GET costs 1 and a request
that changes something 5; at most 80 requests a minute that create something.
"""

import threading
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0
POINTS = 440
READ, WRITE = 1, 5
WRITE_EVERY_S = 1.6
"""Seconds between two writes: fewer than 40 a minute. GitHub asks for one second at least."""


class Budget:
    """See the module. `clock` gives seconds, `sleep` waits; both may be a test's."""

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._spent: deque[tuple[float, int]] = deque()
        self._written = float("-inf")

    def spend(self, points: int) -> None:
        """Waits until a request of so many points may be sent, and counts it."""
        with self._lock:
            # The lock is held during the wait too: requests queue behind it, in order, instead of all waking at once.
            wait = self._until_it_fits(points)
            if points == WRITE:
                wait = max(wait, self._written + WRITE_EVERY_S - self._clock())
            if wait > 0:
                self._sleep(wait)
            now = self._clock()
            self._spent.append((now, points))
            if points == WRITE:
                self._written = now

    def _until_it_fits(self, points: int) -> float:
        """Seconds until enough of the last minute's requests are older than that."""
        now = self._clock()
        while self._spent and self._spent[0][0] <= now - WINDOW_S:
            self._spent.popleft()
        # The oldest requests leave the window first: wait for as many of them as make room.
        over = sum(cost for _, cost in self._spent) + points - POINTS
        for when, cost in self._spent:
            if over <= 0:
                break
            over -= cost
            now = when + WINDOW_S
        return now - self._clock()
