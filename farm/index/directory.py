"""A store in a directory of a POSIX file system: the embedded index.

`create` writes a temporary file, syncs it and links it to its place: link(2) fails where something is.
`replace` takes a lock, compares, and renames over the old file. A process may be killed between any two
system calls: readers see the old object or the new one, and what was left under `.tmp` is nobody's; the next
writer removes it.
"""

import contextlib
import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from farm.errors import InfrastructureError
from farm.index.stores import CHUNK, MAX_GET, Stat, Stored, check_key, check_scratch


class DirectoryStore:
    """Objects are files below `root`; media types are left to whoever serves them.

    The names `.tmp` and `.lock` in `root` are the store's own: no key starts with a dot.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.proved = False
        self._swept = False

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self.root)!r})"

    def get(self, key: str) -> Stored | None:
        path = self._path(key)
        with _failures(path):
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_GET + 1)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None
        if len(data) > MAX_GET:
            raise InfrastructureError(f"{path} is larger than {MAX_GET} bytes: not a page or record")
        return Stored(data, hashlib.sha256(data).hexdigest())

    def stat(self, key: str) -> Stat | None:
        path = self._path(key)
        with _failures(path):
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    return Stat(file.tell(), digest)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def chunks(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with _failures(path), path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def create(self, key: str, data: bytes | Path, *, content_type: str, sha256: str | None = None) -> bool:  # noqa: ARG002  the Protocol's
        path = self._path(key)
        with _failures(path):
            if path.exists():  # spares the copy; the link below decides
                return False
            with self._written(data, sha256) as temporary:
                self._make_folder(path.parent)
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
                _sync_folder(path.parent)
                return True

    def replace(self, key: str, data: bytes, etag: str | None, *, content_type: str) -> bool:
        if etag is None:
            return self.create(key, data, content_type=content_type)
        path = self._path(key)
        with _failures(path), self._written(data, None) as temporary, self._locked():
            current = self.get(key)
            if current is None or current.etag != etag:
                return False
            temporary.replace(path)
            _sync_folder(path.parent)
            return True

    def list(self, prefix: str) -> Iterator[str]:
        top = self.root.joinpath(*[check_key(part) for part in prefix.split("/")[:-1]])
        with _failures(top):
            for folder, folders, files in os.walk(top, onerror=_unless_absent):
                folders[:] = [name for name in folders if not name.startswith(".")]
                for name in files:
                    key = (Path(folder) / name).relative_to(self.root).as_posix()
                    if key.startswith(prefix) and not name.startswith("."):
                        yield key

    def url(self, key: str) -> str:
        return f"{self.root.as_uri()}/{quote(key)}"

    def discard(self, key: str) -> None:
        path = self._path(check_scratch(key))
        with _failures(path):
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextlib.contextmanager
    def _written(self, data: bytes | Path, sha256: str | None) -> Iterator[Path]:
        """A complete, synced temporary file; gone afterwards, unless it was renamed."""
        folder = self.root / ".tmp"
        self._make_folder(folder)
        if not self._swept:
            _sweep(folder)
            self._swept = True
        temporary, descriptor = _new_file(folder)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor; closing it drops the lock
                digest = hashlib.sha256()
                for chunk in (data,) if isinstance(data, bytes) else _file_chunks(data):
                    digest.update(chunk)
                    file.write(chunk)
                if sha256 is not None and digest.hexdigest() != sha256:
                    raise InfrastructureError(f"{data!s:.200} changed while it was being stored")
                file.flush()
                os.fsync(file.fileno())
                yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The writers' lock. The kernel drops it with its holder, so a killed writer blocks nobody."""
        with (self.root / ".lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            _sync_folder(new.parent)


def _new_file(folder: Path) -> tuple[Path, int]:
    """A new file with a lock on it: the mark that its writer lives."""
    while True:
        path = folder / uuid.uuid4().hex
        # not tempfile: the object keeps this mode, and a web server under another user must read it
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # a sweep came between the two calls


def _sweep(folder: Path) -> None:
    """Removes temporary files whose writers are dead (nobody holds their lock)."""
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _file_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(
            f"the index directory failed at {error.filename or path}: {error.strerror or error}",
            hint="check free space and permissions; the same command can be run again",
        ) from error
