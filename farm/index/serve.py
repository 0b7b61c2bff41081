"""A small static server of a directory index, on the loopback: what a web server or bucket does for real users.

Folders are answered with their page, pages with the media type that clients ask for; ranges, gzip for pages, 304 and
404 as clients expect them. Not meant for a public network.
"""

import gzip
import os
import re
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote, urlsplit

from farm.base.errors import UsageError
from farm.index import pages
from farm.index.stores import CHUNK, check_key

HOST = "127.0.0.1"
GZIP_FROM = 1400
"""Bytes: less fits into one packet anyway."""

UPLOAD = "no uploads are taken here: farm publish WHEEL puts a wheel into the index (farm publish --help)"

_TYPES = {".html": pages.HTML, ".json": "application/json", ".metadata": "text/plain; charset=utf-8"}


def server(root: Path, port: int = 0, *, quiet: bool = False) -> ThreadingHTTPServer:
    """A server of the index in `root`, bound and not yet running; port 0 takes a free one.

    Raises:
        UsageError: `root` is not a directory, or the port is taken.
    """
    if not root.is_dir():
        raise UsageError(f"no index at {root}: not a directory", hint="publish a wheel first, or name the directory")

    # http.server makes a handler for each request: what all of them need are attributes of its class.
    class Handler(_Handler):
        index = root.resolve()
        silent = quiet

    try:
        return _Server((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise UsageError(f"port {port} of {HOST} cannot be used: {error}", hint="choose another, or 0") from error


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A traceback for what nobody expected; a client that went away is nothing to report."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def media_type(key: str) -> str:
    """The `Content-Type` of an object, by its key."""
    if "/v1-json/" in key and key.endswith(".json"):
        return pages.JSON
    return _TYPES.get(Path(key).suffix, "application/octet-stream")


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a Range header asks for; None for all of it, as for anything but one plain range.

    Raises:
        ValueError: It begins behind the end.
    """
    found = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header or "")
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        first, last = max(0, size - int(found[2])), size - 1
    else:
        first, last = int(found[1]), min(int(found[2] or size - 1), size - 1)
    if first >= size or first > last:
        raise ValueError(header)
    return first, last


class _Handler(BaseHTTPRequestHandler):
    index: Path
    silent: bool
    protocol_version = "HTTP/1.1"
    server_version = "farm"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_POST(self) -> None:
        """Refuses what `twine upload` and others send, and says what to do instead."""
        self.close_connection = True
        # 405, since twine sends the wheel five times if it gets 5xx; and of an answer it prints the phrase alone.
        headers = {"Allow": "GET, HEAD", "Connection": "close"}
        self._plain(HTTPStatus.METHOD_NOT_ALLOWED, f"{UPLOAD}\n".encode(), headers, phrase=UPLOAD, body=True)
        # To its end: a connection that is closed before is reset, and then many clients never see the answer.
        self.connection.shutdown(socket.SHUT_WR)
        while self.rfile.read1(CHUNK):
            pass

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as the base class has it
        if not self.silent:
            super().log_message(format, *args)

    def _answer(self, *, body: bool) -> None:
        key = self._key()
        if key is None or not self._is_there(key):
            if key is not None and self._is_there(f"{key}/index.html"):
                # As web servers do; relative, since the address by which a proxy is reached is not known here.
                name = quote(key.rpartition("/")[2])
                self._plain(HTTPStatus.MOVED_PERMANENTLY, b"", {"Location": f"{name}/"}, body=body)
            else:
                self._plain(HTTPStatus.NOT_FOUND, b"not found\n", body=body)
            return
        try:
            with (self.index / key).open("rb") as file:
                self._file(key, file, body=body)
        except OSError:
            # The head may have been sent: all that is left is to break off.
            self.close_connection = True

    def _is_there(self, key: str) -> bool:
        path = self.index / key
        # Resolved: a link in the folder must not lead out of it.
        return path.is_file() and path.resolve().is_relative_to(self.index)

    def _key(self) -> str | None:
        """The object that the path stands for; None for none."""
        path = unquote(urlsplit(self.path).path).removeprefix("/")
        if path.endswith("/") or not path:
            path += "index.json" if "/v1-json/" in path else "index.html"
        try:
            return check_key(path)
        except UsageError:
            return None

    def _file(self, key: str, file: BinaryIO, *, body: bool) -> None:
        size = file.seek(0, 2)
        file.seek(0)
        stat = os.fstat(file.fileno())  # of what is open: a page may be replaced at any moment, and within one tick
        tag = f'"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{size:x}"'
        kind = media_type(key)
        headers = {"Content-Type": kind, "ETag": tag, "Accept-Ranges": "bytes", "Vary": "Accept-Encoding"}
        page = kind != "application/octet-stream"
        headers["Cache-Control"] = "no-cache" if page else "max-age=31536000, immutable"
        if (self.headers.get("If-None-Match") or "").removeprefix("W/") == tag:
            self._head(HTTPStatus.NOT_MODIFIED, headers)
            return
        wanted = self.headers.get("Range") if self.headers.get("If-Range", tag) == tag else None
        try:
            part = byte_range(wanted, size)
        except ValueError:
            self._plain(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, b"", {"Content-Range": f"bytes */{size}"}, body=body
            )
            return
        # A range counts plain bytes: where one is asked for, nothing is compressed.
        if part is None and page and size >= GZIP_FROM and "gzip" in (self.headers.get("Accept-Encoding") or ""):
            data = gzip.compress(file.read(), 6, mtime=0)
            # Weak: the plain page has the same tag, and other bytes.
            packed = {"ETag": f"W/{tag}", "Content-Encoding": "gzip", "Content-Length": str(len(data))}
            self._head(HTTPStatus.OK, headers | packed)
            if body:
                self.wfile.write(data)
            return
        first, last = part or (0, size - 1)
        headers["Content-Length"] = str(last - first + 1)
        if part:
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        self._head(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, headers)
        if body:
            file.seek(first)
            left = last - first + 1
            while left and (chunk := file.read(min(CHUNK, left))):
                self.wfile.write(chunk)
                left -= len(chunk)

    def _plain(
        self,
        status: HTTPStatus,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        phrase: str | None = None,
        body: bool,
    ) -> None:
        self._head(status, {"Content-Type": "text/plain", "Content-Length": str(len(data)), **(headers or {})}, phrase)
        if body:
            self.wfile.write(data)

    def _head(self, status: HTTPStatus, headers: dict[str, str], phrase: str | None = None) -> None:
        self.send_response(status, phrase)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
