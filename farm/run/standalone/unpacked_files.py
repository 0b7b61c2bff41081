"""The unpacked toolchain and inputs of an offline bundle, and whether they are as they were.

For Python 3.9 and the standard library alone, as the program of the bundle.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACES = ("dev", "proc", "tmp", "run", "root", "farm")
"""Folders of a root file system beside files; nothing in them but /farm comes with the toolchain.
"""
CHANGING = (
    "root/dev",
    "root/proc",
    "root/tmp",
    "root/run",
    "root/root",
    "root/farm-jobs",
    "root/farm-volumes",
)
"""Folders that builds and their engine fill."""


def extract(tree: tarfile.TarFile, root: Path) -> None:
    """The toolchain's files; the archive was made by the farm and verified, its links are its
    own.
    """
    root.mkdir(parents=True, exist_ok=True)
    if hasattr(tarfile, "fully_trusted_filter"):
        # Python 3.14 filters by default, old ones know no filters.
        tree.extraction_filter = tarfile.fully_trusted_filter
    tree.extractall(root)  # noqa: S202 verified: see above
    for name in PLACES:
        (root / name).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def contents(state: Path, inputs: list[str]) -> dict[str, str]:
    """Properties of each unpacked file that must not change: its hash and mode, or where a link
    leads.
    """
    properties = {}
    for name in ("root", *inputs):
        for path in walk(state, state / name):
            properties[path.relative_to(state).as_posix()] = _properties_of(path)
    return properties


def _properties_of(path: Path) -> str:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"-> {os.readlink(path)}"  # noqa: PTH115 no Path of it
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return f"{mode:o} {digest(path)}"
    return f"{mode:o} no plain file"


def walk(state: Path, folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if path.relative_to(state).as_posix() not in CHANGING:
                yield from walk(state, path)
        else:
            yield path


def difference(before: dict[str, str], now: dict[str, str]) -> str | None:
    """The first file that is not as it was; builds add files below /farm, and nowhere else."""
    for name, properties in before.items():
        if now.get(name) != properties:
            return name
    for name in now:
        if name not in before and not name.startswith("root/farm/"):
            return name
    return None


def digest(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            total.update(piece)
    return total.hexdigest()
