"""Calls to engines that may never return: each runs in a thread, and the caller waits as long as it likes."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from farm.base.errors import InfrastructureError

T = TypeVar("T")


class NoAnswerError(InfrastructureError):
    """There is no answer yet; it may still come."""


class Asked(Generic[T]):
    """A call in a thread of its own: who waits for its answer does so as long as they like, and may come again."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._since, self._over = time.monotonic(), threading.Event()
        self._value: list[T] = []
        self._error: BaseException | None = None
        # A daemon thread: one that never comes back must not keep the process from ending.
        threading.Thread(target=self._carry_out, args=(call,), daemon=True).start()

    def _carry_out(self, call: Callable[[], T]) -> None:
        try:
            self._value.append(call())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def answer(self, patience_s: float) -> T:
        """What the call gives, or raises.

        Raises:
            NoAnswerError: It has not come back, and `patience_s` have gone.
        """
        if not self._over.wait(patience_s):
            raise NoAnswerError(f"no answer for {time.monotonic() - self._since:.0f} s")
        if self._error is not None:
            raise self._error
        return self._value[0]
