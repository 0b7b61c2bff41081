"""Work before a build that a cancel ends at once, whatever it waits for: a registry, a download,
an image.

`farm cancel` is another process, and says so in the journal alone. Work that prints lines looks
there at each of them. Work that is silent for minutes is left to itself by the dispatcher, and is
interrupted, as Ctrl-C does, in a command that carries out a run itself.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from farm.base.errors import ExitCode, FarmError
from farm.run.workspace import Step, Watcher

T = TypeVar("T")

CANCEL_LOOK_S = 1.0
"""How often the journal is asked for a cancel, at most."""


class CancelledError(FarmError):
    """Someone asked for the end of the run (130, as for Ctrl-C)."""

    exit_code = ExitCode.INTERRUPTED


class CancellableWatcher(Watcher):
    """Passes everything on to another watcher, and looks for a cancel at most once a second."""

    def __init__(self, watcher: Watcher, check: Callable[[], None]) -> None:
        self._watcher = watcher
        self._check = check
        self._checked = float("-inf")

    def _look(self) -> None:
        if time.monotonic() - self._checked >= CANCEL_LOOK_S:
            self._checked = time.monotonic()
            self._check()

    def step(self, name: str) -> None:
        self._watcher.step(name)

    def ended(self, step: Step) -> None:
        self._watcher.ended(step)

    def line(self, text: str) -> None:
        self._watcher.line(text)
        self._look()

    def note(self, text: str) -> None:
        self._watcher.note(text)
        self._look()

    def progress(self, done: int, total: int) -> None:
        self._watcher.progress(done, total)
        self._look()


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Make a call in a thread of its own, since an engine may never return: such a one must not
    keep the process alive.
    """
    answer: Future[T] = Future()

    def carry_out() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=carry_out, daemon=True).start()
    return answer


def left_at_cancel(
    call: Callable[[], T],
    check: Callable[[], None],
    discard: Callable[[T], object] = lambda _result: None,
) -> T:
    """Return what a call gives, unless a cancel comes first.

    The call then goes on in its thread until it prints its next line, or has ended; what it makes
    in between serves the next build (an image, a download), or goes to `discard`.

    Raises:
        CancelledError: `check` raised it.
    """
    answer = in_thread(call)
    try:
        while not wait([answer], CANCEL_LOOK_S).done:
            check()
    except BaseException:
        answer.add_done_callback(lambda done: done.exception() or discard(done.result()))
        raise
    return answer.result()


@contextlib.contextmanager
def interrupted_at_cancel(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the block, as Ctrl-C does, when a cancel comes; in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(CANCEL_LOOK_S):
            if cancelled():
                _interrupt_main_thread()
                return

    looking = threading.Thread(target=look, name="farm-cancel", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _interrupt_main_thread() -> None:
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:  # it also ends a system call that waits
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
