"""A disk that fails where a test says so. A real full disk:
tests/e2e/dispatch/test_full_disk.py.
"""

import errno
import os
from pathlib import Path


def full_at(monkeypatch, ending):
    """A list; once it holds something, the file whose path has this ending is cut off by a full
    disk.
    """
    write, disk = Path.write_bytes, []

    def full(path, data):
        if disk and path.as_posix().endswith(ending):
            write(path, data[:1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    return disk
