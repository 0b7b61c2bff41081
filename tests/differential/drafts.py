"""A wheel taken apart, to be changed and put together again.

What a change does not touch stays true: RECORD is computed anew, unless the change is one of RECORD itself.
"""

import base64
import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.unit.wheel.hostile_make import FILE, Member, pack


def row(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    quoted = f'"{name.replace(chr(34), chr(34) * 2)}"' if set(name) & set(',"\n\r') else name
    return f"{quoted},sha256={digest},{len(content)}"


@dataclass
class Draft:
    """A wheel to be changed.

    Attributes:
        filename: What the file will be called.
        info: The `.dist-info` folder.
        files: Content by member, without RECORD.
        modes: Unix mode by member, where it is not that of a plain file.
        record: Changes the lines of the true RECORD.
        members: Changes the members before they are packed.
        archive: Options of `pack`.
        whole: Changes the bytes of the finished file.
    """

    filename: str
    info: str
    files: dict[str, bytes]
    modes: dict[str, int] = field(default_factory=dict)
    record: Callable[[list[str]], list[str]] = lambda lines: lines
    members: Callable[[list[Member]], list[Member]] = lambda members: members
    archive: dict[str, Any] = field(default_factory=dict)
    whole: Callable[[bytes], bytes] = lambda content: content

    @property
    def data(self) -> str:
        return self.info.removesuffix(".dist-info") + ".data"

    @property
    def package(self) -> str:
        """A folder of the wheel's own at the top of site-packages."""
        tops = (name.partition("/") for name in self.files)
        inside = [top for top, slash, _ in tops if slash and not top.endswith((".dist-info", ".data", ".libs"))]
        return max(inside, key=inside.count, default="own")

    def library(self, *suffixes: str) -> str:
        """The first library with one of these endings."""
        return next(name for name in self.files if name.endswith(suffixes))

    def write(self, folder: Path) -> Path:
        """The wheel, in `folder`."""
        record = f"{self.info}/RECORD"
        lines = self.record([*(row(*item) for item in self.files.items()), f"{record},,"])
        content = {**self.files, record: "".join(line + "\n" for line in lines).encode("utf-8", "surrogateescape")}
        members = [Member(name, data, mode=self.modes.get(name, FILE)) for name, data in content.items()]
        path = folder / self.filename
        path.write_bytes(self.whole(pack(self.members(members), **self.archive)))
        return path


def take_apart(wheel: Path) -> Draft:
    """What is in a wheel. A change of it changes no other."""
    with zipfile.ZipFile(wheel) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        files = {entry.filename: archive.read(entry) for entry in entries}
        modes = {entry.filename: entry.external_attr >> 16 or FILE for entry in entries}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    files.pop(record)
    return Draft(wheel.name, record.partition("/")[0], files, modes)
