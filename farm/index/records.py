"""The claim on a wheel's name: one small immutable object, from which its place on all pages follows."""

import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import Field, ValidationError

from farm.base.errors import PublishRefusedError, UsageError
from farm.base.hashes import sha256_and_size
from farm.index.admission import PYPI_RULES, Admission, check_metadata
from farm.index.naming import parse_wheel_name, wheel_identity
from farm.index.pages import File, ForeignObjectError, Hashes, Named, Properties, Sha256, page_url

MAX_METADATA = 1024 * 1024
MAX_PROVENANCE = 64 * 1024


_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}


class Record(Named):
    """What was claimed: which bytes a name stands for, for ever.

    Attributes:
        groups: Where the wheel is listed, `sm35-avx` for one.
        channel: The channel that built it; its own root lists the wheel too.
        provenance: Where the wheel comes from: digests of its plan and reports, small.
        attestation: A signed envelope about the wheel (`farm.index.provenance`), by whoever published it first.
        source: The wheel that it is a labelled copy of (`farm.index.variants`), whose events hold for it too.
        properties: What the label of a copy stands for.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    project: str
    version: str
    sha256: Sha256
    size: int = Field(ge=0)
    metadata_sha256: Sha256 = Field(alias="metadata-sha256")
    requires_python: str | None = Field(default=None, alias="requires-python")
    groups: tuple[str, ...]
    channel: str | None = None
    upload_time: str = Field(alias="upload-time")
    provenance: dict[str, Any]
    attestation: dict[str, Any] | None = None

    def render(self) -> bytes:
        return _json(self.model_dump(by_alias=True, exclude_none=True))

    def file(self) -> File:
        """The entry on pages."""
        return File(
            filename=self.filename,
            url=page_url(self.filename),
            hashes=Hashes(sha256=self.sha256),
            size=self.size,
            upload_time=self.upload_time,
            requires_python=self.requires_python,
            core_metadata=Hashes(sha256=self.metadata_sha256),
            channel=self.channel,
            source=self.source,
            properties=self.properties,
            record=hashlib.sha256(self.render()).hexdigest(),
        )


def record_key(filename: str) -> str:
    return f"records/{filename}.json"


def parse_record(data: bytes, key: str) -> Record:
    """Reads a record; ForeignObjectError when it is not one of ours."""
    try:
        return Record.model_validate_json(data)
    except ValidationError as error:
        raise ForeignObjectError(
            f"{key} in the index is not a record of this farm: {error.errors()[0]['msg']}"
        ) from error


def describe(
    wheel: Path,
    *,
    group: str,
    metadata: bytes,
    upload_time: datetime,
    provenance: Mapping[str, Any],
    channel: str | None = None,
    policy: Admission = PYPI_RULES,
    copy_of: tuple[str, Properties] | None = None,
) -> Record:
    """Reads a wheel and says what would be claimed; `copy_of` are source and properties of a labelled copy.

    Raises:
        PublishRefusedError: File name, METADATA and content do not agree, or METADATA is not what PyPI would take.
        UsageError: The wheel cannot be read, or the provenance is not a small JSON object.
        ValueError: `upload_time` has no time zone.
    """
    if upload_time.tzinfo is None:
        raise ValueError("an upload time needs a time zone")
    try:
        project, version, _build, _tags, label = wheel_identity(wheel.name)
    except ValueError as error:
        raise PublishRefusedError(str(error)) from error
    if label is not None and copy_of is None:
        raise PublishRefusedError(f"{wheel.name} has a variant label: farm index variant makes such wheels")
    source, properties = copy_of or (None, None)
    requires_python = check_metadata(wheel.name, project, version, metadata, policy)
    try:
        digest, size = sha256_and_size(wheel)
    except OSError as error:
        raise UsageError(f"cannot read {wheel}: {error.strerror or error}") from error
    # What installers read beside the wheel (PEP 658) must be what they find inside.
    if metadata_inside(wheel) != metadata:
        raise PublishRefusedError(f"{wheel.name}: the metadata to publish is not the METADATA in the wheel")
    return Record(
        filename=wheel.name,
        project=project,
        version=str(version),
        sha256=digest,
        size=size,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        requires_python=requires_python,
        groups=(group,),
        channel=channel,
        # The format of PEP 700.
        upload_time=upload_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        provenance=_checked_provenance(provenance),
        source=source,
        properties=properties,
    )


def metadata_inside(wheel: Path) -> bytes:
    """The bytes of a wheel's METADATA; PublishRefusedError if there is not just one of a sensible size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [each for each in archive.infolist() if _METADATA.fullmatch(each.filename)]
            if len(found) != 1 or found[0].file_size > MAX_METADATA or found[0].compress_type not in _METHODS:
                raise PublishRefusedError(
                    f"{wheel.name} does not have one METADATA, stored or deflated, up to {MAX_METADATA} bytes"
                )
            _check_info(wheel.name, found[0].filename.removesuffix("/METADATA"), archive.namelist())
            with archive.open(found[0]) as member:
                # Bounded here too: `file_size` is only what the archive says.
                return member.read(MAX_METADATA + 1)
    # OSError too: the file was read to its end just before, so a seek out of it is the archive's lie
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OSError) as error:
        raise PublishRefusedError(f"{wheel.name} is not a valid zip file: {error}") from error


def _check_info(filename: str, folder: str, names: list[str]) -> None:
    """Is it the `.dist-info` that installers expect for this file name, with what they read in it?"""
    name, _, version = folder.removesuffix(".dist-info").rpartition("-")
    try:
        fits = (canonicalize_name(name), Version(version)) == parse_wheel_name(filename)
    except ValueError:
        fits = False
    if not fits:
        raise PublishRefusedError(f"{filename} has {folder[:200]}, which is another wheel's: installers refuse it")
    for needed in ("WHEEL", "RECORD"):
        if names.count(f"{folder}/{needed}") != 1:
            raise PublishRefusedError(f"{filename} does not have one {folder}/{needed}: installers refuse it")


def _checked_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = _json(dict(provenance))
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


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
