"""One reader of requirements (PEP 508) that come from outside, such as the Requires-Dist of somebody's METADATA."""

from packaging.requirements import InvalidRequirement, Requirement

MAX_LENGTH = 10_000
"""Characters of one requirement. Markers that tools write for every platform come to some thousand."""


def read_requirement(line: str) -> Requirement:
    """The requirement in one line of text.

    Raises:
        InvalidRequirement: It is none, is longer than MAX_LENGTH, or has more nested parentheses than the parser takes.
    """
    if len(line) > MAX_LENGTH:
        raise InvalidRequirement("too long")
    try:
        return Requirement(line)
    except RecursionError as error:  # packaging's parser calls itself for each parenthesis of a marker
        raise InvalidRequirement("nested too deeply") from error
