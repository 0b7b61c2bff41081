"""An index as its users see it: over http(s), or from where it is stored. Reads only, bounded,
without credentials.

Also what it says about a wheel: why it is withdrawn, and what was tested of it
(`catalog.wheels.json`, which `farm site build` writes for programs such as `farm detect`).
"""

import contextlib
import hashlib
import http.client
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Protocol
from urllib.parse import quote

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from farm.base.errors import FarmError, InfrastructureError, UsageError
from farm.base.text import short
from farm.index import budget
from farm.index.layout import WheelName
from farm.index.pages import File
from farm.index.store_urls import open_store, parts_of
from farm.index.stores import CHUNK, MAX_GET, Store, check_key, data_of, object_sha256

TIMEOUT_S = 60
"""How long a server may say nothing."""
MAX_REDIRECTS = 5
ACCEPT_PIP = (
    "application/vnd.pypi.simple.v1+json, "
    "application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
)
"""As pip and uv ask for a page."""
ACCEPT_BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


class Reader(Protocol):
    """Objects of an index by their keys. A failure is an InfrastructureError, never an absent
    object.
    """

    def get(self, key: str) -> bytes | None:
        """A page or another small object; None if there is none."""

    def digest(self, key: str, size: int | None = None) -> str | None:
        """The sha256 of an object of any size; None if there is none.

        Args:
            key: Which object.
            size: Its bytes, if they are known: no more than one byte beyond is read.
        """

    def keys(self) -> list[str] | None:
        """All keys; None if they cannot be listed."""

    def url(self, key: str) -> str:
        """The address of an object."""


class Answer(NamedTuple):
    """What a server answered, after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def open_reader(url: str) -> Reader:
    """Open an index by the URL of its root.

    Args:
        url: http(s)://, or a store that `farm.index.store_urls.open_store` takes.
    """
    if parts_of(url).scheme in {"http", "https"}:
        return HttpReader(url)
    return _StoreReader(open_store(url))


class _StoreReader:
    def __init__(self, store: Store) -> None:
        self.store = store

    def get(self, key: str) -> bytes | None:
        return data_of(self.store.get(key))

    def digest(self, key: str, size: int | None = None) -> str | None:
        limit = None
        if size is not None:
            limit = size + 1
        return object_sha256(self.store, key, limit)

    def keys(self) -> list[str] | None:
        return list(self.store.list(""))

    def url(self, key: str) -> str:
        return self.store.url(key)


class HttpReader:
    """An index as a web server, CDN or bucket shows it."""

    def __init__(self, url: str) -> None:
        parts = parts_of(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                "not the URL of an index's root",
                hint="https://host/path, without user name, ? and #",
            )
        # Blanks and letters beyond ASCII are sent encoded; what is encoded already stays so.
        path = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        self.root = parts._replace(path=path).geturl().rstrip("/")

    def get(self, key: str) -> bytes | None:
        check_key(key)
        for place in _places(key):
            with _opened(self.url(place), {}) as response:
                if response is not None:
                    return b"".join(_content(response, MAX_GET))
        return None

    def digest(self, key: str, size: int | None = None) -> str | None:
        check_key(key)
        limit = MAX_GET
        if size is not None:
            limit = size + CHUNK
        digest = hashlib.sha256()
        done = 0
        with _opened(self.url(key), {}) as response:
            if response is None:
                return None
            for chunk in _content(response, limit):
                digest.update(chunk)
                done += len(chunk)
                if size is not None and done > size:
                    break
        return digest.hexdigest()

    def keys(self) -> list[str] | None:
        return None

    def url(self, key: str) -> str:
        return f"{self.root}/{quote(key)}"

    def ask(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        limit: int = MAX_GET,
        redirect: bool = True,
    ) -> Answer:
        """Ask for a path below the root as a client does.

        Args:
            path: As it is sent: nothing is encoded.
            headers: What else the client sends.
            limit: An answer with more bytes is an error.
            redirect: Follow redirects.

        Returns:
            The answer, whatever its status.
        """
        url = f"{self.root}/{path}"
        with _opened(url, headers or {}, strict=False, redirect=redirect) as response:
            assert response is not None
            data = b"".join(_content(response, limit))
            return Answer(response.url, response.status, response.headers, data)


def _places(key: str) -> list[str]:
    """Where a page may be: at its key, or at the folder in a bucket with `pages=slash`."""
    if key.endswith("/index.html"):
        return [key, key.removesuffix("index.html")]
    return [key]


class _HeaderDeadline:
    """Closes the connections of one request if its headers take too long, however they arrive."""

    def __init__(self) -> None:
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(budget.GRACE_S, self._end)
        self._timer.daemon = True

    def __enter__(self) -> "_HeaderDeadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connection: socket.socket) -> None:
        self._sockets.append(connection)
        if self.passed:
            self._end()

    def _end(self) -> None:
        self.passed = True
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MAX_REDIRECTS


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _opener(deadline: _HeaderDeadline, *, redirect: bool) -> urllib.request.OpenerDirector:
    """Opens http and https alone: a redirect leads to no file and no other protocol."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            deadline.watch(self.sock)

    class PlainHandler(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

    class SecureHandler(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, request)

    redirects: urllib.request.HTTPRedirectHandler = _NoRedirects()
    if redirect:
        redirects = _Redirects()
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        PlainHandler(),
        SecureHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        redirects,
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


@contextlib.contextmanager
def _opened(
    url: str, headers: Mapping[str, str], *, strict: bool = True, redirect: bool = True
) -> Iterator[Any]:
    """The response to a GET; None for 404.

    Args:
        url: The address.
        headers: Sent besides those that every request has.
        strict: Any status but 200 and 404 is an error; else every response is given.
        redirect: Follow redirects.
    """
    sent = {"Accept-Encoding": "identity", "Cache-Control": "no-cache", **headers}
    with _failures(url):
        request = urllib.request.Request(url, headers=sent)
        with _HeaderDeadline() as deadline:
            try:
                opened = _opener(deadline, redirect=redirect).open(request, timeout=TIMEOUT_S)
            except urllib.error.HTTPError as error:
                if strict and error.code != 404:
                    raise
                opened = error
            except (OSError, http.client.HTTPException):
                if not deadline.passed:
                    raise
            if deadline.passed:  # headers that were cut off may look whole
                raise OSError(f"no headers in {budget.GRACE_S} s")
        with contextlib.closing(opened) as response:
            if strict and response.status == 404:
                yield None
            else:
                yield response


def _content(response: Any, limit: int) -> Iterator[bytes]:
    """The bytes of a response; OSError if they are cut off, InfrastructureError over the limit."""
    length = response.headers.get("Content-Length", "")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise OSError(f"answered with Content-Encoding {encoding:.40}, which was not asked for")
    spent = budget.Budget(response.url, limit)
    # Not read(): it waits for all bytes, however slowly they come.
    while chunk := response.read1(CHUNK):
        spent.spend(len(chunk))
        yield chunk
    # http.client does not report this itself.
    if re.fullmatch(r"[0-9]{1,18}", length) and spent.spent < int(length):
        raise OSError(f"cut off after {spent.spent} of {length} bytes")


@contextlib.contextmanager
def _failures(url: str) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        reason = error.reason
        if 300 <= error.code < 400:
            reason = "redirects without end"  # urllib's own words have several lines
        hint = "run it again"
        if error.code in {401, 403}:
            hint = "it is read without credentials, and what is absent must be answered with 404"
        raise InfrastructureError(
            f"{url}: HTTP {error.code} {reason:.80}".rstrip(), hint=hint
        ) from error
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        why = str(getattr(error, "reason", error)) or type(error).__name__
        hint = "run it again"
        if "CERTIFICATE_VERIFY_FAILED" in why:
            hint = "a private authority's certificate is named by SSL_CERT_FILE"
        raise InfrastructureError(f"{url}: {why:.300}", hint=hint) from error


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
    wheels: dict[WheelName, Standing]


def render(wheels: Mapping[str, Standing]) -> bytes:
    """`catalog.wheels.json` of wheels by their file names."""
    document = _Document(wheels=dict(sorted(wheels.items())))
    return document.model_dump_json(by_alias=True, indent=1).encode()


def parse_standings(data: bytes) -> dict[str, Standing] | None:
    """The wheels of `catalog.wheels.json`; None if it is none."""
    try:
        return _Document.model_validate_json(data).wheels
    except ValidationError:
        return None


def standing(reader: Reader, filename: str) -> Standing | None:
    """The last built site's statement about a wheel; None where it has none."""
    try:
        data = reader.get(KEY)
    # What was tested is worth a word, but nobody's pip line depends on it.
    except FarmError:
        return None
    if data is None:
        return None
    standings = parse_standings(data)
    if standings is None:
        return None
    return standings.get(filename)


def withdrawn(file: File) -> str | None:
    """Why installers do not get a wheel: it was yanked. None: they do."""
    if file.yanked is False:
        return None
    if file.yanked is True or not file.yanked:
        return "yanked"
    return short(f"yanked: {file.yanked}")
