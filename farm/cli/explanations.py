"""`farm inspect --explain`: what an error message means, by the files of a wheel or package."""

import sys
from pathlib import Path

from farm.base import failures
from farm.base.errors import UsageError
from farm.wheel.explain.explanation import Explanation, explain


def explanations_of(path: Path, argument: str) -> tuple[Explanation, ...]:
    """A message, with `-` that on the input, by the files of the wheel or package; UsageError if it
    is not known.
    """
    message = sys.stdin.read() if argument == "-" else argument
    if not message.strip():
        raise UsageError(
            "--explain: no message",
            hint="paste it as the argument, or on the input with --explain -",
        )
    lines = message.splitlines()
    if failures.is_build_log(lines):
        return (_failure_of_build(lines),)
    explanations = explain(path, message)
    if not explanations and failures.read(lines).cause:
        return (_failure_of_build(lines),)
    if not explanations:
        raise UsageError(
            "no known error in the message",
            hint="paste the line with the error, such as '[WinError 126] …' or 'undefined symbol: "
            "…'; if it stays "
            "unknown, send the whole traceback, the name of the wheel and the output of `farm "
            "detect` to the farm",
        )
    return explanations


def _failure_of_build(log: list[str]) -> Explanation:
    """Return what a build's log says of its failure: nothing in a wheel's files explains it."""
    failure = failures.read(log, build=True, machine=True)
    return Explanation(
        message=f"a failed build: {failure.lines[0]}",
        cause=failure.cause or "the first error of the tool is shown, its cause is not known",
        cure=failure.advice or "send the whole log; of a build on Windows farm-report.zip",
    )


def lines_of(explanation: Explanation) -> list[str]:
    """Cause, culprits and cure."""
    culprits = [f"  {culprit}" for culprit in explanation.culprits]
    return [
        f"{explanation.message}: {explanation.cause}",
        *culprits,
        f"  what to do: {explanation.cure}",
    ]
