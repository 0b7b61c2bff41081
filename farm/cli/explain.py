"""`farm inspect --explain`: what a message means, in words."""

import sys
from collections.abc import Sequence
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.smoke.causes import causes_of
from farm.wheel import explain as loaders
from farm.wheel.explain import Explanation


def message_of(argument: str) -> str:
    """The message: the argument itself, or with `-` what stands on the input.

    Raises:
        UsageError: Nothing is there.
    """
    text = sys.stdin.read() if argument == "-" else argument
    if not text.strip():
        raise UsageError("--explain: no message", hint="paste it as the argument, or on the input with --explain -")
    return text


def explained(path: Path, message: str) -> tuple[Explanation, ...]:
    """A loader's errors by the files of the wheel or package; else what is known of failed smoke tests.

    Raises:
        UsageError: There is no such file or folder, no library in it, or no known error in the message.
        VerificationFailedError: The wheel is damaged.
    """
    if found := loaders.explain(path, message):
        return found
    causes = causes_of(message, module=path.name.partition("-")[0])
    if not causes:
        raise UsageError(
            "no known error in the message",
            hint="paste the line with the error, such as '[WinError 126] …' or 'undefined symbol: …'",
        )
    return tuple(Explanation(message=each.id.replace("-", " "), cause=each.what, cure=each.fix) for each in causes)


def explain(found: Sequence[Explanation]) -> None:
    """Cause, culprits and cure of each."""
    for each in found:
        show.say(f"{each.message}: {each.cause}")
        for culprit in each.culprits:
            show.say(f"  {culprit}")
        show.say(f"  what to do: {each.cure}")
