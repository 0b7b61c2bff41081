"""The parts of a bundle, verified and unpacked."""

from __future__ import annotations

import hashlib
import io
import lzma
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

from .report import AGAIN, DAMAGED, leave, say


class Joined(io.RawIOBase):
    """The parts, one after the other, as one file; each is verified before its first byte is used."""

    def __init__(self, parts: list[tuple[Path, dict[str, Any]]]) -> None:
        self._parts = iter(parts)
        self._stream: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            count = self._stream.readinto(buffer) if self._stream else 0
            if count:
                return int(count)
            following = next(self._parts, None)
            if following is None:
                return 0
            path, entry = following
            total = hashlib.sha256()
            with path.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    total.update(piece)
            if total.hexdigest() != entry["sha256"]:
                leave(DAMAGED, f"{path} is damaged: its sha256 differs from the manifest's; copy it here again")
            self._stream = path.open("rb")


def unpack(manifest: dict[str, Any], folders: list[Path], state: Path) -> None:
    """Join the parts into `state`: `root` is the toolchain, `lib` the engine, the others are the build's inputs."""
    ready = state / "unpacked"
    if ready.exists():
        return
    found, missing = [], []
    for part in manifest["parts"]:
        paths = [folder / part["name"] for folder in folders if (folder / part["name"]).is_file()]
        # A part that is still being copied has its name already, but not its size.
        if paths and paths[0].stat().st_size == part["size"]:
            found.append((paths[0], part))
        else:
            missing.append(part["name"])
    if missing:
        here = ", ".join(path.name for path, _ in found) or "none"
        leave(AGAIN, f"parts here: {here}; still missing: {', '.join(missing)}; copy them here and call again")
    say(f"unpacking {len(found)} parts into {state}")
    start = time.monotonic()
    for name in ("root", "lib", *manifest["job"]["inputs"].values()):
        # What a killed call unpacked: there is no telling which of its files are whole.
        shutil.rmtree(state / name, ignore_errors=True)
    state.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BufferedReader(Joined(found), 1 << 20), mode="r|") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            if stream is None:
                continue
            # Unpacked out of the stream: the disk need not hold it twice.
            if member.name == "tree.tar.xz":
                with lzma.open(stream) as plain, tarfile.open(fileobj=plain, mode="r|") as tree:
                    extract(tree, state / "root")
                continue
            target = state / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
    ready.touch()  # last: a call that was killed in between starts the unpacking again
    say(f"unpacked in {time.monotonic() - start:.0f} s")


def extract(tree: tarfile.TarFile, root: Path) -> None:
    """The toolchain's files; the archive was made by the farm and verified, its links are its own."""
    root.mkdir(parents=True, exist_ok=True)
    if hasattr(tarfile, "fully_trusted_filter"):  # Python 3.14 filters by default, old ones know no filters
        tree.extraction_filter = tarfile.fully_trusted_filter
    tree.extractall(root)  # noqa: S202 verified: see above
