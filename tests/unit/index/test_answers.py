"""What answers over HTTP, for another index and for a reader of ours alike: refused, or cut off."""

import ssl
from http.server import BaseHTTPRequestHandler

import pytest

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.index.backends import open_store
from farm.index.keys import load_signer, new_key, start
from farm.index.reader import open_reader
from farm.index.simple import check_source
from farm.index.verify import verify_index
from tests.servers.threads import answered_by
from tests.servers.tls import Authority

WHEEL = "canary-1.0+cu118-py3-none-any.whl"
DATA = bytes(range(256)) * 10


def test_what_is_cut_off_is_an_error():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA[:100])

        def log_message(self, *_):
            pass

    with answered_by(Handler) as root, pytest.raises(InfrastructureError, match="cut off after 100 of 2560 bytes"):
        open_reader(root).digest(f"whl/files/{WHEEL}")


def test_a_refusal_is_said_alike(tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(403)

        def log_message(self, *_):
            pass

    with answered_by(Handler) as root:
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match=r": HTTP 403 Forbidden$") as caught:
                read("catalog.json")
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
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                read("catalog.json")
            assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert open_reader(root).get("catalog.json") is None


def test_the_address_of_a_groups_root_is_not_the_indexs(tmp_path):
    """What users know of an index is what they gave to pip."""
    new_key(tmp_path / "farm.key")
    signer = load_signer(tmp_path / "farm.key")
    root = start(open_store(str(tmp_path / "other")), signer, [signer.public_key])
    with pytest.raises(VerificationFailedError, match="not signed, or not an index") as caught:
        verify_index(open_reader(str(tmp_path)), root, state=tmp_path / "seen")
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
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match=r": HTTP 302 redirects without end$"):
                read("catalog.json")


@pytest.mark.parametrize("url", ["http://[x", "http://me:secret@[x/simple"])
def test_a_host_that_is_none_is_a_mistake_in_the_command(url):
    for read in (open_reader, check_source):
        with pytest.raises(UsageError) as caught:
            read(url)
        assert "secret" not in f"{caught.value} {caught.value.hint}"
