"""What answers over HTTP, for another index and for a reader of ours alike: refused, cut off, read on."""

import gzip
import hashlib
import re
import ssl
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.index import answers
from farm.index.pages import File, Hashes
from farm.index.reader import open_reader
from farm.index.signing import load_public, new_key
from farm.index.simple import check_source, download
from farm.index.verify import verify_index
from tests.servers.threads import answered_by
from tests.servers.tls import Authority

WHEEL = "canary-1.0+cu118-py3-none-any.whl"
DATA = bytes(range(256)) * 10
SHA256 = hashlib.sha256(DATA).hexdigest()
ETAG = '"one"'


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)


@contextmanager
def cutting(at, *, tag=ETAG, ranges=True, later=None, body=DATA, headers=(), failing=0):
    """A server that ends each answer after `at` bytes, and what was asked of it. `later`: the tag from then on."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.headers["Range"], self.headers["If-Range"]))
            if 1 < len(asked) <= 1 + failing:
                self.send_error(503)
                return
            found = re.fullmatch("bytes=([0-9]+)-", self.headers["Range"] or "") if ranges else None
            first = int(found[1]) if found else 0
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
            self.send_header("Content-Length", str(len(body) - first))
            self.send_header("ETag", tag if len(asked) == 1 or later is None else later)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[first : first + at])

        def log_message(self, *_):
            pass

    with answered_by(Handler) as url:
        yield url, asked


def read_by_both(root, folder):
    """The bytes of a wheel as `farm index adopt` and `farm index verify` read them."""
    download(File(filename=WHEEL, url=f"{root}/{WHEEL}", hashes=Hashes(sha256=SHA256)), folder / WHEEL)
    assert (folder / WHEEL).read_bytes() == DATA
    assert open_reader(root).digest(f"whl/files/{WHEEL}") == SHA256


def test_what_is_cut_off_is_read_on(tmp_path):
    with cutting(1000) as (root, asked):
        read_by_both(root, tmp_path)
    assert asked == [(None, None), ("bytes=1000-", ETAG), ("bytes=2000-", ETAG)] * 2


def test_a_server_that_is_busy_meanwhile_is_asked_again(tmp_path):
    with cutting(2000, failing=2) as (root, asked):
        download(File(filename=WHEEL, url=f"{root}/{WHEEL}", hashes=Hashes(sha256=SHA256)), tmp_path / WHEEL)
    assert len(asked) == 4


def test_a_page_that_is_stored_encoded_is_read_on():
    packed = gzip.compress(DATA, mtime=0)
    with cutting(100, body=packed, headers=[("Content-Encoding", "gzip")]) as (root, asked):
        assert open_reader(root).get("catalog.json") == DATA
    assert len(asked) == -(-len(packed) // 100)


@pytest.mark.parametrize(
    ("how", "requests"),
    [
        ({"tag": 'W/"one"'}, 1),
        ({"ranges": False}, 2),
        ({"later": '"two"'}, 2),
        ({"at": 1}, answers.TRIES),
    ],
    ids=["weak", "whole", "other", "endless"],
)
def test_what_cannot_be_read_on_is_an_error(tmp_path, how, requests):
    with cutting(**{"at": 1000, **how}) as (root, asked):
        for read in (lambda: read_by_both(root, tmp_path), lambda: open_reader(root).digest(f"whl/files/{WHEEL}")):
            asked.clear()
            with pytest.raises(InfrastructureError, match=f"cut off after [0-9]+ of {len(DATA)} bytes"):
                read()
            assert len(asked) == requests


def test_a_page_is_not_read_on_in_another_encoding():
    """Some servers give the plain and the encoded page one tag, and count a range in the plain one."""
    packed = gzip.compress(DATA, mtime=0)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            whole = self.headers["Range"] is None
            body = packed if whole else DATA[100:]
            self.send_response(200 if whole else 206)
            named = {"Content-Encoding": "gzip"} if whole else {"Content-Range": f"bytes 100-{len(DATA) - 1}/*"}
            for name, value in {"ETag": ETAG, "Content-Length": str(len(body)), **named}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body[:100] if whole else body)

        def log_message(self, *_):
            pass

    with answered_by(Handler) as root, pytest.raises(InfrastructureError, match="cut off after 100 of"):
        open_reader(root).get("catalog.json")


def test_a_refusal_is_said_alike(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    with answered_by(Handler) as root:
        for read in (lambda: read_by_both(root, tmp_path), lambda: open_reader(root).get("catalog.json")):
            with pytest.raises(InfrastructureError, match=r": HTTP 403 Forbidden$") as caught:
                read()
            assert "404" in caught.value.hint


def test_a_certificate_that_nobody_knows_is_said_with_what_names_it(tmp_path, monkeypatch):
    """A company's own authority, for one: it said to run it again."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server("127.0.0.1"))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with answered_by(Handler, context) as root:
        for read in (lambda: read_by_both(root, tmp_path), lambda: open_reader(root).get("catalog.json")):
            with pytest.raises(InfrastructureError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                read()
            assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert open_reader(root).get("catalog.json") is None


def test_the_address_of_a_groups_root_is_not_the_indexs(tmp_path):
    """What users know of an index is what they gave to pip."""
    public = load_public(new_key(tmp_path / "farm.key"))
    with pytest.raises(VerificationFailedError, match="not signed, or not an index") as caught:
        verify_index(open_reader(str(tmp_path)), {public.keyid: public}, state=tmp_path / "seen")
    assert "without /whl/<group>/simple/" in caught.value.hint


def test_a_redirect_without_end_is_said_in_one_line(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()

        def log_message(self, *_):
            pass

    with answered_by(Handler) as root:
        for read in (lambda: read_by_both(root, tmp_path), lambda: open_reader(root).get("catalog.json")):
            with pytest.raises(InfrastructureError, match=r": HTTP 302 redirects without end$"):
                read()


@pytest.mark.parametrize("url", ["http://[x", "http://me:secret@[x/simple"])
def test_a_host_that_is_none_is_a_mistake_in_the_command(url):
    for read in (open_reader, check_source):
        with pytest.raises(UsageError) as caught:
            read(url)
        assert "secret" not in f"{caught.value} {caught.value.hint}"
