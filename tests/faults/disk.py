"""A disk, or a table of open files, that fails at the n-th use: in this process, for files below a folder.

Counted is what a program asks of the disk: opens, writes, the write at a close, new folders, renames, and statements
of SQLite that write. Python's own functions are replaced, so the errors are those that the kernel would give, at the
places where it would give them. A real full disk: tests/e2e/dispatch/test_full_disk.py.
"""

import builtins
import contextlib
import errno
import io
import os
import signal
import sqlite3
import threading
from pathlib import Path
from unittest import mock

WRITES = ("open", "write", "close", "mkdir", "rename", "sqlite")
SQLITE = {errno.ENOSPC: sqlite3.SQLITE_FULL, errno.EIO: sqlite3.SQLITE_IOERR, errno.EMFILE: sqlite3.SQLITE_CANTOPEN}
SQLITE_TEXT = {
    errno.ENOSPC: "database or disk is full",
    errno.EIO: "disk I/O error",
    errno.EMFILE: "unable to open database file",
}
"""sqlite3_errstr of the codes, as the library words them."""


def texts(number):
    """What a reason may hold that names the fault truly."""
    return (os.strerror(number), SQLITE_TEXT[number])


class Disk:
    """Counts what is asked of files below `folder` and of temporary files.

    Number `first` fails, and the `times` - 1 after it.

    `kinds`: what may fail. A table of open files that is full makes opens fail alone, for whatever file.
    """

    def __init__(self, folder, number, first=None, times=1):
        self.folder, self.number = str(folder), number
        self.first, self.last = first, None if first is None else first + times - 1
        self.kinds = ("open", "sqlite") if number == errno.EMFILE else WRITES
        self.count, self.failed, self.lock = 0, [], threading.Lock()
        self.at_work, self.abandoned = True, []

    def _fails(self, kind, what):
        if kind not in self.kinds or not self.at_work:
            return False
        with self.lock:
            self.count += 1
            bad = self.first is not None and self.first <= self.count <= self.last
            if bad:
                self.failed.append((kind, str(what)))
            return bad

    def mine(self, path):
        if isinstance(path, int):  # a temporary file, which has no name
            return True
        return f"{os.fspath(path)}/".startswith(f"{self.folder}/")

    def check(self, kind, what):
        if self._fails(kind, what):
            self.strike(OSError(self.number, os.strerror(self.number), str(what)))

    def strike(self, error):
        """What a fault is."""
        raise error

    def statement(self, sql):
        word = sql.split(None, 1)[0].upper()
        if word in ("BEGIN", "COMMIT", "INSERT", "UPDATE") and self._fails("sqlite", sql[:40]):
            error = sqlite3.OperationalError(SQLITE_TEXT[self.number])
            error.sqlite_errorcode = SQLITE[self.number]
            self.strike(error)


class Kill(Disk):
    """Ends this process in the place of a fault, as a power cut or the kernel's memory killer does."""

    def __init__(self, folder, first=None):
        super().__init__(folder, errno.EIO, first)
        self.kinds = ("sqlite", "rename")

    def strike(self, _error):
        os.kill(os.getpid(), signal.SIGKILL)


class Stop(Kill):
    """Stops this process there, as Ctrl-Z, a debugger or a laptop's lid does, until somebody has it go on."""

    def strike(self, _error):
        os.kill(os.getpid(), signal.SIGSTOP)


class _File:
    """An open file whose writes are counted; the rest is the file's own."""

    def __init__(self, disk, file, what):
        self._disk, self._file, self._what, self._wrote = disk, file, what, False

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __iter__(self):
        return iter(self._file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def write(self, data):
        self._disk.check("write", self._what)
        self._wrote = True
        return self._file.write(data)

    def close(self):
        buffered = self._wrote and not isinstance(self._file, io.RawIOBase) and not self._file.closed
        self._file.close()
        if buffered:
            self._disk.check("close", self._what)


@contextlib.contextmanager
def failing(disk):
    """The disk's faults, for the block."""
    real = {name: getattr(os, name) for name in ("mkdir", "rename", "replace", "sendfile")}
    real_open, real_connect = io.open, sqlite3.connect

    def opened(path, mode="r", *args, **kwargs):
        writes = any(letter in mode for letter in "wxa+")
        ours = disk.mine(path)
        if not isinstance(path, int) and ((ours and writes) or disk.number == errno.EMFILE):
            disk.check("open", path)
        file = real_open(path, mode, *args, **kwargs)
        return _File(disk, file, path) if ours and writes else file

    def counted(name, kind):
        def call(path, *args, **kwargs):
            if disk.mine(path):
                disk.check(kind, path)
            return real[name](path, *args, **kwargs)

        return call

    def sent(*args, **kwargs):  # how shutil copies
        disk.check("write", "a copy")
        return real["sendfile"](*args, **kwargs)

    class Connection(sqlite3.Connection):
        def execute(self, sql, *args):
            disk.statement(sql)
            return super().execute(sql, *args)

    def connected(*args, **kwargs):
        made = real_connect(*args, **{**kwargs, "factory": Connection})
        made.execute("PRAGMA synchronous = OFF")  # hundreds of runs; no test here cuts the power
        return made

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(builtins, "open", opened))
        stack.enter_context(mock.patch.object(io, "open", opened))
        stack.enter_context(mock.patch("_io.open", opened))
        for name, kind in (("mkdir", "mkdir"), ("rename", "rename"), ("replace", "rename")):
            stack.enter_context(mock.patch.object(os, name, counted(name, kind)))
        stack.enter_context(mock.patch.object(os, "sendfile", sent))
        stack.enter_context(mock.patch.object(sqlite3, "connect", connected))
        yield disk


def below(folder):
    """The files that this process has open below a folder: what a fault has left open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith(str(folder)) and ".db" not in target:
                found.append(target)
    return found


def full_at(monkeypatch, ending):
    """A list; once it holds something, the file whose path has this ending is cut off by a full disk."""
    write, disk = Path.write_bytes, []

    def full(path, data):
        if disk and path.as_posix().endswith(ending):
            write(path, data[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    return disk
