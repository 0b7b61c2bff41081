"""`farm inspect --explain`: what a loader's message means, in words."""

import sys
from collections.abc import Sequence

from farm.cli import show
from farm.errors import UsageError
from farm.wheel.explained import Explanation


def message_of(argument: str) -> str:
    """The message: the argument itself, or with `-` what stands on the input.

    Raises:
        UsageError: Nothing is there.
    """
    text = sys.stdin.read() if argument == "-" else argument
    if not text.strip():
        raise UsageError("--explain: no message", hint="paste it as the argument, or on the input with --explain -")
    return text


def explain(found: Sequence[Explanation]) -> None:
    """Cause, culprits and cure of each."""
    for each in found:
        show.say(f"{each.message}: {each.cause}")
        for culprit in each.culprits:
            show.say(f"  {culprit}")
        show.say(f"  what to do: {each.cure}")
