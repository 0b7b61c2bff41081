"""Files to and from containers as tar streams. What comes back is untrusted: nothing is written outside."""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from farm.errors import InfrastructureError

MAX_MEMBERS = 10_000


def pack(folders: Mapping[str, Path], skip: tuple[str, ...] = ("__pycache__",)) -> bytes:
    """A tar of folders: container path -> folder here. Owner root, times zero, order stable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for target, folder in folders.items():
            for path in sorted(folder.rglob("*")):
                relative = path.relative_to(folder)
                if any(part in skip for part in relative.parts) or not (path.is_file() or path.is_dir()):
                    continue
                info = archive.gettarinfo(path, str(PurePosixPath(target.lstrip("/"), relative.as_posix())))
                info.uid = info.gid = 0
                info.uname = info.gname = "root"
                info.mtime = 0
                if info.isdir():
                    info.mode = 0o755
                    archive.addfile(info)
                else:
                    info.mode = 0o755 if info.mode & 0o100 else 0o644
                    with path.open("rb") as stream:
                        archive.addfile(info, stream)
    return buffer.getvalue()


class _Stream(io.RawIOBase):
    """An iterator of bytes as a file, bounded."""

    def __init__(self, chunks: Iterable[bytes], limit: int) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        count = min(len(view), len(self._rest))
        self._left -= count
        if self._left < 0:
            raise InfrastructureError("the job's output is larger than allowed")
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def unpack(chunks: Iterable[bytes], dest: Path, max_bytes: int) -> list[Path]:
    """Write the regular files of a tar stream below `dest`, without its top folder; returns them.

    Raises:
        InfrastructureError: The stream is no tar, is larger than `max_bytes`, or holds a name that points
            outside, a link or a device.
    """
    written: list[Path] = []
    stream = io.BufferedReader(_Stream(chunks, max_bytes + (1 << 20)), 1 << 20)
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, member in enumerate(archive):
                if count >= MAX_MEMBERS:
                    raise InfrastructureError(f"the job's output holds more than {MAX_MEMBERS} files")
                parts = PurePosixPath(member.name).parts[1:]
                if not parts or member.isdir():
                    continue
                if not member.isreg() or ".." in parts or member.name.startswith("/"):
                    raise InfrastructureError(f"the job's output holds {member.name!r}, which is no plain file")
                path = dest.joinpath(*parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                assert source is not None
                with path.open("wb") as target:
                    while piece := source.read(1 << 20):
                        target.write(piece)
                written.append(path)
    except tarfile.TarError as error:
        raise InfrastructureError(f"the job's output is not a tar stream: {error}") from error
    return written
