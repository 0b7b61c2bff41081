"""What a wheel must be like before it may claim a name, after PyPI's own rules.

Metadata is checked by `packaging.metadata` (the core metadata specification). PyPI also refuses direct URLs in
Requires-Dist, which lead installers past every index, and names that look like an existing project's; both can be
allowed here, since a private index may have its reasons.
"""

from collections.abc import Iterable
from typing import NamedTuple

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from farm.errors import PublishRefusedError

_ONCE = frozenset({"metadata-version", "name", "version", "requires-python"})
_LOOKALIKES = str.maketrans({"0": "o", "1": "l", "i": "l", "-": None})
"""PyPI's function `ultranormalize_name` (pypi/warehouse): 0 and o, 1, l and i look alike, separators do not count."""


class Admission(NamedTuple):
    """What an index takes beyond PyPI's rules: wheels that need a URL, and names like that of another project."""

    direct_urls: bool = False
    similar_names: bool = False


PYPI_RULES = Admission()


def check_metadata(filename: str, project: str, version: Version, metadata: bytes, policy: Admission) -> str | None:
    """Requires-Python of the metadata, once it is known to be sound and to speak of this very project and version.

    Raises:
        PublishRefusedError: It is not.
    """
    raw, unparsed = parse_email(metadata)
    try:
        agrees = canonicalize_name(raw.get("name", "")) == project and Version(raw.get("version", "")) == version
    except InvalidVersion:
        agrees = False
    if not agrees:
        raise PublishRefusedError(
            f"{filename} says {project} {version}, its METADATA says "
            f"{raw.get('name', 'no name')!s:.80} {raw.get('version', 'no version')!s:.80}"
        )
    if repeated := sorted(_ONCE & unparsed.keys()):
        raise PublishRefusedError(f"{filename}: its METADATA has {repeated[0].title()} twice, or as no text")
    # setuptools before 77 writes License-File into metadata 2.1 and 2.2 (pypa/setuptools#4759). PyPI's clients leave it
    # out of what they send (pypa/twine#1180), and installers ignore it.
    if raw.get("metadata_version") in ("2.1", "2.2", "2.3"):
        raw.pop("license_files", None)
    try:
        found = Metadata.from_raw(raw)
        needs = found.requires_dist or []
    except ExceptionGroup as group:
        first = group.exceptions[0]
        field = first.field.title() if isinstance(first, InvalidMetadata) else "a field"
        raise PublishRefusedError(
            f"{filename}: bad {field} in its METADATA: {first!s:.300}",
            hint="https://packaging.python.org/specifications/core-metadata says what is allowed",
        ) from group
    direct = next((need for need in needs if need.url is not None), None)
    if direct is not None and not policy.direct_urls:
        raise PublishRefusedError(
            f"{filename} needs a direct URL: Requires-Dist: {direct!s:.300}",
            hint="name the project and a version and publish that wheel too, or allow it: --allow direct-urls",
        )
    return None if found.requires_python is None else str(found.requires_python)


def check_name(project: str, present: Iterable[str], policy: Admission) -> None:
    """PublishRefusedError if a new project's name can be mistaken for that of one which is there."""
    names = set(present)
    if project in names or policy.similar_names:
        return
    plain = project.translate(_LOOKALIKES)
    for name in sorted(names):
        if name.translate(_LOOKALIKES) == plain:
            raise PublishRefusedError(
                f"{project} is a new project, and its name can be mistaken for {name}, which is in the index",
                hint="choose another name, or allow it: --allow similar-names",
            )
