"""Answers of servers: their bytes without content encoding, and never fewer than promised."""

import contextlib
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from farm.base.errors import InfrastructureError, UsageError
from farm.index.stores import CHUNK

TIMEOUT_S = 60

TRIES = 8

_T = TypeVar("_T")


class Answer(NamedTuple):
    """Where something was found, which may be behind a redirect; its media type; and its bytes, piece by piece.

    The bytes end with an InfrastructureError where the answer was cut off, or is encoded in another way than it says.
    """

    url: str
    kind: str
    chunks: Iterator[bytes]


def parts_of(url: str) -> SplitResult:
    """The parts of a URL that somebody wrote; UsageError if its host is none."""
    try:
        return urlsplit(url)
    except ValueError as error:
        # Not quoted, since it may hold a password.
        raise UsageError(
            "not a URL: its host cannot be read", hint="brackets are for an IPv6 address: http://[::1]:8080/"
        ) from error


def as_sent(url: str) -> str:
    """A URL as a request needs it: its path may hold blanks and letters beyond ASCII, as installers allow."""
    parts = urlsplit(url)
    # What is encoded already stays so.
    return parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl()


def again(once: Callable[[], _T], may_pass: Callable[[BaseException], bool]) -> _T:
    """Calls until it works or fails for good, at most `TRIES` times; the last error as it was raised."""
    return Retrying(
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        retry=retry_if_exception(may_pass),
        reraise=True,
    )(once)


def ask(url: str, headers: Mapping[str, str] | None = None, hint: str = "run it again") -> Answer | None:
    """The content at a URL; None where nothing is.

    Raises:
        InfrastructureError: Nobody answers, or with something else than 200 and 404.
    """
    with _failures(url, hint):
        try:
            answer = _opened(url, headers or {})
        except (OSError, ValueError) as error:
            if getattr(error, "code", None) == 404 or isinstance(getattr(error, "reason", None), FileNotFoundError):
                return None
            raise
    found = answer.headers
    chunks = _plain(url, found.get("Content-Encoding"), _read(url, answer))
    return Answer(answer.url, found.get_content_type(), chunks)


def bounded(chunks: Iterable[bytes], limit: int) -> bytes:
    """All bytes, or the first that are more than `limit`."""
    read, size = [], 0
    for chunk in chunks:
        read.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(read)


def unpacked(key: str, data: bytes, limit: int) -> bytes:
    """Content without its gzip encoding, up to `limit` bytes and one piece more; anything else as it is."""
    try:
        return bounded(_gunzipped(key, iter([data])), limit)
    except InfrastructureError:
        return data


def _opened(url: str, headers: Mapping[str, str]) -> "urllib.request._UrlopenRet":
    found: urllib.request._UrlopenRet = urllib.request.urlopen(
        urllib.request.Request(url, headers=dict(headers)), timeout=TIMEOUT_S
    )
    return found


@contextlib.contextmanager
def _failures(url: str, hint: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in {401, 403}:
            hint = "it is read without credentials, and what is absent must be answered with 404"
        # What urllib says of these has several lines.
        reason = "redirects without end" if 300 <= error.code < 400 else error.reason
        raise InfrastructureError(f"{url}: HTTP {error.code} {reason:.80}".rstrip(), hint=hint) from error
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        said = str(getattr(error, "reason", error))
        if "CERTIFICATE_VERIFY_FAILED" in said:
            hint = "a private authority's certificate is named by SSL_CERT_FILE"
        raise InfrastructureError(f"{url}: {said}", hint=hint) from error


def _read(url: str, answer: "urllib.request._UrlopenRet") -> Iterator[bytes]:
    """The bytes as they come; an InfrastructureError where they are cut off."""
    length, done = answer.headers.get("Content-Length", ""), 0
    with answer, _failures(url, "run it again"):
        while chunk := answer.read(CHUNK):
            done += len(chunk)
            yield chunk
    if length.isdigit() and done < int(length):  # http.client does not report this itself
        raise InfrastructureError(f"{url}: cut off after {done} of {length} bytes", hint="run it again")


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
