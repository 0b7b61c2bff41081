"""Questions to the project's index that a command can do without, bounded in time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from farm.base.errors import InfrastructureError

ANSWER_S = 5.0
"""Seconds that an answer may take. What publishes asks a bucket that is away for minutes."""

T = TypeVar("T")


def answer_in_time(question: Callable[[], T]) -> T:
    """Ask a question of the index.

    Args:
        question: The question; what it asks is read alone. It is left to itself where it takes too
            long.

    Returns:
        Its answer.

    Raises:
        FarmError: The index has refused the question.
        InfrastructureError: No answer came in time.
    """
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    # A daemon: the command does not wait for it at its end.
    threading.Thread(target=ask, daemon=True).start()
    if not wait([answer], ANSWER_S).done:
        raise InfrastructureError(f"no answer within {ANSWER_S:g} s")
    return answer.result()
