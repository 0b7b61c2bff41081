"""Files and folders that other users of this machine can touch.

A path may lead elsewhere a moment after it was checked. So a file is opened once, what is checked
is the open file, and what is used is a copy in a folder of the user's alone; a file that is written
is new. For Python 3.9 and the standard library alone: offline bundles carry this module.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import sys
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from farm.base.errors import FarmError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

CHUNK = 1 << 20
MAX_DEPTH = 100  # folders in each other that are read
ACL = "system.posix_acl_access"  # acl(5); the entries beyond owner, group and others

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # to open a pipe without waiting for its writer
_BINARY = getattr(os, "O_BINARY", 0)


# How opening fails for a link, a socket, and a pipe or a device.
_NOT_PLAIN = (errno.ELOOP, errno.ENXIO, errno.EINVAL)


class UnsafeFolderError(FarmError):
    """A folder that others can change or put something else in place of."""


def open_plain(
    path: Path | str, *, folder: int | None = None, follow_links: bool = False
) -> IO[bytes]:
    """Open a plain file for reading, without waiting and, by default, without following a link.

    Args:
        path: the file; with `folder` its name in that folder.
        folder: the descriptor of an open folder.
        follow_links: take a link to a plain file; for files of the user's own.

    Raises:
        OSError: the system refuses it, or it is a link (ELOOP), a folder (EISDIR), a pipe, a socket
            or a device (EINVAL).
    """
    flags = os.O_RDONLY | _CLOEXEC | _NONBLOCK | _BINARY
    if not follow_links:
        flags |= _NOFOLLOW
    if folder is None:
        descriptor = os.open(path, flags)
    else:
        descriptor = os.open(path, flags, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "a pipe, a socket or a device, not a file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path, limit: int) -> bytes:
    """Read a plain file, or a link to one, that somebody else may have written.

    Args:
        path: the file.
        limit: how many bytes it may have.

    Raises:
        OSError: the system refuses it, it is no plain file, or larger (EFBIG).
    """
    with open_plain(path, follow_links=True) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {size_text(limit)}", str(path))
    return content


def size_text(limit: int) -> str:
    """A limit in words: `4 MiB`, `64 KiB`."""
    if limit >= 1 << 20:
        return f"{limit >> 20} MiB"
    return f"{limit >> 10} KiB"


@contextlib.contextmanager
def open_folder(path: PurePath | str, *, below: Path | None = None) -> Iterator[int]:
    """Open a folder and give its descriptor.

    Args:
        path: the folder.
        below: a folder of the user's alone; `path` is then relative to it, and no part of it may
            be a link.

    Raises:
        OSError: the system refuses it, or it is a link or no folder (ENOTDIR or ELOOP).
    """
    flags = os.O_RDONLY | _DIRECTORY | _CLOEXEC
    if below is None:
        descriptor = os.open(path, flags)
    else:
        descriptor = os.open(below, flags)
        for part in PurePath(path).parts:
            outer = descriptor
            try:
                descriptor = os.open(part, flags | _NOFOLLOW, dir_fd=outer)
            finally:
                os.close(outer)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def plain_files(top: PurePath, *, below: Path) -> Iterator[tuple[PurePosixPath, IO[bytes] | None]]:
    """Open each file of a folder in which another program may change anything meanwhile.

    Args:
        top: the folder, relative to `below`; no part of it may be a link.
        below: a folder whose path is the user's own.

    Yields:
        What is there: the path below the folder, and the file, open until the next one is asked
        for. Links, pipes, devices and folders in more than `MAX_DEPTH` others have no file.

    Raises:
        OSError: the system refuses to read something, or it was removed or replaced meanwhile.
    """
    folders = [PurePosixPath()]
    while folders:
        folder = folders.pop()
        with _entries(below, top / folder) as (descriptor, names):
            subfolders = []
            for name in names:
                path = folder / name
                try:
                    stream = _open_entry(below / top / path, descriptor)
                except IsADirectoryError:
                    subfolders.append(path)
                except OSError as error:
                    if error.errno not in _NOT_PLAIN:
                        raise
                    yield path, None
                else:
                    with stream:
                        yield path, stream
        if subfolders and len(folder.parts) >= MAX_DEPTH:
            yield subfolders[0], None
            continue
        folders += reversed(subfolders)


def _open_entry(path: Path, folder: int | None) -> IO[bytes]:
    if folder is not None:
        return open_plain(path.name, folder=folder)
    # Windows: a link or a junction has this attribute, and a folder cannot be opened.
    status = path.lstat()
    if getattr(status, "st_file_attributes", 0) & stat.FILE_ATTRIBUTE_REPARSE_POINT:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return open_plain(path)


@contextlib.contextmanager
def _entries(below: Path, folder: PurePath) -> Iterator[tuple[int | None, list[str]]]:
    """The descriptor of a folder below another, and the sorted names in it."""
    if sys.platform == "win32":  # it opens no file relative to a folder
        yield None, _names(below / folder)
        return
    with open_folder(folder, below=below) as descriptor:
        yield descriptor, _names(descriptor)


def _names(folder: Path | int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def copy_to(stream: IO[bytes], out: IO[bytes], limit: int) -> tuple[str, int]:
    """Copy an open file into another one and hash it on the way.

    Args:
        stream: what is read, to its end.
        out: what is written.
        limit: how many bytes are copied at most.

    Returns:
        The sha256 of what was copied, in hexadecimal, and its size in bytes. A size above the limit
        means that there is more.
    """
    digest = hashlib.sha256()
    size = 0
    while size <= limit:
        chunk = stream.read(min(CHUNK, limit + 1 - size))
        if not chunk:
            break
        digest.update(chunk)
        out.write(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


@contextlib.contextmanager
def checked_copy(
    source: Path, folder: Path, *, sha256: str, size: int
) -> Iterator[IO[bytes] | None]:
    """Copy a file of others into a folder of the user's alone, and give the copy, open at its
    start.

    Args:
        source: the file, which is opened once.
        folder: where the copy is until the context ends.
        sha256: what the file must be, in hexadecimal.
        size: its size in bytes.

    Yields:
        The copy; None where the file is another one.

    Raises:
        OSError: the file cannot be read, or the copy not be written.
    """
    place = folder / f".copy-{secrets.token_hex(8)}"
    try:
        with open_plain(source) as stream, create_new(place) as copy:
            copied = copy_to(stream, copy, size)
            copy.seek(0)
            yield copy if copied == (sha256, size) else None
    finally:
        with contextlib.suppress(FileNotFoundError):
            place.unlink()


def create_new(path: Path | str, *, folder: int | None = None, mode: int = 0o600) -> IO[bytes]:
    """Create a file that is not there yet, open for writing and reading.

    Args:
        path: the file; with `folder` its name in that folder.
        folder: the descriptor of an open folder.
        mode: its mode, before the umask.

    Raises:
        FileExistsError: there is something of that name, a link included.
        OSError: the system refuses it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _CLOEXEC | _BINARY
    if folder is None:
        descriptor = os.open(path, flags, mode)
    else:
        descriptor = os.open(path, flags, mode, dir_fd=folder)
    return os.fdopen(descriptor, "w+b")


@contextlib.contextmanager
def replacing(folder: int, name: str) -> Iterator[IO[bytes]]:
    """Write a file of an open folder anew; it gets its name when it is whole.

    A link of that name is replaced, not followed.
    """
    part = f".{name}.{secrets.token_hex(8)}"
    try:
        with create_new(part, folder=folder, mode=0o666) as stream:
            yield stream
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part, dir_fd=folder)
        raise


def make_folder(folder: Path, *, readable: bool = False) -> Path:
    """Make a folder of the user's alone, or take it as an earlier call made it.

    Args:
        folder: the folder; those above it are made as well.
        readable: others may read what is in it.

    Returns:
        The folder, without links in its path.

    Raises:
        UnsafeFolderError: it is a link or no folder, belongs to somebody else, is open to others,
            or others can put something in its place.
        OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    parent = folder.parent.resolve()
    folder = parent / folder.name
    reason = weakness(parent)
    if reason:
        raise UnsafeFolderError(f"{folder} is not safe: {reason}")
    try:
        folder.mkdir(mode=0o755 if readable else 0o700)
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise UnsafeFolderError(f"{folder} is a link or no folder") from None
        if status.st_uid != os.geteuid():
            raise UnsafeFolderError(f"{folder} belongs to user {status.st_uid}") from None
        if readable:
            reason = writable_by_others(folder)
            if reason:
                raise UnsafeFolderError(f"{folder} is not safe: {reason}") from None
        elif status.st_mode & 0o077:
            raise UnsafeFolderError(f"{folder} is open to others") from None
    return folder


def weakness(folder: Path) -> str | None:
    """Why others could put something else in place of a folder or of one above it.

    Returns:
        The reason, in words; None where they cannot.
    """
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        reason = writable_by_others(place, sticky_is_safe=True)
        if reason:
            return reason
    return None


def writable_by_others(folder: Path, *, sticky_is_safe: bool = False) -> str | None:
    """Why somebody else can change the entries of a folder.

    Args:
        folder: the folder, which is not followed if it is a link.
        sticky_is_safe: take a folder of all, such as /tmp, in which others cannot rename what is
            not theirs.

    Returns:
        The reason, in words; None where nobody else can.
    """
    # In a user namespace the root folder's owner has another number than 0.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    status = folder.lstat()
    if status.st_uid not in trusted:
        return f"{folder} belongs to user {status.st_uid}"
    # A user's private group has the user's number. With an ACL the bits of the group are the most
    # that its entries give to anybody.
    private_group = status.st_gid in (0, os.geteuid()) and not has_acl(folder)
    group = status.st_mode & stat.S_IWGRP and not private_group
    world_writable = status.st_mode & stat.S_IWOTH
    if not group and not world_writable:
        return None
    if sticky_is_safe and status.st_mode & stat.S_ISVTX:
        return None
    return f"others may write to {folder}"


def has_acl(folder: Path) -> bool:
    """True if an access control list of POSIX is set on a folder; elsewhere than on Linux False."""
    getxattr = getattr(os, "getxattr", None)
    if getxattr is None:
        return False
    try:
        getxattr(folder, ACL, follow_symlinks=False)
    except OSError:
        return False
    return True


def is_noexec(folder: Path) -> bool:
    """True if no program runs from a folder, or from the one that it will be made in (`noexec`)."""
    statvfs = getattr(os, "statvfs", None)  # not on Windows
    if statvfs is None:
        return False
    return bool(statvfs(nearest_folder(folder)).f_flag & getattr(os, "ST_NOEXEC", 0))


def nearest_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    for place in (folder, *folder.absolute().parents):
        if os.path.exists(place):  # noqa: PTH110 `Path.exists` raises below what may not be read
            return place
    return Path("/")
