"""Requirements (PEP 508), names and tags (PEP 425, PEP 384) of packages that others wrote, read as
pip reads them.
"""

import re
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import compatible_tags, cpython_tags

MAX_LENGTH = 10_000
"""Characters of one requirement. Markers that tools write for every platform come to some thousand.
"""

_NAME = re.compile(rb"^name:[ \t]*([^\r\n]*(?:\r?\n[ \t][^\r\n]*)*)", re.IGNORECASE | re.MULTILINE)


def stated_name(metadata: bytes) -> str:
    """The first Name of a METADATA with the blanks and line ends around it; empty without one.

    `email` keeps line ends before a value up to Python 3.13 and drops them in 3.14.8.
    """
    match = _NAME.search(metadata)
    if match is None:
        return ""
    return match[1].decode(errors="replace")


def read_requirement(line: str) -> Requirement:
    """The requirement in one line of text; InvalidRequirement: none, longer than MAX_LENGTH, or
    nested too deeply.
    """
    if len(line) > MAX_LENGTH:
        raise InvalidRequirement("too long")
    try:
        return Requirement(line)
    except RecursionError as error:
        # packaging's parser calls itself for each parenthesis of a marker.
        raise InvalidRequirement("nested too deeply") from error


def python_of(interpreter: str, abi: str) -> str:
    """`py311` for the wheel tags `cp311-cp311`, `py314t` for `cp314-cp314t`: only the ABI tells a
    free-threaded one.
    """
    python = f"py{interpreter[2:]}"
    if abi == f"{interpreter}t":
        python += "t"
    return python


def serves(interpreter: str, abi: str, python: str) -> bool:
    """True if `python` (`py311`, `py314t`) installs a wheel with these tags, on a platform that is
    the wheel's.
    """
    return (interpreter, abi) in _installed(python)


@cache
def _installed(python: str) -> frozenset[tuple[str, str]]:
    version = (3, int(python[3:].rstrip("t")))
    tags = {
        *cpython_tags(version, [f"cp{python[2:]}"], ["any"]),
        *compatible_tags(version, f"cp{python[2:]}", ["any"]),
    }
    return frozenset((tag.interpreter, tag.abi) for tag in tags)
