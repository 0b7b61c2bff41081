"""A store in a directory of a POSIX or NTFS file system.

`create` writes a temporary file, syncs it and links it to its place: a hard link fails where
something is. `replace` takes a lock, compares, and renames over the old file. A process may be
killed between any two system calls: readers see the old object or the new one, and what was left
under `.tmp` a later writer removes.

Windows differs in three ways, from Microsoft's documentation and seen under Wine 8: an open file
cannot be renamed or removed, so files are closed first; a file that somebody reads cannot be
replaced for that moment, so it is tried again; and folders cannot be synced.
"""

import contextlib
import errno
import hashlib
import os
import sys
import time
import uuid
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from urllib.parse import quote

from farm.base.errors import InfrastructureError
from farm.base.locks import lock, retry_while_open
from farm.base.outputs import sync_folder
from farm.base.temporary import finish_removal
from farm.index.stores import (
    CHUNK,
    MAX_GET,
    Progress,
    Stat,
    Stored,
    check_discardable,
    check_key,
    file_chunks,
)

STALE_S = 3600
"""A temporary file that nobody wrote to for so long is a killed writer's."""

_LACKING = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems without locks or hard links."""


class DirectoryStore:
    """Objects are files below `root`; media types are left to whoever serves them.

    The names `.tmp` and `.lock` in `root` are the store's own: no key starts with a dot.

    Args:
        root: The folder; the first write makes it. Others may read what is stored, whatever the
            umask: a web server runs under another user.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._swept = False

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.root)!r})"

    def get(self, key: str) -> Stored | None:
        path = self._path(key)
        with _failures(path):
            try:
                with retry_while_open(_open, path) as file:
                    data = file.read(MAX_GET + 1)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
        if len(data) > MAX_GET:
            raise InfrastructureError(
                f"{path} is larger than {MAX_GET} bytes: not a page or record"
            )
        return Stored(data, hashlib.sha256(data).hexdigest())

    def stat(self, key: str) -> Stat | None:
        path = self._path(key)
        with _failures(path):
            try:
                with retry_while_open(_open, path) as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    return Stat(file.tell(), digest)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def chunks(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _failures(path), retry_while_open(_open, path) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def create(
        self,
        key: str,
        data: bytes | Path,
        *,
        content_type: str,  # noqa: ARG002  the Protocol's
        sha256: str | None = None,
        progress: Progress | None = None,
    ) -> bool:
        path = self._path(key)
        with _failures(path):
            if path.exists():  # spares the copy; the link below decides
                return False
            with self._written(data, sha256, progress) as temporary:
                self._make_folder(path.parent)
                try:
                    # Not rename: it would replace what another publisher has just put there, and
                    # the first one must win.
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                sync_folder(path.parent)
                return True

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        if etag is None:
            return self.create(key, data, content_type=content_type)
        path = self._path(key)
        with _failures(path), self._written(data, None, None) as temporary, self._locked():
            # Under the lock: between this look and the rename no other writer can come.
            current = self.get(key)
            if current is None or current.etag != etag:
                return False
            retry_while_open(temporary.replace, path)
            sync_folder(path.parent)
            return True

    def clock(self) -> None:
        """A folder has none."""

    def list(self, prefix: str) -> Iterator[str]:
        *names, _ = prefix.split("/")
        top = self.root.joinpath(*map(check_key, names))
        with _failures(top):
            for folder, folders, files in os.walk(top, onerror=_unless_absent):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in files:
                    path = Path(folder) / name
                    key = path.relative_to(self.root).as_posix()
                    if key.startswith(prefix) and not name.startswith("."):
                        yield key

    def url(self, key: str) -> str:
        return f"{self.root.as_uri()}/{quote(key)}"

    def discard(self, key: str) -> None:
        path = self._path(check_discardable(key))
        with _failures(path):
            retry_while_open(path.unlink, missing_ok=True)

    def _path(self, key: str) -> Path:
        """Where a key is: below `root` and nowhere else, so no part of the way may be a symbolic
        link.

        `root` itself may be one: whoever configures the index chooses it.
        """
        path = self.root
        for part in check_key(key).split("/"):
            path /= part
            # A link in a shared folder would lead a write elsewhere; one in the index of a job, a
            # file of this user into the index that takes its wheels.
            if path.is_symlink():
                raise InfrastructureError(
                    f"{path} is a symbolic link; the farm follows none inside an index",
                    hint="remove it and run the command again, or make the index's own folder the "
                    "link",
                )
        return path

    @contextlib.contextmanager
    def _written(
        self, data: bytes | Path, sha256: str | None, progress: Progress | None
    ) -> Iterator[Path]:
        """A complete, synced temporary file; gone afterwards, unless it was renamed."""
        folder = self.root / ".tmp"
        self._make_folder(folder)
        if not self._swept:
            _sweep(folder)
            self._swept = True
        temporary = folder / uuid.uuid4().hex
        try:
            with temporary.open("xb") as file:
                if sys.platform != "win32":
                    os.fchmod(file.fileno(), 0o644)
                digest = hashlib.sha256()
                done = 0
                for chunk in (data,) if isinstance(data, bytes) else file_chunks(data):
                    digest.update(chunk)
                    file.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done)
                if sha256 is not None and digest.hexdigest() != sha256:
                    raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
                file.flush()
                # Before the link: after a power cut the name must not lead to a file without
                # content.
                os.fsync(file.fileno())
            yield temporary
        finally:
            finish_removal(_remove, temporary)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The writers' lock. The kernel drops it with its holder, so a killed writer blocks
        nobody.
        """
        with (self.root / ".lock").open("ab") as file:
            lock(file.fileno(), wait=True)
            yield

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            with contextlib.suppress(FileExistsError):
                new.mkdir()
                if new.name != ".tmp":
                    # Only folders that this call made: what an administrator set stays.
                    new.chmod(0o755)
            sync_folder(new.parent)


def _remove(path: Path) -> None:
    # One that somebody on Windows holds open all the time is left to a later sweep.
    with contextlib.suppress(PermissionError):
        retry_while_open(path.unlink, missing_ok=True)


def _sweep(folder: Path) -> None:
    """Removes what killed writers left."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - STALE_S:
                _remove(path)


def _open(path: Path) -> BufferedReader:
    if (
        sys.platform == "win32" and path.is_dir()
    ):  # Windows says PermissionError, as of a file that is being replaced
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.open("rb")


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # FAT says EPERM to a hard link, as if it were forbidden; so does a folder that is
        # immutable.
        lacking = error.errno in _LACKING or (
            error.errno == errno.EPERM and error.filename2 is not None
        )
        if lacking:
            hint = (
                "an index needs hard links and locks, which FAT and some network file systems "
                "lack; if this one has them, check permissions"
            )
        else:
            hint = "check free space and permissions; the same command can be run again"
        place = error.filename or path
        raise InfrastructureError(
            f"the index directory failed at {place}: {error.strerror or error}", hint=hint
        ) from error
