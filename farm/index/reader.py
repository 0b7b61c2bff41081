"""An index as its users see it: over http(s), or from where it is stored. Reads only, bounded,
without credentials.

Also what it says about a wheel: why it is withdrawn, and what was tested of it
(`catalog.wheels.json`, which `farm site build` writes for programs such as `farm detect`).
"""

import contextlib
import hashlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPResponse
from typing import Annotated, Protocol, cast
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from farm.base.errors import FarmError, InfrastructureError, UsageError
from farm.base.text import short
from farm.index.backends import open_store, parts_of
from farm.index.pages import File
from farm.index.stores import CHUNK, MAX_GET, Store, check_key

TIMEOUT_S = 60


class Reader(Protocol):
    """Objects of an index by their keys. A failure is an InfrastructureError, never an absent
    object.
    """

    def get(self, key: str) -> bytes | None:
        """A page or another small object; None where there is none."""

    def digest(self, key: str) -> str | None:
        """The sha256 of an object of any size; None where there is none."""

    def keys(self) -> list[str] | None:
        """All keys; None where nobody can say."""


def open_reader(url: str) -> Reader:
    """Opens an index by the URL of its root: http(s)://, or whatever
    `farm.index.backends.open_store` takes.
    """
    if parts_of(url).scheme in {"http", "https"}:
        return _Http(url)
    return _Stored(open_store(url))


class _Stored:
    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, key: str) -> bytes | None:
        found = self.store.get(key)
        return None if found is None else found.data

    def digest(self, key: str) -> str | None:
        if self.store.stat(key) is None:
            return None
        return _digest(self.store.chunks(key))

    def keys(self) -> list[str] | None:
        return list(self.store.list(""))


class _Http:
    def __init__(self, url: str) -> None:
        parts = parts_of(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                "not the URL of an index's root",
                hint="https://host/path, without user name, ? and #",
            )
        # Blanks and letters beyond ASCII are sent encoded; what is encoded already stays so.
        self.root = (
            parts._replace(path=quote(parts.path, safe="/%:@!$&'()*+,;=~")).geturl().rstrip("/")
        )

    def get(self, key: str) -> bytes | None:
        chunks = self._chunks(key)
        if chunks is None:
            return None
        data = bytearray()
        for chunk in chunks:
            data += chunk
            if len(data) > MAX_GET:
                raise InfrastructureError(f"{self.root}/{key} is over {MAX_GET} bytes: no page")
        return bytes(data)

    def digest(self, key: str) -> str | None:
        chunks = self._chunks(key)
        return None if chunks is None else _digest(chunks)

    def keys(self) -> list[str] | None:
        return None

    def _chunks(self, key: str) -> Iterator[bytes] | None:
        """The object's bytes; None for 404. Where pages lie at keys that end in a slash, they are
        found there.
        """
        check_key(key)
        # A web server answers the folder with its index.html; a bucket with `pages=slash` has the
        # page at that key.
        if key.endswith("/index.html"):
            places = [key, key.removesuffix("index.html")]
        else:
            places = [key]
        for place in places:
            if (answer := _ask(f"{self.root}/{quote(place)}")) is not None:
                return _content(answer)
        return None


def _ask(url: str) -> HTTPResponse | None:
    headers = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}
    with _failures(url):
        try:
            request = urllib.request.Request(url, headers=headers)
            return cast("HTTPResponse", urllib.request.urlopen(request, timeout=TIMEOUT_S))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                error.close()
                return None
            raise


def _content(answer: HTTPResponse) -> Iterator[bytes]:
    """The bytes of an answer; an InfrastructureError where they are cut off."""
    length = answer.headers.get("Content-Length", "")
    done = 0
    with answer, _failures(answer.url):
        while chunk := answer.read(CHUNK):
            done += len(chunk)
            yield chunk
        if length.isdigit() and done < int(length):  # http.client does not report this itself
            raise OSError(f"cut off after {done} of {length} bytes")


@contextlib.contextmanager
def _failures(url: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        # What urllib says of redirects without end has several lines.
        if 300 <= error.code < 400:
            reason = "redirects without end"
        else:
            reason = error.reason
        hint = "it is read without credentials, and what is absent must be answered with 404"
        raise InfrastructureError(
            f"{url}: HTTP {error.code} {reason:.80}".rstrip(),
            hint=hint if error.code in {401, 403} else "run it again",
        ) from error
    except (OSError, ValueError, HTTPException) as error:  # URLError is an OSError
        why = str(getattr(error, "reason", error))
        untrusted = "CERTIFICATE_VERIFY_FAILED" in why
        if untrusted:
            hint = "a private authority's certificate is named by SSL_CERT_FILE"
        else:
            hint = "run it again"
        raise InfrastructureError(f"{url}: {why}", hint=hint) from error


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


KEY = "catalog.wheels.json"
WITHDRAWN = "built, and withdrawn from the index"

Text = Annotated[str, AfterValidator(short)]


class Test(BaseModel):
    """One smoke test: on which CPU and card, when, and how each part ended."""

    model_config = ConfigDict(frozen=True)

    where: Text
    date: Text
    outcome: Text


class Standing(BaseModel):
    """The site's word on a published wheel (`published, CPU part tested; GPU part not run`), and
    its smoke tests.
    """

    model_config = ConfigDict(frozen=True)

    state: Text
    tests: tuple[Test, ...] = ()


class _Document(BaseModel):
    schema_version: int = Field(default=1, alias="schema")
    wheels: dict[str, Standing]


def render(wheels: Mapping[str, Standing]) -> bytes:
    """`catalog.wheels.json` of wheels by their file names."""
    return (
        _Document(wheels=dict(sorted(wheels.items())))
        .model_dump_json(by_alias=True, indent=1)
        .encode()
    )


def standing(reader: Reader, filename: str) -> Standing | None:
    """The last built site's statement about a wheel; None where it has none."""
    try:
        data = reader.get(KEY)
        if data is None:
            return None
        return _Document.model_validate_json(data).wheels.get(filename)
    # What was tested is worth a word, but nobody's pip line depends on it.
    except (FarmError, ValidationError):
        return None


def withdrawn(file: File) -> str | None:
    """Why installers do not get a wheel: it was yanked. None: they do."""
    if file.yanked is False:
        return None
    return short(
        f"yanked: {file.yanked}" if isinstance(file.yanked, str) and file.yanked else "yanked"
    )
