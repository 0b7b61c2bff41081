"""What can go wrong with the content of a zip that somebody else made."""

from __future__ import annotations  # also for the Python 3.9 of a machine that is cut off

import zipfile
import zlib

try:
    from lzma import LZMAError
except ImportError:  # a Python without it cannot read such a member: RuntimeError
    LZMAError = RuntimeError  # type: ignore[misc,assignment]

DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    EOFError,
    NotImplementedError,  # a newer version of the format, or a method without a decoder
    RuntimeError,  # an encrypted member
    ValueError,  # a date or an offset that cannot be
)
"""What zipfile raises for an archive that it cannot read; errors of the disk are OSErrors."""
