"""Another index as its servers really answer: gzip-encoded, cut off, without digests, with links relative to a base."""

import gzip
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.index import simple
from farm.index.pages import File, Hashes
from farm.index.reader import open_reader
from tests.servers.threads import answered_by

WHEEL = "canary-1.0+cu118-py3-none-any.whl"
DATA = b"the bytes of a wheel" * 100
SHA256 = hashlib.sha256(DATA).hexdigest()
PAGE = f'<a href="../files/canary-1.0%2Bcu118-py3-none-any.whl#sha256={SHA256}">{WHEEL}</a>'.encode()


@contextmanager
def answering(body, *, headers=None, path="/simple/canary/", missing=0, status_line=None):
    """The root of an index that answers `path` with `body`, `missing` bytes short of what it promises."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if status_line is not None:
                self.wfile.write(status_line)
                return
            self.send_response(200 if self.path == path else 404)
            self.send_header("Content-Length", str(len(body) + missing))
            for name, value in {"Content-Type": "text/html", **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with answered_by(Handler) as url:
        yield url


def names(root, project="canary"):
    return [file.filename for file in simple.project_files(f"{root}/simple", project)]


def test_a_gzip_encoded_page_is_read():
    with answering(gzip.compress(PAGE), headers={"Content-Encoding": "gzip"}) as root:
        assert names(root) == [WHEEL]


def test_a_page_that_is_cut_off_is_no_shorter_page():
    with answering(PAGE, missing=10) as root, pytest.raises(InfrastructureError, match="cut off after"):
        names(root)


@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b""])
def test_what_is_no_http_is_named(answer):
    with answering(b"", status_line=answer) as root, pytest.raises(InfrastructureError, match="/simple/canary/: "):
        names(root)


def test_a_project_is_asked_for_by_the_name_of_its_page():
    own = WHEEL.replace("canary", "my_ca_nary")
    with answering(PAGE.replace(b"canary-1.0", b"my_ca_nary-1.0"), path="/simple/my-ca-nary/") as root:
        assert names(root, "My.Ca__nary") == [own]
        with pytest.raises(UsageError, match="has no project"):
            names(root, "../simple/my-ca-nary")


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        ("application/vnd.pypi.simple.v1+json", b'{"meta": {"api-version": "2.0"}, "name": "canary", "files": []}'),
        ("application/vnd.pypi.simple.v1+json", b'{"meta": {"api-version": "?"}, "name": "canary", "files": []}'),
        ("text/html", b'<meta name="pypi:repository-version" content="2.0">' + PAGE),
    ],
)
def test_a_page_of_a_later_major_version_is_not_guessed_at(kind, page):
    """As PEP 629 and 691 demand: what it says may mean something else."""
    with (
        answering(page, headers={"Content-Type": kind}) as root,
        pytest.raises(InfrastructureError, match="version"),
    ):
        names(root)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "binary/octet-stream"])
def test_what_no_installer_takes_for_a_page_is_no_empty_one(kind):
    with (
        answering(b'{"meta": {"api-version": "1.0"}, "name": "canary"}', headers={"Content-Type": kind}) as root,
        pytest.raises(InfrastructureError, match=f"is of the type {kind}"),
    ):
        names(root)


def test_a_digest_may_have_capital_letters():
    with answering(PAGE.replace(SHA256.encode(), SHA256.upper().encode())) as root:
        [file] = simple.project_files(f"{root}/simple", "canary")
        assert file.hashes.sha256 == SHA256


@pytest.mark.parametrize("kind", ["text/html", "application/vnd.pypi.simple.v1+json"])
def test_a_wheel_of_another_project_on_a_page_is_passed_over_as_pip_does(kind):
    others = ["other-1.0-py3-none-any.whl", "canary_more-9.0-py3-none-any.whl", WHEEL.replace("canary", "Canary")]
    if kind == "text/html":
        body = b"".join(PAGE.replace(b"canary-1.0%2Bcu118-py3-none-any.whl", name.encode()) for name in others)
    else:
        files = [{"filename": name, "url": name, "hashes": {"sha256": SHA256}} for name in others]
        body = json.dumps({"meta": {"api-version": "1.0"}, "name": "other", "files": files}).encode()
    with answering(body, headers={"Content-Type": kind}) as root:
        assert names(root) == [WHEEL.replace("canary", "Canary")]


def test_a_page_of_a_later_minor_version_is_read():
    with answering(b'<meta name="pypi:repository-version" content="1.99">' + PAGE) as root:
        assert names(root) == [WHEEL]


def test_blanks_and_letters_beyond_ascii_in_the_path_are_encoded():
    with answering(PAGE.replace(b"../files/", "../grüne files/".encode()), path="/%C3%BC%20x/simple/canary/") as root:
        [file] = simple.project_files(f"{root}/ü x/simple", "canary")
        assert file.url == f"{root}/%C3%BC%20x/simple/gr%C3%BCne%20files/canary-1.0%2Bcu118-py3-none-any.whl"
        assert names(f"{root}/%C3%BC%20x") == [WHEEL]
    with answering(b"{}", path="/%C3%BC%20x/catalog.json") as root:
        assert open_reader(f"{root}/ü x/").get("catalog.json") == b"{}"


def test_a_base_is_what_links_are_relative_to():
    with answering(b'<base href="/elsewhere/deep/"><base href="/wrong/">' + PAGE) as root:
        [file] = simple.project_files(f"{root}/simple", "canary")
        assert file.url == f"{root}/elsewhere/files/canary-1.0%2Bcu118-py3-none-any.whl"
    with answering(b'<base href="file:///etc/deep/">' + PAGE) as root:
        assert names(root) == [], "a page from elsewhere says nothing about files of this machine"


def test_what_follows_a_question_mark_is_not_in_the_file_name():
    with answering(PAGE.replace(b".whl#", b".whl?token=a/b#")) as root:
        [file] = simple.project_files(f"{root}/simple", "canary")
        assert (file.filename, file.url.endswith(".whl?token=a/b")) == (WHEEL, True)


def entry(root, **more):
    return File(filename=WHEEL, url=f"{root}/{WHEEL}", hashes=Hashes(sha256=SHA256), **more)


def test_a_wheel_that_is_cut_off_is_not_another_wheel():
    cut = pytest.raises(InfrastructureError, match="cut off after 50 of 100 bytes")
    with answering(DATA[:50], path=f"/{WHEEL}", missing=50) as root, cut:
        simple.metadata_of(entry(root))


def test_a_password_in_the_url_is_not_shown():
    with pytest.raises(UsageError) as caught:
        simple.check_source("https://user:secret@wheels.example.org/simple")
    assert "secret" not in str(caught.value)
