"""Files to and from jobs, as tar streams and zips. What comes back is untrusted: nothing is written
outside.
"""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import contextlib
import errno
import gzip
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from farm.base.errors import BuildFailedError, InfrastructureError
from farm.base.zips import DAMAGED


class RefusedOutputError(BuildFailedError):
    """A job left output that the farm does not take: names that point outside, links, devices, too
    much of it.
    """


class LocalDiskError(InfrastructureError):
    """This machine cannot store a job's output: no space, no file handles, a failing disk. The
    engine still has it.
    """


def check_name(name: str) -> None:
    """Refuse a file of a job's output whose name is more than a line of printable text: it is
    shown, and compared.
    """
    if not name.isprintable():
        raise RefusedOutputError(f"{name!r} of the job's output has a name that cannot be printed")


def too_large(name: str, size: int | None, limit: int) -> RefusedOutputError:
    """The error for output beyond the limit, with the file at which it was met."""
    size_text = "comes to more" if size is None else f"has {size / 1e9:.2f} GB"
    return RefusedOutputError(
        f"the job's output is larger than allowed: {name!r} {size_text}, and its runner may leave "
        f"{limit / 1e9:.2f} GB",
        hint="disk_gb of the runner in ci/runners.yaml is the limit",
    )


_BY_THE_NAME = (
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
)
"""Errors that a file's name can cause; every other one is the disk's."""


@contextlib.contextmanager
def storing(name: str, path: Path) -> Iterator[None]:
    """Tells apart whose fault it is that a file of a job's output cannot be written.

    RefusedOutputError: its name's: it stands twice, is too long, is below another file.
    LocalDiskError: this machine's.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _BY_THE_NAME:
            raise RefusedOutputError(f"{name!r} of the job's output: {reason}") from error
        raise LocalDiskError(
            f"{path}: the job's output cannot be written: {reason}",
            hint="free disk space on this machine; the output is kept, and the same command "
            "continues from there",
        ) from error


MAX_MEMBERS = 10_000
MAX_HEADER = 64 << 10  # bytes of a long name or a pax header, which tarfile holds in memory

_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_END = bytes(2 * tarfile.BLOCKSIZE)


def pack(
    folders: Mapping[str, Path],
    stream: IO[bytes] | gzip.GzipFile,
    skip: tuple[str, ...] = ("__pycache__",),
) -> None:
    """Writes a tar of folders (path there -> folder here): owner root, times zero, order stable,
    links as they are.
    """
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for target, folder in folders.items():
            for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).parts):
                relative = path.relative_to(folder)
                if any(part in skip for part in relative.parts):
                    continue
                info = tarfile.TarInfo(str(PurePosixPath(target.lstrip("/"), relative.as_posix())))
                info.uname = info.gname = "root"
                if path.is_symlink():
                    info.type = tarfile.SYMTYPE
                    info.linkname = str(path.readlink())
                    info.mode = 0o777
                    archive.addfile(info)
                elif path.is_dir():
                    info.type = tarfile.DIRTYPE
                    info.mode = 0o755
                    archive.addfile(info)
                elif path.is_file():
                    with path.open("rb") as source:
                        status = os.fstat(source.fileno())
                        info.size = status.st_size
                        info.mode = 0o755 if status.st_mode & 0o100 else 0o644
                        archive.addfile(info, source)


class _Member(tarfile.TarInfo):
    def _proc_member(self, archive: Any) -> Any:
        # tarfile reads such a header whole before it gives the member away: later would be too late
        # to refuse it.
        if self.type in _HEADERS and self.size > MAX_HEADER:
            raise RefusedOutputError(
                f"the job's output is not a valid tar stream: a header of {self.size} bytes"
            )
        return super()._proc_member(archive)  # type: ignore[misc]


class Stream(io.RawIOBase):
    """An iterator of bytes as a file, bounded; `end` holds the last bytes that were read."""

    def __init__(self, chunks: Iterable[bytes], limit: int) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""
        self._left = self._limit = limit
        self.end = b""

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
            raise too_large("its tar stream", None, self._limit)
        view[:count] = self._rest[:count]
        # Chunks may be shorter than the mark of the end, so the last bytes of the one before count
        # too.
        self.end = (self.end + self._rest[max(0, count - len(_END)) : count])[-len(_END) :]
        self._rest = self._rest[count:]
        return count


def unpack(chunks: Iterable[bytes], dest: Path, max_bytes: int) -> list[Path]:
    """Write the regular files of a tar stream below `dest`, without its top folder; returns them.

    RefusedOutputError: it is larger than `max_bytes`, or holds a name that points outside, a link
    or a device; LocalDiskError: it cannot be written here; InfrastructureError: it is no tar, or
    ends too early.
    """
    # Headers and padding of the tar itself are no output: room for them.
    raw = Stream(chunks, max_bytes + (1 << 20))
    stream = io.BufferedReader(raw, 1 << 20)
    try:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            written = _members(archive, dest, max_bytes)
        # tarfile stops at the first block of zeros; what follows is read so that `raw.end` is the
        # end of the stream.
        while stream.read(1 << 20):
            pass
    except (
        tarfile.TarError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # how tarfile fails on nonsense
        raise InfrastructureError(f"the job's output is not a tar stream: {error}") from error
    # A tar ends with two blocks of zeros. tarfile takes a stream that stops between two members for
    # a whole one: without this look a connection that broke would pass as a build that left fewer
    # files.
    if raw.end != _END:
        raise InfrastructureError(
            "the job's output ends too early", hint="run the same command again"
        )
    return written


def _members(archive: tarfile.TarFile, dest: Path, max_bytes: int) -> list[Path]:
    writer = OutputWriter(dest, max_bytes)
    for member in archive:
        if member.isdir():
            continue
        _, *parts = PurePosixPath(member.name).parts or ("",)
        inside = parts and ".." not in member.name.split("/") and member.name[0] != "/"
        # A sparse file could be of any size on disk.
        writer.check(member.name, plain=bool(inside) and member.isreg() and not member.issparse())
        # By its header, before a byte of it is read: a sparse file of a terabyte costs no disk
        # there, and hours here.
        if member.size > writer.left:
            raise too_large(member.name, member.size, max_bytes)
        source = archive.extractfile(member)
        assert source is not None
        writer.write(member.name, parts, source)
    return writer.written


def unpack_zip(archive: Path, dest: Path, max_bytes: int) -> list[Path]:
    """Write the regular files of a zip below `dest`, as `unpack` does. Sizes are counted, not
    believed.
    """
    writer = OutputWriter(dest, max_bytes)
    try:
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                if member.filename.endswith("/"):
                    continue
                # 0 where whoever made the zip wrote no Unix modes, as programs of Windows do.
                kind = stat.S_IFMT(member.external_attr >> 16)
                parts = member.filename.split("/")
                bad = {"", ".", ".."} & set(parts) or any(c in member.filename for c in "\\:\0")
                # Other methods are not GitHub's doing; what their decoders raise looks like a
                # failing disk's.
                known_method = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                writer.check(
                    member.filename, plain=not bad and known_method and kind in (0, stat.S_IFREG)
                )
                with opened.open(member) as source:
                    writer.write(member.filename, parts, source)
    except DAMAGED as error:
        raise InfrastructureError(f"the job's output is not a valid zip: {error}") from error
    except OSError as error:
        raise LocalDiskError(f"{archive}: cannot be read: {error.strerror or error}") from error
    return writer.written


class OutputWriter:
    """Writes the files of a job's output below a folder, so many bytes of them at most."""

    def __init__(self, dest: Path, max_bytes: int) -> None:
        self._dest = dest
        self._limit = max_bytes
        self.left = max_bytes
        self.written = list[Path]()

    def check(self, name: str, *, plain: bool) -> None:
        """Refuses a member that is not a plain file below the output's folder, and one too many."""
        if not plain:
            raise RefusedOutputError(
                f"the job's output holds {name!r}, which is not a plain file below its folder"
            )
        if len(self.written) >= MAX_MEMBERS:
            raise RefusedOutputError(f"the job's output holds more than {MAX_MEMBERS} files")
        check_name(name)

    def write(self, name: str, parts: Sequence[str], source: IO[bytes]) -> None:
        path = self._dest.joinpath(*parts)
        with storing(name, path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x": a name that stands twice is refused, not overwritten.
            with path.open("xb") as target:
                while piece := source.read(1 << 20):
                    self.left -= len(piece)
                    if self.left < 0:
                        raise too_large(name, None, self._limit)
                    target.write(piece)
        self.written.append(path)
