"""The folders of a job: inputs that are unpacked, output that is packed and sent."""

from __future__ import annotations

import base64
import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from .store import put, request


def send_output(folder: str, url: str) -> None:
    """The output folder as a tar with one top folder."""
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
            if Path(folder).is_dir():
                archive.add(folder, arcname="out")
        put(url, stream)


def unpack(manifest: dict[str, Any]) -> None:
    """The inputs: in the manifest where they are small, else from the store."""
    if manifest["inputs_url"]:
        source = request(manifest["inputs_url"])
    else:
        source = io.BytesIO(base64.b64decode(manifest["inputs"]))
    with tarfile.open(fileobj=source, mode="r|gz") as archive:
        archive.extractall("/")  # noqa: S202  the controller packed it
