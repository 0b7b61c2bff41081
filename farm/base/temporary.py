"""Temporary folders that go away whenever Ctrl-C comes, and after SIGKILL with the next run."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import ParamSpec

from farm.base import processes
from farm.base.locks import lock

P = ParamSpec("P")
ENDING = ".farm-tmp"
"""How the names of these folders end: what is removed of a process that was killed."""
YOUNG_S = 60.0
"""A folder that is younger may have an owner that has not locked it yet."""


@contextlib.contextmanager
def temporary_folder(prefix: str = "farm-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent` (None: the system's for temporary files) that is removed at the
    end.

    `tempfile.TemporaryDirectory` keeps it where Ctrl-C comes while it is removed, and on Windows
    tries without end where a hung process holds it; here that one stays. What processes left that
    were killed is removed first.
    """
    remove_abandoned(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=ENDING, dir=parent))
    with _locked(folder):
        try:
            yield folder
        finally:
            finish_removal(processes.remove, folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which the kernel drops with this process."""
    if sys.platform == "win32":  # it locks no folders
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the folder then stays
            lock(descriptor, wait=False)
        yield
    finally:
        os.close(descriptor)


@cache  # once in a process
def remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders below `parent` whose process was killed.

    Those of other users stay, and those on file systems that have no locks.
    """
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.endswith(ENDING) and entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < YOUNG_S:
            return
        lock(descriptor, wait=False)  # BlockingIOError: its process lives
        processes.remove(folder)
    finally:
        os.close(descriptor)


def finish_removal(removal: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Removes something, also where Ctrl-C comes meanwhile: then `removal` is begun again."""
    try:
        removal(*args, **kwargs)
    except KeyboardInterrupt:
        removal(*args, **kwargs)
        raise
