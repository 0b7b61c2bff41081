"""Admission of wheels, by whatever command they come: after PyPI's own rules.

The archive: a ZIP from its first byte to its last, in which every reader finds the same members;
paths that stay inside the folder of an installation; no links; a bounded size; RECORD names each
member with its hash and nothing else. The tags in WHEEL are those of the name. Metadata is checked
by `packaging.metadata` (the core metadata specification), then by what PyPI adds to it
(pypi/warehouse, warehouse/forklift). PyPI also refuses direct URLs in Requires-Dist, which lead
installers past every index, and names that look like an existing project's; both can be allowed
here, since a private index may have its reasons. Three of PyPI's rules do not hold here: the farm's
versions have local labels, classifiers are free, and long descriptions are not rendered, for no
page shows them.
"""

import hashlib
import json
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parseaddr
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.base.errors import PublishRefusedError, UsageError, VerificationFailedError
from farm.base.hashes import sha256_and_size
from farm.base.requirement import read_requirement, stated_name
from farm.index import landing
from farm.index.layout import RESERVED, parse_wheel_name, wheel_identity
from farm.index.records import Record, compact
from farm.wheel.archive import Archive, Limits
from farm.wheel.metadata import DistInfo, compare_record, read_dist_info, read_record
from farm.wheel.tags import platform_machine

MAX_SUMMARY = 512
MAX_LABEL = 32
"""Characters of a Summary, and of a Project-URL's label."""
MAX_METADATA = 1024 * 1024
MAX_PROVENANCE = 64 * 1024
LIMITS = Limits(ratio=50)
"""PyPI's ratio: an archive that unpacks to more than that is a bomb."""

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0 and C1 controls, and those that change the direction of what follows."""
_LANDING_HINT = "docs/reference/wheel-index.md#what-is-published says what a wheel may install"
_ADDRESS = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_LOOKALIKES = str.maketrans({"0": "o", "1": "l", "i": "l", "-": None})
"""PyPI's function `ultranormalize_name` (pypi/warehouse): 0 and o, 1, l and i look alike,
separators do not count.
"""


class Admission(NamedTuple):
    """Exceptions from PyPI's rules: wheels that need a URL, and names like that of another
    project.
    """

    direct_urls: bool = False
    similar_names: bool = False


PYPI_RULES = Admission()


class Checked(NamedTuple):
    """A wheel that may be published: what would be claimed, the file, and the bytes of its
    METADATA.
    """

    record: Record
    path: Path
    metadata: bytes


def describe(
    wheel: Path,
    *,
    group: str,
    upload_time: datetime,
    provenance: Mapping[str, Any],
    channel: str | None = None,
    policy: Admission = PYPI_RULES,
) -> Checked:
    """Reads a wheel and says what would be claimed; PublishRefusedError if it is not what an index
    takes.
    """
    if upload_time.tzinfo is None:
        raise ValueError("an upload time needs a time zone")
    try:
        project, version = parse_wheel_name(wheel.name)
    except ValueError as error:
        raise PublishRefusedError(str(error)) from error
    if project in landing.WINDOWS_DEVICES:
        raise PublishRefusedError(
            f"{wheel.name}: {project!r} is a device on Windows, where no folder can have the name",
            hint="give the project another name",
        )
    if project in RESERVED:
        hint = "give the project another name"
        raise PublishRefusedError(
            f"{wheel.name}: {project!r} is a name of the index's own layout", hint=hint
        )
    if not wheel.is_file():
        reason = "No such file or directory"
        if wheel.exists():
            reason = "not a file"
        raise UsageError(f"cannot read {wheel}: {reason}")
    try:
        digest, size = sha256_and_size(wheel)
    except OSError as error:
        raise UsageError(f"cannot read {wheel}: {error.strerror or error}") from error
    metadata = check_archive(wheel)
    return Checked(
        Record(
            filename=wheel.name,
            project=project,
            version=str(version),
            sha256=digest,
            size=size,
            metadata_sha256=hashlib.sha256(metadata).hexdigest(),
            requires_python=check_metadata(wheel.name, project, version, metadata, policy),
            groups=(group,),
            channel=channel,
            # The format of PEP 700.
            upload_time=upload_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            provenance=_checked_provenance(provenance),
        ),
        wheel,
        metadata,
    )


def _checked_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = compact(dict(provenance))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the provenance is not JSON: {error}") from error
    if len(text) > MAX_PROVENANCE:
        hint = "give digests of the reports, not the reports"
        raise UsageError(
            f"the provenance has {len(text)} bytes; a record keeps at most {MAX_PROVENANCE}",
            hint=hint,
        )
    # As a reader of the record gets it: tuples have become lists.
    plain: dict[str, Any] = json.loads(text)
    return plain


def check_archive(wheel: Path) -> bytes:
    """The bytes of a wheel's METADATA, once it is known that every installer finds the same in
    it.
    """
    try:
        with Archive(wheel, LIMITS) as archive:
            for member in archive.members.values():
                if stat.S_ISLNK(member.mode):
                    raise PublishRefusedError(
                        f"{wheel.name}: {member.name!r:.200} is a link", hint=_hint(wheel)
                    )
            info = read_dist_info(archive)
            _check_info(wheel.name, info)
            files = {}
            for entry in archive.members.values():
                if not entry.is_dir:
                    with archive.content(entry.name, ()) as (digest, _):
                        files[entry.name] = digest, entry.size
            # Only wheels with a machine of Linux in their tags are for Linux alone.
            if archive.unportable and platform_machine(info.tags) is None:
                name, problem = next(iter(archive.unportable.items()))
                raise PublishRefusedError(
                    f"{wheel.name}: {name!r:.200}: {problem}", hint=_hint(wheel)
                )
            rows = read_record(archive, info.record)[1]
            wrong = compare_record(archive, rows, info.record, files)
            if wrong:
                raise PublishRefusedError(
                    f"{wheel.name}: {wrong[0][0]!r:.200}: {wrong[0][1]}", hint=_hint(wheel)
                )
            _check_landing(wheel, archive, info)
            return archive.read(f"{info.folder}/METADATA", MAX_METADATA)
    except VerificationFailedError as error:
        reason = str(error).removeprefix(f"{wheel.name}: ")
        raise PublishRefusedError(
            f"{wheel.name}: {reason}", hint=error.hint or _hint(wheel)
        ) from error


def _check_landing(wheel: Path, archive: Archive, info: DistInfo) -> None:
    """PublishRefusedError if a member or a program would be installed where it may not be."""
    project, _version = parse_wheel_name(wheel.name)
    header = info.wheel_headers.get("root-is-purelib", ["false"])[0]
    purelib = header.lower() == "true"
    names = [entry.name for entry in archive.members.values() if not entry.is_dir]
    for fault in landing.member_faults(names, info.stem, project, purelib=purelib):
        raise PublishRefusedError(
            f"{wheel.name}: {fault.member!r:.200}: {fault.why}", hint=_LANDING_HINT
        )
    for name in names:
        if not name.endswith(".pyc"):
            continue
        head = archive.read(name)[:16]
        if landing.is_unchecked_bytecode(head):
            raise PublishRefusedError(
                f"{wheel.name}: {name!r:.200}: bytecode that Python runs whatever its source says",
                hint="leave __pycache__ out of the wheel: installers compile it",
            )
    entry_points = f"{info.folder}/entry_points.txt"
    if entry_points in archive.members:
        text = archive.read(entry_points, MAX_METADATA).decode("utf-8", "replace")
        for why in landing.entry_point_faults(text):
            raise PublishRefusedError(f"{wheel.name}: {entry_points}: {why}", hint=_LANDING_HINT)


def _hint(wheel: Path) -> str:
    return (
        f"farm repair {wheel.name} writes RECORD and WHEEL anew; else build it with a tool "
        "that writes wheels"
    )


def _check_info(filename: str, info: DistInfo) -> None:
    """The `.dist-info` and the WHEEL in it must be those that installers expect for this file
    name.
    """
    name, _, version = info.stem.rpartition("-")
    try:
        fits = (canonicalize_name(name), Version(version)) == parse_wheel_name(filename)
    except ValueError:
        fits = False
    if not fits:
        raise PublishRefusedError(
            f"{filename} has {info.folder[:200]}, which is another wheel's: installers refuse it"
        )
    for header, values in info.wheel_headers.items():
        if header != "tag" and len(values) > 1:
            raise PublishRefusedError(
                f"{filename}: WHEEL has {header.title()} {len(values)} times: installers may take "
                "either",
                hint=f"farm repair {filename} writes WHEEL anew",
            )
    layout = ", ".join(info.wheel_headers.get("wheel-version", ()))
    if layout.partition(".")[0] != "1":
        raise PublishRefusedError(
            f"{filename}: WHEEL has Wheel-Version {layout!r:.40}, and installers know 1"
        )
    named_tags = set(map(str, wheel_identity(filename)[3]))
    if info.no_tags or info.tags != named_tags:
        tags_text = ", ".join(sorted({*info.tags, *info.no_tags}))
        raise PublishRefusedError(
            f"{filename}: WHEEL has the tags {tags_text or 'of nothing'!s:.200}, which are not "
            "those of the file's name",
            hint=f"farm repair {filename} writes WHEEL anew",
        )


def check_metadata(
    filename: str, project: str, version: Version, metadata: bytes, policy: Admission
) -> str | None:
    """Requires-Python of the metadata, once it is known to be sound and to speak of this very
    project and version.
    """
    raw, unparsed = parse_email(metadata)
    name = stated_name(metadata)
    stated_version = raw.get("version", "")
    if not _is_of(project, version, name, stated_version):
        raise PublishRefusedError(
            f"{filename} says {project} {version}, its METADATA says "
            f"{name or 'no name':.80} {stated_version or 'no version':.80}"
        )
    _check_text(filename, metadata)
    if unparsed:
        raise _refused(filename, min(unparsed), "unknown, twice, or no text")
    # setuptools before 77 writes License-File into metadata 2.1 and 2.2 (pypa/setuptools#4759).
    # PyPI's clients leave it out of what they send (pypa/twine#1180), and installers ignore it.
    if raw.get("metadata_version") in ("2.1", "2.2", "2.3"):
        raw.pop("license_files", None)
    try:
        parsed = Metadata.from_raw(raw)
        needs = parsed.requires_dist or []
    except RecursionError as error:
        raise _refused(filename, "requires-dist", "nested too deeply to be read") from error
    except ExceptionGroup as group:
        first = group.exceptions[0]
        field = "a field"
        if isinstance(first, InvalidMetadata):
            field = first.field
        raise _refused(filename, field, str(first)) from group
    for field, why in _beyond_the_specification(parsed):
        raise _refused(filename, field, why)
    for need in needs:
        if need.url is not None and not policy.direct_urls:
            raise PublishRefusedError(
                f"{filename} needs a direct URL: Requires-Dist: {need!s:.300}",
                hint="name the project and a version and publish that wheel too, or allow it: "
                "--allow direct-urls",
            )
    if parsed.requires_python is None:
        return None
    return str(parsed.requires_python)


def _is_of(project: str, version: Version, name: str, version_text: str) -> bool:
    """True if name and version that metadata state are this very project and version."""
    try:
        return canonicalize_name(name) == project and Version(version_text) == version
    except ValueError:  # InvalidVersion, or int's where a number has 4300 digits
        return False


def _check_text(filename: str, metadata: bytes) -> None:
    """Refuse characters that no reader of the metadata expects."""
    headers = re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[0]
    control = _CONTROL.search(headers.decode("utf-8", "replace"))
    if control is not None:
        raise _refused(filename, "text", f"the control character {control[0]!a}")
    if b"\0" in metadata:
        raise _refused(filename, "text", "a null byte")


def _refused(filename: str, field: str, why: str) -> PublishRefusedError:
    return PublishRefusedError(
        f"{filename}: bad {field.title()} in its METADATA: {why:.300}",
        hint="https://packaging.python.org/specifications/core-metadata says what is allowed",
    )


def _beyond_the_specification(metadata: Metadata) -> Iterator[tuple[str, str]]:
    """Field and reason for what `packaging.metadata` takes and PyPI refuses."""
    if len(metadata.summary or "") > MAX_SUMMARY:
        yield "summary", f"over {MAX_SUMMARY} characters"
    yield from _bad_addresses("author-email", metadata.author_email)
    yield from _bad_addresses("maintainer-email", metadata.maintainer_email)
    yield from _bad_links("home-page", metadata.home_page)
    yield from _bad_links("download-url", metadata.download_url)
    for label, link in (metadata.project_urls or {}).items():
        if not 0 < len(label) <= MAX_LABEL or not _is_url(link):
            why = f"is not a label of at most {MAX_LABEL} characters and an http(s) URL"
            yield "project-url", f"{label!r}: {link!r} {why}"
    yield from _bad_requirements("provides-dist", metadata.provides_dist or ())
    yield from _bad_requirements("obsoletes-dist", metadata.obsoletes_dist or ())
    if not metadata.license_expression:
        return
    for classifier in metadata.classifiers or ():
        if classifier.startswith("License ::"):
            yield "classifier", "a licence beside License-Expression, which PEP 639 excludes"
            return


def _bad_addresses(field: str, text: str | None) -> Iterator[tuple[str, str]]:
    address = parseaddr(text or "")[1]
    if address and not _ADDRESS.fullmatch(address):
        yield field, f"{address!r} is not an address"


def _bad_links(field: str, link: str | None) -> Iterator[tuple[str, str]]:
    is_unset = link in {None, "", "UNKNOWN"}  # setuptools before 63 wrote UNKNOWN for nothing
    if not is_unset and not _is_url(link):
        yield field, f"{link!r} is not an http(s) URL"


def _bad_requirements(field: str, needs: Iterable[str]) -> Iterator[tuple[str, str]]:
    for need in needs:
        try:
            requirement = read_requirement(need)
        except InvalidRequirement as error:
            yield field, str(error)
            continue
        if requirement.url is not None:
            yield field, f"{need!r} is a direct URL"


def _is_url(text: str | None) -> bool:
    try:
        parts = urlsplit(text or "")
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def check_name(project: str, present: Iterable[str], policy: Admission) -> None:
    """PublishRefusedError if a new project's name can be mistaken for that of one which is
    there.
    """
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
                f"{project} is a new project, and its name can be mistaken for {name}, which is "
                "in the index",
                hint="choose another name, or allow it: --allow similar-names",
            )
