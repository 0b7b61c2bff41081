"""Whose fault it is that a job's output cannot be stored: the job's, or this machine's."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from farm.base.errors import BuildFailedError, InfrastructureError


class RefusedOutputError(BuildFailedError):
    """A job left output that the farm does not take: names that point outside, links, devices, too much of it."""


class LocalDiskError(InfrastructureError):
    """This machine cannot store a job's output: no space, no file handles, a failing disk. The engine still has it."""


def check_name(name: str) -> None:
    """Refuse a file of a job's output whose name is more than a line of printable text: it is shown, and compared.

    Raises:
        RefusedOutputError: It holds a line break, terminal control or the like.
    """
    if not name.isprintable():
        raise RefusedOutputError(f"{name!r} of the job's output has a name that cannot be printed")


def too_large(name: str, size: int | None, limit: int) -> RefusedOutputError:
    """The error for output beyond the limit, with the file at which it was met."""
    what = "comes to more" if size is None else f"has {size / 1e9:.2f} GB"
    return RefusedOutputError(
        f"the job's output is larger than allowed: {name!r} {what}, and its runner may leave {limit / 1e9:.2f} GB",
        hint="disk_gb of the runner in ci/runners.yaml is the limit",
    )


_BY_THE_NAME = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""Errors that a file's name can cause; every other one is the disk's."""


@contextlib.contextmanager
def storing(name: str, path: Path) -> Iterator[None]:
    """Tells apart whose fault it is that a file of a job's output cannot be written.

    Raises:
        RefusedOutputError: Its name's: it stands twice, is too long, is below another file.
        LocalDiskError: This machine's.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _BY_THE_NAME:
            raise RefusedOutputError(f"{name!r} of the job's output: {reason}") from error
        raise LocalDiskError(
            f"{path}: the job's output cannot be written: {reason}",
            hint="free disk space on this machine; the output is kept, and the same command continues from there",
        ) from error
