"""What a server answers to a request: its bytes without their content encoding, and never fewer than it promised."""

import urllib.request
import zlib
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from urllib.parse import quote, urlsplit

from farm.errors import InfrastructureError
from farm.index.stores import CHUNK


def as_sent(url: str) -> str:
    """A URL as a request needs it: its path may hold blanks and letters beyond ASCII, as installers allow."""
    parts = urlsplit(url)
    # What is encoded already stays so.
    return parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl()


def pieces(url: str, answer: "urllib.request._UrlopenRet") -> Iterator[bytes]:
    """The bytes of an answer, piece by piece; it is closed at their end.

    Raises:
        InfrastructureError: It was cut off, or is encoded in another way than it says.
    """
    return _plain(url, answer.headers.get("Content-Encoding"), _read(url, answer))


def bounded(chunks: Iterable[bytes], limit: int) -> bytes:
    """All bytes, or the first that are more than `limit`."""
    read, size = [], 0
    for chunk in chunks:
        read.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(read)


def _read(url: str, answer: "urllib.request._UrlopenRet") -> Iterator[bytes]:
    length, read = answer.headers.get("Content-Length", ""), 0
    with answer:
        try:
            while chunk := answer.read(CHUNK):
                read += len(chunk)
                yield chunk
        except (OSError, ValueError, HTTPException) as error:
            raise InfrastructureError(f"{url}: {error}") from error
    if length.isdigit() and read < int(length):  # http.client does not report this itself
        raise InfrastructureError(f"{url}: cut off after {read} of {length} bytes", hint="run it again")


def _plain(url: str, encoding: str | None, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The bytes without their content encoding, in pieces of at most `CHUNK`, whatever they expand to."""
    match (encoding or "identity").strip().lower():
        case "identity":
            return chunks
        case "gzip" | "x-gzip":
            return _gunzipped(url, chunks)
        case other:
            raise InfrastructureError(f"{url} is encoded as {other:.40}, and only gzip was asked for")


def _gunzipped(url: str, chunks: Iterator[bytes]) -> Iterator[bytes]:
    decoder = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            left = chunk
            while left:
                if decoder.eof:  # a gzip file may have several members
                    decoder = zlib.decompressobj(wbits=31)
                if data := decoder.decompress(left, CHUNK):
                    yield data
                # At most CHUNK at a time, since a few bytes may expand to gigabytes: the rest of the input comes again.
                left = decoder.unconsumed_tail or decoder.unused_data
    except zlib.error as error:
        raise InfrastructureError(f"{url} is declared as gzip-encoded but is not: {error}") from error
    if not decoder.eof:
        raise InfrastructureError(f"{url} is cut off", hint="run it again")
