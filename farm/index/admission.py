"""What a wheel must be like before it may claim a name, after PyPI's own rules.

Metadata is checked by `packaging.metadata` (the core metadata specification), then by what PyPI adds to it
(pypi/warehouse, warehouse/forklift/metadata.py). PyPI also refuses direct URLs in Requires-Dist, which lead installers
past every index, and names that look like an existing project's; both can be allowed here, since a private index may
have its reasons. Three of PyPI's rules do not hold here: the farm's versions have local labels, classifiers are free,
and long descriptions are not rendered, for no page shows them.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from email.utils import parseaddr
from typing import NamedTuple
from urllib.parse import urlsplit

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.base.errors import PublishRefusedError
from farm.base.requirement import read_requirement, stated_name
from farm.index.naming import wheel_identity
from farm.index.pages import ProjectPage

MAX_SUMMARY = 512
MAX_LABEL = 32
"""Characters of a Summary, and of a Project-URL's label."""

_ADDRESS = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
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
    name = stated_name(metadata)
    try:
        agrees = canonicalize_name(name) == project and Version(raw.get("version", "")) == version
    except ValueError:  # InvalidVersion, or int's where a number has 4300 digits
        agrees = False
    if not agrees:
        raise PublishRefusedError(
            f"{filename} says {project} {version}, its METADATA says "
            f"{name or 'no name':.80} {raw.get('version', 'no version')!s:.80}"
        )
    if unparsed:
        raise _refused(filename, min(unparsed), "unknown, twice, or no text")
    # setuptools before 77 writes License-File into metadata 2.1 and 2.2 (pypa/setuptools#4759). PyPI's clients leave it
    # out of what they send (pypa/twine#1180), and installers ignore it.
    if raw.get("metadata_version") in ("2.1", "2.2", "2.3"):
        raw.pop("license_files", None)
    try:
        found = Metadata.from_raw(raw)
        needs = found.requires_dist or []
    except RecursionError as error:
        raise _refused(filename, "requires-dist", "nested too deeply to be read") from error
    except ExceptionGroup as group:
        first = group.exceptions[0]
        field = first.field if isinstance(first, InvalidMetadata) else "a field"
        raise _refused(filename, field, str(first)) from group
    for field, why in _beyond_the_specification(found):
        raise _refused(filename, field, why)
    direct = next((need for need in needs if need.url is not None), None)
    if direct is not None and not policy.direct_urls:
        raise PublishRefusedError(
            f"{filename} needs a direct URL: Requires-Dist: {direct!s:.300}",
            hint="name the project and a version and publish that wheel too, or allow it: --allow direct-urls",
        )
    return None if found.requires_python is None else str(found.requires_python)


def _refused(filename: str, field: str, why: str) -> PublishRefusedError:
    return PublishRefusedError(
        f"{filename}: bad {field.title()} in its METADATA: {why:.300}",
        hint="https://packaging.python.org/specifications/core-metadata says what is allowed",
    )


def _beyond_the_specification(found: Metadata) -> Iterator[tuple[str, str]]:
    """Field and reason for what `packaging.metadata` takes and PyPI refuses."""
    if len(found.summary or "") > MAX_SUMMARY:
        yield "summary", f"over {MAX_SUMMARY} characters"
    for field, text in (("author-email", found.author_email), ("maintainer-email", found.maintainer_email)):
        address = parseaddr(text or "")[1]
        if address and not _ADDRESS.fullmatch(address):
            yield field, f"{address!r} is not an address"
    links = {"home-page": found.home_page, "download-url": found.download_url}
    for field, link in links.items():
        if link not in {None, "", "UNKNOWN"} and not _is_url(link):  # setuptools before 63 wrote UNKNOWN for nothing
            yield field, f"{link!r} is not an http(s) URL"
    for label, link in (found.project_urls or {}).items():
        if not 0 < len(label) <= MAX_LABEL or not _is_url(link):
            yield (
                "project-url",
                f"{label!r}: {link!r} is not a label of at most {MAX_LABEL} characters and an http(s) URL",
            )
    for field, needs in (("provides-dist", found.provides_dist), ("obsoletes-dist", found.obsoletes_dist)):
        for need in needs or ():
            try:
                direct = read_requirement(need).url is not None
            except InvalidRequirement as error:
                yield field, str(error)
            else:
                if direct:
                    yield field, f"{need!r} is a direct URL"
    if found.license_expression and any(each.startswith("License ::") for each in found.classifiers or ()):
        yield "classifier", "a licence beside License-Expression, which PEP 639 excludes"


def _is_url(text: str | None) -> bool:
    try:
        parts = urlsplit(text or "")
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def check_name(project: str, present: Iterable[str], policy: Admission) -> None:
    """PublishRefusedError if a new project's name can be mistaken for that of one which is there."""
    names = set(present)
    if project in names or policy.similar_names:
        return
    if project.replace("-", "_") in sys.stdlib_module_names:
        raise PublishRefusedError(
            f"{project} is a module of Python itself, which a project of that name would hide",
            hint="choose another name, or allow it: --allow similar-names",
        )
    plain = project.translate(_LOOKALIKES)
    for name in sorted(names):
        if name.translate(_LOOKALIKES) == plain:
            raise PublishRefusedError(
                f"{project} is a new project, and its name can be mistaken for {name}, which is in the index",
                hint="choose another name, or allow it: --allow similar-names",
            )


def check_place(page: ProjectPage | None, project: str, *filenames: str) -> None:
    """May wheels of these names be on the page, together?

    Raises:
        PublishRefusedError: The page is one of links to another index, or has the same wheel by another spelling.
    """
    if page is not None and page.meta.links:
        raise PublishRefusedError(
            f"{project} is a dependency here: its page has links to another index",
            hint="publish it in another group, or leave it out of farm/index/dependencies.yaml",
        )
    # Installers take `canary-2.0-…` and `Canary-2.0.0-…` for one: which of them a user gets would be chance.
    found = {wheel_identity(each.filename): each.filename for each in page.ever} if page else {}
    for filename in filenames:
        there = found.setdefault(wheel_identity(filename), filename)
        if there != filename:
            raise PublishRefusedError(
                f"{filename} is to installers the same wheel as {there}, which is or was in this index",
                hint="append .1 (.2 ...) to the local version: --rebuild 1",
            )
