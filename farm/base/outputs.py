"""Output folders of commands: written whole or not at all."""

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from farm.base.errors import InfrastructureError, UsageError
from farm.base.locks import retry_while_open
from farm.base.safe_files import nearest_folder
from farm.base.temporary import temporary_folder

ROOM = "make room there, or set TMPDIR"

_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
"""Why a folder cannot be made, or a file not be written, although the caller names a good one."""


def make_folder(folder: Path, made: list[Path]) -> None:
    """Make a folder and those above it, each noted in `made`; UsageError: there can be none;
    OSError: no room.
    """
    for part in (*reversed(folder.parents), folder):
        if part.is_dir():
            continue
        try:
            part.mkdir()
        except OSError as error:
            if error.errno in _OF_THE_MACHINE:
                raise
            raise UsageError(
                f"{part}: cannot be made: {error.strerror}", hint="name another folder"
            ) from error
        made.append(part)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError inside becomes an InfrastructureError that names `path`: a write's own names no
    file, or another.
    """
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def writing(path: Path, hint: str | None = None) -> Iterator[None]:
    """A full or broken disk, an error that names no file, becomes an InfrastructureError that names
    what is written.
    """
    try:
        yield
    except OSError as error:
        # Others are not of the disk: a connection that is reset while a file is sent or fetched.
        if error.filename or error.errno not in _OF_THE_MACHINE:
            raise
        raise InfrastructureError(f"{path}: {error.strerror}", hint=hint) from error


@contextlib.contextmanager
def temporary_file() -> Iterator[IO[bytes]]:
    """A new file without a name, in the system's folder for temporary files; an error of writing
    names the folder.
    """
    folder = Path(tempfile.gettempdir())
    with writing(folder, ROOM), tempfile.TemporaryFile(dir=folder) as file:
        yield file


def unwritable(folder: Path) -> str | None:
    """Why nothing can be written into a folder, or the nearest above it that is there; None: a file
    was written.
    """
    place = nearest_folder(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        return f"{place}: {error.strerror}"
    return None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last: a file that was moved into it is there after a power cut."""
    if sys.platform == "win32":
        return  # NTFS writes its journal itself
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(dest: Path, files: Mapping[Path, bytes]) -> None:
    """Write `files` below `dest`, all or none; UsageError: there can be no such folder; or the
    machine has no room.
    """
    created_folders: list[Path] = []
    try:
        make_folder(dest, created_folders)
        with temporary_folder(".farm-", dest) as part:
            for file, data in files.items():
                new = part / "new" / file
                with naming(dest / file):
                    new.parent.mkdir(parents=True, exist_ok=True)
                    new.write_bytes(data)
            _put(part / "new", files, dest, part / "old", created_folders)
    except BaseException:
        remove(created_folders)
        raise


def _put(new: Path, files: Iterable[Path], dest: Path, old: Path, created: list[Path]) -> None:
    """Move `files` from below `new` to below `dest`, all or none, noted in `created`; `old` keeps
    what was there.
    """
    added: list[Path] = []
    backed_up: list[Path] = []
    try:
        for file in files:
            target = dest / file
            make_folder(target.parent, added)
            if target.is_dir():
                raise UsageError(
                    f"{target} is a folder, and a file goes there", hint="name another folder"
                )
            if os.path.lexists(target):
                (old / file).parent.mkdir(parents=True, exist_ok=True)
                backed_up.append(file)
                retry_while_open(target.replace, old / file)
            added.append(target)
            retry_while_open((new / file).replace, target)
    except BaseException:
        remove(added)
        for file in backed_up:
            with contextlib.suppress(FileNotFoundError):  # Ctrl-C before it was moved
                retry_while_open((old / file).replace, dest / file)
        raise
    created += added


def remove(made: list[Path]) -> None:
    """Take away what a command made, the last first; a folder that holds something of others
    stays.
    """
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
