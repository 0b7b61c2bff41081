"""An index over HTTP: an object whole, or a failure that says what is wrong."""

import hashlib
import ssl

import pytest

from farm.base.errors import InfrastructureError, UsageError, VerificationFailedError
from farm.index import reader as module
from farm.index.reader import open_reader
from farm.index.signatures import set_keys, verify_index
from farm.index.store_urls import open_store
from tests.indexes.keys import write_key
from tests.servers.threads import Handler, answered_by
from tests.servers.tls import Authority

PAGE = b"<!DOCTYPE html>" + b"page " * 1000


class Answers(Handler):
    """Sends what a test put into `answer`: headers and a body."""

    answer: tuple[dict[str, str], bytes]
    encodings: list[str | None]

    def do_GET(self):
        self.encodings.append(self.headers.get("Accept-Encoding"))
        headers, body = self.answer
        self.reply(200, body, headers)


@pytest.fixture
def answering():
    """`answering(headers, body)` gives a reader of a server that answers everything with these."""
    handler = type("Handler", (Answers,), {"encodings": []})
    with answered_by(handler) as url:

        def answering(headers, body):
            handler.answer = (headers, body)
            return open_reader(url)

        yield answering
    assert set(handler.encodings) <= {"identity"}


def test_objects_are_requested_without_transformation(answering):
    read = answering({}, PAGE)
    assert read.get("catalog.json") == PAGE
    assert read.digest("whl/files/x.whl") == hashlib.sha256(PAGE).hexdigest()


@pytest.mark.parametrize(
    ("headers", "body", "message"),
    [
        ({"Content-Length": "99999"}, PAGE, "cut off after"),
        ({"Transfer-Encoding": "chunked"}, b"ffff\r\nshort", "IncompleteRead|cut off|timed out"),
    ],
)
def test_a_damaged_answer_is_a_failure_of_the_server_and_no_other_object(
    answering, headers, body, message
):
    with pytest.raises(InfrastructureError, match=message):
        answering(headers, body).get("catalog.json")


def test_an_answer_without_end_is_refused(answering, monkeypatch):
    monkeypatch.setattr(module, "MAX_GET", 1_000_000)
    read = answering({}, bytes(5_000_000))
    with pytest.raises(InfrastructureError, match="over 1000000 bytes"):
        read.get("catalog.json")


def test_get_and_digest_report_a_refusal_alike(tmp_path):
    class Forbidden(Handler):
        def do_GET(self):
            self.reply(403)

    with answered_by(Forbidden) as root:
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match=r": HTTP 403 Forbidden$") as caught:
                read("catalog.json")
            assert "404" in caught.value.hint


def test_an_unknown_certificate_is_reported_with_the_setting_that_trusts_it(tmp_path, monkeypatch):
    """A company's own authority, for one: it said to run it again."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server("127.0.0.1"))

    class Absent(Handler):
        def do_GET(self):
            self.reply(404)

    with answered_by(Absent, context) as root:
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match="CERTIFICATE_VERIFY_FAILED") as caught:
                read("catalog.json")
            assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert open_reader(root).get("catalog.json") is None


def test_the_address_of_a_groups_root_is_not_the_indexs(tmp_path):
    """What users know of an index is what they gave to pip."""
    signer = write_key(tmp_path / "farm.key")
    _, root = set_keys(open_store(str(tmp_path / "other")), signer, [signer.public_key])
    with pytest.raises(VerificationFailedError, match="not signed, or not an index") as caught:
        verify_index(open_reader(str(tmp_path)), root, state=tmp_path / "seen")
    assert "without /whl/<group>/simple/" in caught.value.hint


def test_a_redirect_without_end_is_said_in_one_line(tmp_path):
    class Circle(Handler):
        def do_GET(self):
            self.reply(302, headers={"Location": self.path})

    with answered_by(Circle) as root:
        for read in (open_reader(root).get, open_reader(root).digest):
            with pytest.raises(InfrastructureError, match=r": HTTP 302 redirects without end$"):
                read("catalog.json")


@pytest.mark.parametrize("url", ["http://[x", "http://me:secret@[x/simple"])
def test_an_invalid_host_name_is_a_usage_error(url):
    with pytest.raises(UsageError) as caught:
        open_reader(url)
    assert "secret" not in f"{caught.value} {caught.value.hint}"
