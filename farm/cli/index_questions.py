"""Questions to the project's index that a command can do without, bounded in time."""

from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from farm.base.errors import InfrastructureError
from farm.run.cancellable import in_thread

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
    answer = in_thread(question)
    if not wait([answer], ANSWER_S).done:
        raise InfrastructureError(f"no answer within {ANSWER_S:g} s")
    return answer.result()
