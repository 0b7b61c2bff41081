"""Small wheels that an index takes."""

import base64
import hashlib
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from packaging.utils import parse_wheel_filename

from farm.index.publish import publish


class Wheel(NamedTuple):
    path: Path
    metadata: bytes


def build_wheel(
    folder,
    filename,
    payload="x = 1\n",
    extra="",
    *,
    python=">=3.7",
    metadata=None,
    more=None,
    record=None,
    tags=None,
):
    """A small pure wheel that an index takes, in a folder; or one that it does not, by what is
    given of it.
    """
    name, version = filename.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    requires = f"Requires-Python: {python}\n" if python else ""
    if metadata is None:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}{extra}"
    named = "".join(f"Tag: {tag}\n" for tag in sorted(map(str, parse_wheel_filename(filename)[3])))
    tags = (
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: "
        f"true\n{named if tags is None else tags}"
    )
    members = {
        f"{name}/__init__.py": payload,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": tags,
        **(more or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / filename, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text)
        lines = [recorded(member, text) for member, text in members.items()]
        lines = [*lines, f"{info}/RECORD,,"] if record is None else record(lines)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "\n".join(lines) + "\n")
    return Wheel(folder / filename, metadata if isinstance(metadata, bytes) else metadata.encode())


def recorded(member, text):
    """The line of RECORD for a member."""
    data = text if isinstance(text, bytes) else text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{member},sha256={digest},{len(data)}"


def publish_wheel(store, wheel, **changes):
    arguments = {
        "group": "sm35-avx",
        "upload_time": datetime(2026, 11, 21, tzinfo=UTC),
        "provenance": {"plan": "sha256:1"},
    }
    return publish(store, wheel.path, **(arguments | changes))
