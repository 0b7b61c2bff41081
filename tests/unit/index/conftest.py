import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

UPLOADED = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)


class Wheel(NamedTuple):
    path: Path
    metadata: bytes


@pytest.fixture
def make_wheel(tmp_path):
    """A factory of small pure wheels; the metadata says what the file name says, unless told otherwise."""

    def make(filename, *, payload="x = 1\n", requires_python=">=3.7", metadata=None, method=zipfile.ZIP_STORED):
        name, version = filename.split("-")[:2]
        if metadata is None:
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
            metadata += f"Requires-Python: {requires_python}\n".encode() if requires_python else b""
        folder = tmp_path / "made"
        folder.mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / filename, "w", method) as archive:
            archive.writestr(f"{name}/__init__.py", payload)
            for member, data in {"METADATA": metadata, "WHEEL": "", "RECORD": ""}.items():
                archive.writestr(f"{info}/{member}", data)
        return Wheel(folder / filename, metadata)

    return make


@pytest.fixture
def uploaded():
    return UPLOADED
