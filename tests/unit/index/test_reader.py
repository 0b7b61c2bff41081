"""An index over HTTP: whatever servers and proxies do to the encoding, the reader sees the object's own bytes."""

import gzip
import hashlib
import http.server

import pytest

from farm.base.errors import InfrastructureError
from farm.index import reader as module
from farm.index.reader import open_reader
from tests.servers.threads import answered_by

PAGE = b"<!DOCTYPE html>" + b"page " * 1000
PACKED = gzip.compress(PAGE, mtime=0)


class Answers(http.server.BaseHTTPRequestHandler):
    """Sends what a test put into `answer`: headers and a body."""

    answer: tuple[dict[str, str], bytes]
    asked: list[str | None]

    def do_GET(self):
        self.asked.append(self.headers.get("Accept-Encoding"))
        headers, body = self.answer
        self.send_response(200)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def answering():
    """`answering(headers, body)` gives a reader of a server that answers everything with these."""
    handler = type("Handler", (Answers,), {"asked": []})
    with answered_by(handler) as url:

        def answering(headers, body):
            handler.answer = (headers, body)
            return open_reader(url)

        yield answering
    assert set(handler.asked) <= {"gzip"}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, PAGE),
        ({"Content-Encoding": "identity"}, PAGE),
        ({"Content-Encoding": "gzip"}, PACKED),
        ({"Content-Encoding": "GZIP"}, PACKED),
        ({"Content-Encoding": "x-gzip"}, PACKED),
        ({"Content-Encoding": "gzip"}, gzip.compress(PAGE[:10], mtime=0) + gzip.compress(PAGE[10:], mtime=0)),
    ],
)
def test_an_object_is_what_it_is_without_its_encoding(answering, headers, body):
    read = answering(headers, body)
    assert read.get("catalog.json") == PAGE
    assert read.digest("whl/files/x.whl") == hashlib.sha256(PAGE).hexdigest()


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        ({"Content-Encoding": "gzip"}, PAGE, "but is not"),
        ({"Content-Encoding": "gzip"}, gzip.compress(PACKED, mtime=0), "is still gzip-encoded"),
        ({}, PACKED, "is still gzip-encoded"),
        ({"Content-Encoding": "gzip, gzip"}, gzip.compress(PACKED, mtime=0), "only gzip was asked for"),
        ({"Content-Encoding": "gzip"}, PACKED[:-9], "cut off"),
        ({"Content-Encoding": "br"}, PAGE, "encoded as br"),
        ({"Content-Length": "99999"}, PAGE, "cut off after"),
        ({"Transfer-Encoding": "chunked"}, b"ffff\r\nshort", "IncompleteRead|cut off|timed out"),
    ],
)
def test_a_damaged_answer_is_a_failure_of_the_server_and_no_other_object(answering, headers, body, told):
    with pytest.raises(InfrastructureError, match=told):
        answering(headers, body).get("catalog.json")


def test_an_answer_that_expands_without_end_is_refused(answering, monkeypatch):
    monkeypatch.setattr(module, "MAX_GET", 1_000_000)
    read = answering({"Content-Encoding": "gzip"}, gzip.compress(bytes(50_000_000)))
    with pytest.raises(InfrastructureError, match="over 1000000 bytes"):
        read.get("catalog.json")
