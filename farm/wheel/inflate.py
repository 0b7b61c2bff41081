"""Unpacking deflated members, and CRCs: by zlib, or by the package `isal` (an extra) in half the time.

Both read deflate (RFC 1951), but not the same of what is none: of 450,000 damaged streams isal took 784 that zlib
refuses (codes that are not complete), and never the other way round. Installers use zlib. So what vouches for a
wheel does too; isal serves to look for what a library needs.
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


def inflater(dictionary: bytes = b"", *, lenient: bool) -> Any:
    """A decompressor of raw deflate with the interface of `zlib.decompressobj`; `dictionary` precedes the stream.

    `lenient`: by isal, if it is there.
    """
    module = _fast if lenient else zlib
    if dictionary:
        return module.decompressobj(-zlib.MAX_WBITS, zdict=dictionary)
    return module.decompressobj(-zlib.MAX_WBITS)
