"""Requirements (PEP 508) and names in METADATA that others wrote."""

import re

from packaging.requirements import InvalidRequirement, Requirement

MAX_LENGTH = 10_000
"""Characters of one requirement. Markers that tools write for every platform come to some thousand."""

_NAME = re.compile(rb"^name:[ \t]*([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE | re.MULTILINE)


def stated_name(metadata: bytes) -> str:
    """The first Name of a METADATA with the blanks and line ends around it; empty without one.

    `email` keeps line ends before a value up to Python 3.13 and drops them in 3.14.8.
    """
    found = _NAME.search(metadata)
    return found[1].decode(errors="replace") if found else ""


def read_requirement(line: str) -> Requirement:
    """The requirement in one line of text; InvalidRequirement: none, longer than MAX_LENGTH, or nested too deeply."""
    if len(line) > MAX_LENGTH:
        raise InvalidRequirement("too long")
    try:
        return Requirement(line)
    except RecursionError as error:  # packaging's parser calls itself for each parenthesis of a marker
        raise InvalidRequirement("nested too deeply") from error
