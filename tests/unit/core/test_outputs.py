"""Errors of writing name the file; what goes wrong meanwhile with something else keeps its own
words.
"""

import errno
import os
from pathlib import Path

import pytest

from farm.base import outputs
from farm.base.errors import InfrastructureError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_an_error_of_the_disk_names_what_is_written(number: int) -> None:
    path = Path("some/file")
    with (
        pytest.raises(InfrastructureError, match=f"^{path}: {os.strerror(number)}$"),
        outputs.writing(path),
    ):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "another"),
        OSError(errno.ENOSPC, "No space left on device", "another"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_blamed_on_the_file(error: OSError) -> None:
    with pytest.raises(type(error)) as raised, outputs.writing(Path("some/file")):
        raise error
    assert raised.value is error
