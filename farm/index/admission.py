"""Admission of wheels, by whatever command they come: after PyPI's own rules.

The archive: a ZIP from its first byte to its last, in which every reader finds the same members; paths that stay inside
the folder of an installation; no links; a bounded size; RECORD names each member with its hash and nothing else.
The tags in WHEEL are those of the name. Metadata is checked by `packaging.metadata` (the core metadata specification),
then by what PyPI adds to it (pypi/warehouse, warehouse/forklift). PyPI also refuses direct URLs in Requires-Dist, which
lead installers past every index, and names that look like an existing project's; both can be allowed here, since a
private index may have its reasons. Three of PyPI's rules do not hold here: the farm's versions have local labels,
classifiers are free, and long descriptions are not rendered, for no page shows them.
"""

import base64
import csv
import hashlib
import io
import json
import re
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from email.utils import parseaddr
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from packaging.metadata import InvalidMetadata, Metadata, parse_email
from packaging.requirements import InvalidRequirement
from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from farm.base.errors import PublishRefusedError, UsageError, VerificationFailedError
from farm.base.hashes import sha256_and_size
from farm.base.requirement import read_requirement, stated_name
from farm.index.layout import RESERVED, parse_wheel_name, wheel_identity
from farm.index.records import Record, compact
from farm.index.stores import CHUNK
from farm.wheel.archive import Archive

MAX_SUMMARY = 512
MAX_LABEL = 32
"""Characters of a Summary, and of a Project-URL's label."""
MAX_METADATA = 1024 * 1024
MAX_PROVENANCE = 64 * 1024
MAX_UNPACKED = 32 * 1024**3
"""Bytes of all members together."""
MAX_MEMBERS = 200_000
MAX_RATIO = 50
RATIO_FROM = 64 * 1024**2
"""PyPI's bounds: an archive that unpacks to more than `RATIO_FROM` bytes, and `MAX_RATIO` times its size, is a bomb."""

_ANEW = "build it anew with a tool that writes wheels"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ADDRESS = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_LOOKALIKES = str.maketrans({"0": "o", "1": "l", "i": "l", "-": None})
"""PyPI's function `ultranormalize_name` (pypi/warehouse): 0 and o, 1, l and i look alike, separators do not count."""


class Admission(NamedTuple):
    """Exceptions from PyPI's rules: wheels that need a URL, and names like that of another project."""

    direct_urls: bool = False
    similar_names: bool = False


PYPI_RULES = Admission()


class Checked(NamedTuple):
    """A wheel that may be published: what would be claimed, the file, and the bytes of its METADATA."""

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
    """Reads a wheel and says what would be claimed.

    Raises:
        PublishRefusedError: It is not what an index takes.
        UsageError: The wheel cannot be read, or the provenance is not a small JSON object.
        ValueError: `upload_time` has no time zone.
    """
    if upload_time.tzinfo is None:
        raise ValueError("an upload time needs a time zone")
    try:
        project, version = parse_wheel_name(wheel.name)
    except ValueError as error:
        raise PublishRefusedError(str(error)) from error
    if project in RESERVED:
        raise PublishRefusedError(
            f"{wheel.name}: {project!r} is a name of the index's own layout", hint="give the project another name"
        )
    if not wheel.is_file():
        raise UsageError(f"cannot read {wheel}: {'not a file' if wheel.exists() else 'No such file or directory'}")
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
        raise UsageError(
            f"the provenance has {len(text)} bytes; a record keeps at most {MAX_PROVENANCE}",
            hint="give digests of the reports, not the reports",
        )
    # As a reader of the record gets it: tuples have become lists.
    plain: dict[str, Any] = json.loads(text)
    return plain


def check_archive(wheel: Path) -> bytes:
    """The bytes of a wheel's METADATA, once it is known that every installer finds the same in it.

    Raises:
        PublishRefusedError: The archive, RECORD or WHEEL is not what an index takes.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            why = next(_wrong_members(members), None)
            if why is not None:
                raise PublishRefusedError(f"{wheel.name}: {why}", hint=_ANEW)
            with Archive(wheel):  # a reader that goes from the first byte on finds the members of the directory
                pass
            folder = _info_folder(wheel.name, [each.filename for each in members])
            why = next(_wrong_record(archive, members, folder), None) or next(
                _wrong_tags(wheel.name, archive, folder), None
            )
            if why is not None:
                raise PublishRefusedError(f"{wheel.name}: {why}", hint=f"farm repair {wheel.name} writes both anew")
            return _small(archive, f"{folder}/METADATA")
    except VerificationFailedError as error:
        raise PublishRefusedError(str(error), hint=_ANEW) from error
    # OSError too: the file was read to its end just before, so a seek out of it is the archive's lie
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise PublishRefusedError(f"{wheel.name} is not a valid zip file: {error}") from error


def _wrong_members(members: list[zipfile.ZipInfo]) -> Iterator[str]:
    """Why installers would take different things out of an archive, or put them outside of their folder."""
    names = [each.filename for each in members]
    if len(names) > MAX_MEMBERS:
        yield f"{len(names)} members; at most {MAX_MEMBERS}"
    unpacked, packed = sum(each.file_size for each in members), sum(each.compress_size for each in members)
    if unpacked > MAX_UNPACKED or (unpacked > RATIO_FROM and unpacked > MAX_RATIO * packed):
        yield f"it unpacks from {packed} bytes to {unpacked}, as bombs do"
    files = {name for name in names if not name.endswith("/")}
    seen = set()
    for each in members:
        name, mode = each.filename, each.external_attr >> 16
        if name in seen:
            yield f"{name!r:.200} is in it twice"
        seen.add(name)
        # `orig_filename` is the name as it stands there: zipfile cuts it at a NUL.
        if not name.isprintable() or "\\" in each.orig_filename or "\0" in each.orig_filename:
            yield f"{each.orig_filename!r:.200} is no portable name of a member"
        parts = name.removesuffix("/").split("/")
        if not parts[0] or re.match(r"[A-Za-z]:", name) or any(part in {"", ".", ".."} for part in parts):
            yield f"{name!r:.200} leads out of its folder, or has two spellings"
        if any("/".join(parts[:depth]) in files for depth in range(1, len(parts))):
            yield f"{name!r:.200} is below a file"
        if stat.S_IFMT(mode) not in {0, stat.S_IFREG, stat.S_IFDIR}:
            yield f"{name!r:.200} is a link or a device"
        if each.flag_bits & 1 or each.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            yield f"{name!r:.200} is encrypted, or packed in another way than deflate"


def _info_folder(filename: str, names: list[str]) -> str:
    """The `.dist-info` that installers expect for this file name, with what they read in it."""
    folders = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise PublishRefusedError(f"{filename} has {len(folders)} folders *.dist-info: installers refuse it")
    (folder,) = folders
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    try:
        fits = (canonicalize_name(name), Version(version)) == parse_wheel_name(filename)
    except ValueError:
        fits = False
    if not fits:
        raise PublishRefusedError(f"{filename} has {folder[:200]}, which is another wheel's: installers refuse it")
    for needed in ("METADATA", "WHEEL", "RECORD"):
        if f"{folder}/{needed}" not in names:
            raise PublishRefusedError(f"{filename} has no {folder}/{needed}: installers refuse it")
    return folder


def _small(archive: zipfile.ZipFile, member: str, limit: int = MAX_METADATA) -> bytes:
    with archive.open(member) as file:
        data = file.read(limit + 1)  # bounded: `file_size` is only what the archive says
    if len(data) > limit:
        raise ValueError(f"{member} has over {limit} bytes")
    return data


def _wrong_record(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: str) -> Iterator[str]:
    """Where RECORD and the members differ."""
    text = _small(archive, f"{folder}/RECORD", 64 * MAX_METADATA).decode()
    rows = {}
    for row in csv.reader(io.StringIO(text)):
        if len(row) != 3 or row[0] in rows:
            yield f"RECORD has a line that is none, or a file twice: {','.join(row)!r:.200}"
        rows[row[0]] = [*row[1:], "", ""][:2]
    own = {f"{folder}/RECORD", f"{folder}/RECORD.jws", f"{folder}/RECORD.p7s"}
    there = {each.filename for each in members if not each.is_dir()}
    for name in sorted(there.symmetric_difference(rows) - own):
        yield f"RECORD and the members differ: {name!r:.200} is only in {'RECORD' if name in rows else 'the archive'}"
    for name in sorted(there - own):
        promised, size = rows[name]
        kind, _, digest = promised.partition("=")
        if kind not in {"sha256", "sha384", "sha512"}:
            yield f"RECORD has no sha256 of {name!r:.200}"
        found, read = hashlib.new(kind), 0
        with archive.open(name) as file:
            while chunk := file.read(CHUNK):
                found.update(chunk)
                read += len(chunk)
        plain = base64.urlsafe_b64encode(found.digest()).decode().rstrip("=")
        if plain != digest.rstrip("=") or (size and size != str(read)):
            yield f"{name!r:.200} is not as RECORD says"


def _wrong_tags(filename: str, archive: zipfile.ZipFile, folder: str) -> Iterator[str]:
    """Where WHEEL says another thing than the name of the file."""
    says = BytesHeaderParser().parsebytes(_small(archive, f"{folder}/WHEEL"))
    if str(says.get("Wheel-Version", "")).partition(".")[0] != "1":
        yield f"WHEEL has Wheel-Version {says.get('Wheel-Version')!r:.40}, and installers know 1"
    try:
        tags = frozenset[Tag]().union(*(parse_tag(str(line).strip()) for line in says.get_all("Tag", [])))
    except ValueError:
        tags = frozenset()
    if tags != wheel_identity(filename)[3]:
        named = ", ".join(sorted(map(str, tags)))
        yield f"WHEEL has the tags {named or 'of nothing'!s:.200}, which are not those of the file's name"


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
    if control := _CONTROL.search(re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[0]) or re.search(rb"\0", metadata):
        raise _refused(filename, "text", f"the control character {control[0]!r}")
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
