"""Unpacking deflated members, and CRCs: by the package `isal` (an extra) in half the time, else by zlib.

Both read plain deflate (RFC 1951); what one refuses, the other may word differently.
"""

import zlib
from importlib import import_module
from typing import Any

_fast: Any
try:
    _fast = import_module("isal.isal_zlib")
except ImportError:
    _fast = zlib

InflateErrors: tuple[type[Exception], ...] = (zlib.error, _fast.error)
"""What an inflater raises for bytes that are no deflate stream."""

crc32 = _fast.crc32


def inflater(dictionary: bytes = b"") -> Any:
    """A decompressor of raw deflate with the interface of `zlib.decompressobj`; `dictionary` precedes the stream."""
    if dictionary:
        return _fast.decompressobj(-zlib.MAX_WBITS, zdict=dictionary)
    return _fast.decompressobj(-zlib.MAX_WBITS)
