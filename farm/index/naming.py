"""Which names wheels and groups may have."""

import re
from functools import lru_cache
from typing import Annotated

from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version
from pydantic import AfterValidator

from farm.base.errors import UsageError
from farm.base.text import before_download

_GROUP = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
VARIANTS = "variant"
"""The group of labelled copies; nothing else is published there."""
_RESERVED_GROUPS = frozenset({"attestations", "files", "index.html", "keys", "simple", "v1-json", VARIANTS})
# the longest sidecar adds 14 characters and must stay a file name of at most 255
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,235}\.whl", re.ASCII)
# name-version[-build]-python-abi-platform-label: a build begins with a digit, the Python never does
_LABELLED = re.compile(r"((?:[^-]+-){2}(?:[0-9][^-]*-)?(?![0-9])[^-]+-[^-]+-[^-]+)-([0-9a-z_.]+)\.whl", re.ASCII)

Identity = tuple[NormalizedName, Version, BuildTag, frozenset[Tag], str | None]
"""Project, version, build, tags and label (None for none): what a wheel is to installers, whatever its spelling."""


@lru_cache(maxsize=2**16)
def wheel_identity(filename: str) -> Identity:
    """What a wheel's file name says.

    Raises:
        ValueError: It is not a wheel name, or has characters that do not belong into one.
    """
    if not _WHEEL.fullmatch(filename):
        was = before_download(filename[:300])
        before = f"; it was {was} before its download" if was != filename and _WHEEL.fullmatch(was) else ""
        raise ValueError(f"not the file name of a wheel: {filename[:200]!r}{before}")
    labelled = _LABELLED.fullmatch(filename)
    try:
        name, version, build, tags = parse_wheel_filename(f"{labelled[1]}.whl" if labelled else filename)
    except InvalidWheelFilename as error:
        raise ValueError(str(error)) from error
    return name, version, build, tags, labelled[2] if labelled else None


def parse_wheel_name(filename: str) -> tuple[NormalizedName, Version]:
    """Project and version of a wheel's file name; ValueError as `wheel_identity`."""
    return wheel_identity(filename)[:2]


def is_wheel_of(project: NormalizedName, filename: str) -> bool:
    try:
        return parse_wheel_name(filename)[0] == project
    except ValueError:
        return False


def _wheel_name(filename: str) -> str:
    parse_wheel_name(filename)
    return filename


WheelName = Annotated[str, AfterValidator(_wheel_name)]


def check_group(group: str) -> str:
    """Gives the name of a group back, `sm35-avx` for one.

    Raises:
        UsageError: It is not lower-case letters, digits and `._-`, or is reserved.
    """
    if not _GROUP.fullmatch(group) or group in _RESERVED_GROUPS:
        raise UsageError(f"not a group of wheels: {group[:80]!r}", hint="a group looks like sm35-avx")
    return group
