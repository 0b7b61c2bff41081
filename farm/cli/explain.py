"""`farm inspect --explain` and `--why-126`: what a message means, and which DLL is missing, in words."""

import sys
from collections.abc import Sequence
from pathlib import Path

from farm.base.errors import UsageError
from farm.cli import show
from farm.smoke.causes import causes_of
from farm.wheel import explain as loaders
from farm.wheel.explain import Diagnosis, Explanation

_WHEN = {
    "load": "importing fails with WinError 126",
    "call": "delay-loaded: the first call into it fails",
    "name": "loaded by name: the function that asks for it fails",
}


def message_of(argument: str) -> str:
    """The message: the argument itself, or with `-` what is on the input.

    Raises:
        UsageError: Nothing is there.
    """
    text = sys.stdin.read() if argument == "-" else argument
    if not text.strip():
        raise UsageError("--explain: no message", hint="paste it as the argument, or on the input with --explain -")
    return text


def explanations_of(path: Path, message: str) -> tuple[Explanation, ...]:
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
            hint="paste the line with the error, such as '[WinError 126] …' or 'undefined symbol: …'; if it stays "
            "unknown, send the whole traceback, the name of the wheel and the output of `farm detect` to the farm",
        )
    return tuple(Explanation(message=each.id.replace("-", " "), cause=each.what, cure=each.fix) for each in causes)


def print_explanations(found: Sequence[Explanation]) -> None:
    """Cause, culprits and cure of each."""
    for each in found:
        show.say(f"{each.message}: {each.cause}")
        for culprit in each.culprits:
            show.say(f"  {culprit}")
        show.say(f"  what to do: {each.cure}")


def print_missing(found: Diagnosis) -> None:
    """Every missing DLL: who needs it, how the loader comes to it, and where it is to be had."""
    if not found.missing:
        show.say(f"{found.where}: no DLL is missing; Windows can load everything in it")
        return
    for item in found.missing:
        show.say(f"{item.name} is missing ({_WHEN[item.when]})")
        show.say(f"  needed by: {', '.join(item.needed_by)}")
        if item.chain:
            show.say(f"  chain: {' -> '.join(item.chain)}")
        if item.elsewhere:
            show.say(f"  there is one at {item.elsewhere}, where Windows does not look")
        show.say(f"  get it from: {item.source or 'unknown: look for the name in the build environment'}")
    if found.named:
        verdict = "it is innocent: it is only the first file whose chain of imports is broken"
        if not found.innocent:
            verdict = "it is there; what it needs is not"
        show.say(f"Python's message names {found.named}: {verdict}")
