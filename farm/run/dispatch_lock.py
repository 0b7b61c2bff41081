"""One dispatcher at a time works on a journal."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from farm.base.errors import FarmError
from farm.base.locks import lock


class AlreadyDispatchingError(FarmError):
    """Another dispatcher works on this journal."""


@contextlib.contextmanager
def exclusive(folder: Path, patience_s: float) -> Iterator[None]:
    """Holds the dispatcher's lock in `folder`; the kernel lets go of it when the process ends, however it ends.

    Raises:
        AlreadyDispatchingError: Another one holds it, for longer than `patience_s`.
    """
    # "a": the file is only locked, never written, and must not be cut by whoever comes second.
    with (folder / "dispatch.lock").open("ab") as file:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                lock(file.fileno(), wait=False)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AlreadyDispatchingError("another dispatcher is at work here") from None
                time.sleep(0.2)
        yield
