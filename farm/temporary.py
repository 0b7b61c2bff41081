"""Temporary folders that go away whenever Ctrl-C comes."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, ParamSpec

from farm import outputs, processes

ROOM = "make room there, or set TMPDIR"

P = ParamSpec("P")


@contextlib.contextmanager
def temporary_folder(prefix: str = "farm-", parent: Path | None = None) -> Iterator[Path]:
    """A new folder below `parent` (None: the system's for temporary files) that is removed at the end.

    `tempfile.TemporaryDirectory` keeps a folder where Ctrl-C comes while it removes it, and on Windows its 3.11 tries
    without end to remove one that a hung process holds; here that one stays.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        to_its_end(processes.remove, folder)


@contextlib.contextmanager
def temporary_file() -> Iterator[IO[bytes]]:
    """A new file without a name, in the system's folder for temporary files; an error of writing it names the folder.

    Raises:
        InfrastructureError: It cannot be written.
    """
    folder = Path(tempfile.gettempdir())
    with outputs.writing(folder, ROOM), tempfile.TemporaryFile(dir=folder) as file:
        yield file


def to_its_end(removal: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Removes something, also where Ctrl-C comes meanwhile: then `removal` is begun again."""
    try:
        removal(*args, **kwargs)
    except KeyboardInterrupt:
        removal(*args, **kwargs)
        raise
