"""A Python package index and the wheels on it, read without downloading a wheel whole.

The index answers with the JSON of PEP 691. Members of a wheel are read by HTTP ranges: PyTorch's
wheels are up to 1 GB, and what is asked of them is a few files. zipfile checks each member's CRC;
the sha256 is the index's own.
"""

import io
import json
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pip._internal.models.index import PyPI

from farm.base.errors import InfrastructureError
from farm.base.requirement import python_of

PYPI = PyPI.simple_url.rstrip("/")  # the index that pip itself asks by default
TIMEOUT_S = 120
ATTEMPTS = 4
MAX_LISTING = 64 << 20
MAX_MEMBER = 2 << 30
BLOCK = 1 << 17
_JSON = "application/vnd.pypi.simple.v1+json"
_WHEEL = re.compile(
    r"([A-Za-z0-9_.]+)-([0-9][0-9a-z.]*)(?:-\d\w*)?-([a-z0-9.]+)-(\w+)-([a-z0-9_.]+)\.whl"
)


@dataclass(frozen=True)
class Wheel:
    """A wheel of the index. `python` is `py311`, `py313t`, or `py3` for any; `uploaded` is a
    date.
    """

    file: str
    version: str
    python: str
    platform: str
    url: str
    sha256: str
    size: int
    uploaded: str


def release_key(version: str) -> tuple[int, ...]:
    """`(2, 10, 0)` for `2.10.0`."""
    return tuple(map(int, version.split(".")))


def wheels(index: str, package: str) -> Iterator[Wheel]:
    """The wheels of final releases that the index has of a package, yanked ones left out.

    Raises:
        InfrastructureError: The index does not answer with PEP 691's JSON.
    """
    request = urllib.request.Request(f"{index.rstrip('/')}/{package}/", headers={"Accept": _JSON})
    try:
        listing = json.loads(_answer(request, MAX_LISTING))
        links = [_wheel(file) for file in listing["files"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InfrastructureError(f"{request.full_url}: no index of PEP 691: {error}") from error
    yield from (wheel for wheel in links if wheel)


def _wheel(file: dict[str, Any]) -> Wheel | None:
    """A file as a listing describes it; None: no wheel for CPython of a final release, or
    yanked.
    """
    match = _WHEEL.fullmatch(file["filename"])
    final = match and not file.get("yanked") and re.fullmatch(r"\d+(\.\d+)*", match[2])
    if match is None or not final or not re.fullmatch(r"cp3\d*|py[23.py]*", match[3]):
        return None
    return Wheel(
        file=file["filename"],
        version=match[2],
        python="py3" if match[3].startswith("py") else python_of(match[3], match[4]),
        platform=match[5],
        url=file["url"],
        sha256=file["hashes"]["sha256"],
        size=file["size"],
        uploaded=file["upload-time"][:10],
    )


def _answer(request: urllib.request.Request, limit: int) -> bytes:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return bytes(response.read(limit))
        except urllib.error.HTTPError as error:
            error.close()
            # What the server refuses it refuses again; its own errors pass.
            if error.code < 500 or attempt == ATTEMPTS:
                raise InfrastructureError(
                    f"{request.full_url}: {error.code} {error.reason}"
                ) from error
        except OSError as error:
            if attempt == ATTEMPTS:
                raise InfrastructureError(f"{request.full_url}: {error}") from error
        time.sleep(attempt)
    raise AssertionError("unreachable")


class _Ranges(io.RawIOBase):
    """A file on a web server; each read is one request for a range."""

    def __init__(self, url: str, size: int) -> None:
        super().__init__()
        self.url = url
        self.size = size
        self.place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[
            whence
        ] + offset
        return self.place

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.size - self.place)
        if count <= 0:
            return 0
        length = f"bytes={self.place}-{self.place + count - 1}"
        request = urllib.request.Request(self.url, headers={"Range": length})
        data = _answer(request, count + 1)  # a server that knows no ranges sends more
        if len(data) != count:
            raise InfrastructureError(
                f"{self.url}: the server did not answer with the range {length}"
            )
        buffer[:count] = data
        self.place += count
        return count


class RemoteWheel:
    """The members of a wheel on the index."""

    def __init__(self, wheel: Wheel) -> None:
        """Reads the wheel's directory.

        Raises:
            InfrastructureError: The server does not answer, or what it has is no zip file.
        """
        self.wheel = wheel
        try:
            # Buffered: zipfile reads a few bytes at a time, and each read would be a request.
            self._zip = zipfile.ZipFile(io.BufferedReader(_Ranges(wheel.url, wheel.size), BLOCK))
        except zipfile.BadZipFile as error:
            raise InfrastructureError(f"{wheel.file}: {error}") from error

    @property
    def names(self) -> list[str]:
        return self._zip.namelist()

    def find(self, ending: str) -> str | None:
        """The first member whose name ends so."""
        return next((name for name in self.names if name.endswith(ending)), None)

    def read(self, name: str) -> bytes:
        """A member's content.

        Raises:
            InfrastructureError: It is not there, larger than 2 GiB, or damaged.
        """
        try:
            if self._zip.getinfo(name).file_size > MAX_MEMBER:
                raise InfrastructureError(
                    f"{self.wheel.file}: {name} is larger than {MAX_MEMBER >> 30} GiB"
                )
            return self._zip.read(name)
        except (KeyError, zipfile.BadZipFile) as error:
            raise InfrastructureError(f"{self.wheel.file}: {name}: {error}") from error

    def text(self, name: str) -> str:
        return self.read(name).decode("utf-8", "replace")

    @property
    def requirements(self) -> list[str]:
        """`Requires-Dist` of its metadata."""
        metadata = self.find(".dist-info/METADATA")
        lines = self.text(metadata).splitlines() if metadata else []
        return [
            line.removeprefix("Requires-Dist: ")
            for line in lines
            if line.startswith("Requires-Dist: ")
        ]
