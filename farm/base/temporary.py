"""Temporary folders that go away whenever Ctrl-C comes."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

from farm.base import processes

P = ParamSpec("P")


@contextlib.contextmanager
def temporary_folder(prefix: str = "farm-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent` (None: the system's for temporary files) that is removed at the
    end.

    `tempfile.TemporaryDirectory` keeps it where Ctrl-C comes while it is removed, and on Windows
    tries without end where a hung process holds it; here that one stays.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        finish_removal(processes.remove, folder)


def finish_removal(removal: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Removes something, also where Ctrl-C comes meanwhile: then `removal` is begun again."""
    try:
        removal(*args, **kwargs)
    except KeyboardInterrupt:
        removal(*args, **kwargs)
        raise
