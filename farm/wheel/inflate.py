"""Unpacking deflated members, and CRCs: by zlib, or by the packages `zlib-ng` and `isal` (an extra) in half the time.

All three read deflate (RFC 1951), but not the same of what is none: of 450,000 damaged streams isal took 784 that zlib
refuses (codes that are not complete), and never the other way round. Installers use zlib. So what vouches for a
wheel uses zlib or zlib-ng, a fork of zlib with the same checks (Python for Windows is built with it from 3.14 on;
the tests compare the two on damaged streams); isal serves to look for what a library needs.
"""

import zlib
from importlib import import_module
from typing import Any


def _first(*names: str) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return zlib


_strict = _first("zlib_ng.zlib_ng")
_fast = _first("isal.isal_zlib", "zlib_ng.zlib_ng")

InflateErrors: tuple[type[Exception], ...] = (zlib.error, _strict.error, _fast.error)
"""What an inflater raises for bytes that are no deflate stream."""

crc32 = _fast.crc32


def inflater(dictionary: bytes = b"", *, lenient: bool) -> Any:
    """A decompressor of raw deflate with the interface of `zlib.decompressobj`; `dictionary` precedes the stream.

    `lenient`: by isal, if it is there.
    """
    module = _fast if lenient else _strict
    if dictionary:
        return module.decompressobj(-zlib.MAX_WBITS, zdict=dictionary)
    return module.decompressobj(-zlib.MAX_WBITS)
