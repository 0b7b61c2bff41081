"""The sha256 of a file: by it wheels, sources and the objects of an index are told apart."""

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal.

    Raises:
        OSError: It cannot be read.
    """
    return sha256_and_size(path)[0]


def sha256_and_size(path: Path) -> tuple[str, int]:
    """The sha256 of a file, in hexadecimal, and how many bytes it was taken of.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
