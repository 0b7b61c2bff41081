"""The failures of steps, read from their logs: the first error of a tool, its cause, what to do.

The patterns are in `failures.yaml`. A log is untrusted text: it is only searched, and printed
through `plain`.
"""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from farm.base.causes import CONTEXT, WIDTH, Failure, Reader
from farm.base.text import log_line
from farm.base.yamlfile import Model, load

__all__ = [
    "CONTEXT",
    "WIDTH",
    "Failure",
    "document",
    "errors",
    "is_build_log",
    "line_naming_cause",
    "read",
]


class Pattern(Model):
    """A known cause.

    Attributes:
        pattern: A regular expression for one line.
        cause: What such a line means.
        advice: What to do, in a step of the farm itself.
        id: A name for `line_naming_cause`.
        in_build: The advice for a build, which has no network.
        on_machine: The advice for a build on a machine itself, by its own script.
        recipe: Whether the recipe is at fault.
    """

    pattern: str
    cause: str
    advice: str
    id: str | None = None
    in_build: str | None = None
    on_machine: str | None = None
    recipe: bool = False


class Patterns(Model):
    """`failures.yaml`."""

    errors: list[str]
    build_tools: list[str]
    runtime: list[str]
    causes: list[Pattern]


def read(log: Sequence[str], *, build: bool = False, machine: bool = False) -> Failure:
    """Return the failure that a log tells of; see `causes.Reader.read`."""
    return _reader().read(list(map(log_line, log)), build=build, machine=machine)


def errors(log: Sequence[str]) -> list[str]:
    """Return the lines with which tools say that something failed, each once."""
    return _reader().errors(map(log_line, log))


def is_build_log(log: Sequence[str]) -> bool:
    """Return whether a build wrote the errors of a log, and not torch.compile."""
    return _reader().is_build_log(map(log_line, log))


def line_naming_cause(identity: str, log: Sequence[str]) -> str | None:
    """Return the last line with which a tool names the cause of this `id`."""
    [pattern] = [cause.pattern for cause in _patterns().causes if cause.id == identity]
    for line in reversed(log):
        if re.search(pattern, line):
            return line
    return None


def document() -> str:
    """Return the patterns as JSON, for a build that reads its log where the farm is not."""
    return json.dumps(_patterns().model_dump(), indent=1) + "\n"


@cache
def _patterns() -> Patterns:
    return load(Path(__file__).with_name("failures.yaml"), Patterns)


@cache
def _reader() -> Reader:
    return Reader(_patterns().model_dump())
