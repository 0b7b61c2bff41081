"""The static server, asked directly."""

import gzip
import http.client
import os
import socket
import struct
import threading
from pathlib import Path
from urllib.parse import urljoin

import pytest

from farm.base.errors import UsageError
from farm.index.backends import open_store
from farm.index.serve import server
from tests.indexes.fixtures import build_wheel, publish_wheel


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    root = folder / "index"
    store = open_store(str(root))
    for number in range(12):
        publish_wheel(store, build_wheel(folder, f"canary-{number}-py3-none-any.whl"))
    (folder / "secret").write_text("secret")
    (root / "whl/out").symlink_to(folder / "secret")
    with server(root, quiet=True) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()

        def ask(path, method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", serving.server_port, timeout=120)
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            return answer.status, dict(answer.getheaders()), data

        ask.root, ask.port = root, serving.server_port
        yield ask
        serving.shutdown()
        thread.join()


PAGE = "/whl/sm35-avx/simple/canary/"
FILE = "/whl/files/canary-0-py3-none-any.whl"


def test_folders_are_answered_with_their_page(ask):
    page = (ask.root / "whl/sm35-avx/simple/canary/index.html").read_bytes()
    for path in (PAGE, f"{PAGE}index.html"):
        status, headers, data = ask(path)
        assert (status, data, headers["Content-Type"]) == (200, page, "text/html; charset=utf-8")
    status, headers, _data = ask("/whl/sm35-avx/v1-json/canary/")
    assert (status, headers["Content-Type"]) == (200, "application/vnd.pypi.simple.v1+json")


def test_a_folder_without_a_slash_leads_to_the_one_with_it(ask):
    """As with Apache and nginx: links in the page are relative, and would lead beside it."""
    for path in (PAGE, "/whl/sm35-avx/simple/"):
        status, headers, data = ask(path.rstrip("/"))
        assert (status, data) == (301, b"")
        assert urljoin(f"http://host{path.rstrip('/')}", headers["Location"]) == f"http://host{path}"
        assert ask(path)[0] == 200
    assert ask("/whl/files")[0] == 404  # it has no page


def test_pages_are_compressed_for_those_who_take_it_and_wheels_never(ask):
    _status, plain, data = ask(PAGE)
    _status, packed, small = ask(PAGE, Accept_Encoding="gzip")
    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(small) == data
    digests = 12 * 2 * 32  # bytes of sha256, of wheels and of metadata, which do not compress
    assert len(small) < digests + len(data) / 4
    assert "Content-Encoding" not in plain
    assert "Content-Encoding" not in ask(FILE, Accept_Encoding="gzip")[1]


def test_ranges_and_conditions_and_heads(ask):
    whole = (ask.root / FILE[1:]).read_bytes()
    status, headers, data = ask(FILE, Range="bytes=2-5")
    assert (status, data, headers["Content-Range"]) == (206, whole[2:6], f"bytes 2-5/{len(whole)}")
    status, headers, data = ask(FILE, Range=f"bytes={len(whole)}-")
    assert (status, data, headers["Content-Range"]) == (416, b"", f"bytes */{len(whole)}")
    status, headers, data = ask(FILE, method="HEAD")
    assert (status, data, headers["Content-Length"]) == (200, b"", str(len(whole)))
    tag = headers["ETag"]
    assert ask(FILE, If_None_Match=tag)[0] == 304
    assert ask(FILE, Range="bytes=2-5", If_Range=tag)[0] == 206
    assert ask(FILE, Range="bytes=2-5", If_Range='"of what was here before"')[::2] == (200, whole)


def test_an_encoded_page_has_a_tag_of_its_own(ask):
    """Who was cut off in it must not go on in the plain one."""
    tags = {ask(PAGE, Accept_Encoding=encoding)[1]["ETag"] for encoding in ("gzip", "identity")}
    assert len(tags) == 2
    assert {ask(PAGE, Accept_Encoding="gzip", If_None_Match=tag)[0] for tag in tags} == {304}


def test_a_page_that_is_replaced_while_it_is_sent_has_its_own_tag(ask, monkeypatch):
    """Else a client would keep the old bytes under the tag of the new ones. Both have one size and one time."""
    path, opened = ask.root / "whl/sm35-avx/simple/other.json", Path.open
    path.write_text("[1]")
    before = path.stat()
    new = path.with_suffix(".new")
    new.write_text("[2]")
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))

    def replaced(place, *args, **kwargs):
        file = opened(place, *args, **kwargs)
        if place == path and new.exists():
            new.replace(path)
        return file

    monkeypatch.setattr(Path, "open", replaced)
    first, second = (ask("/whl/sm35-avx/simple/other.json") for _ in range(2))
    assert (first[2], second[2]) == (b"[1]", b"[2]")
    assert first[1]["ETag"] != second[1]["ETag"]
    path.unlink()


@pytest.mark.parametrize(
    "path",
    [
        "/none",
        "/whl/../../secret",
        "/whl/%2e%2e/%2e%2e/secret",
        "/.lock",
        "/whl/out",
        "//etc/passwd",
        "/%00",
    ],
)
def test_nothing_else_is_served(ask, path):
    status, _headers, data = ask(path)
    assert (status, data) == (404, b"not found\n")


def test_other_methods_are_refused(ask):
    assert ask(PAGE, method="DELETE")[0] == 501


@pytest.mark.parametrize("size", [1, 20_000_000])
def test_an_upload_is_told_what_to_do_instead(ask, size):
    """A client that sends all of a large wheel before it reads must get the answer too, not a connection reset."""
    body = iter([b"x" * size])
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=120)
    connection.request("POST", PAGE, body=body, headers={"Content-Length": str(size)})
    answer = connection.getresponse()
    # The phrase as well: twine prints nothing else, and after 5xx it sends the wheel five times.
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert "farm publish" in answer.reason
    assert answer.read().decode() == f"{answer.reason}\n"
    connection.close()


def test_no_directory_and_no_port(tmp_path, ask):
    with pytest.raises(UsageError, match="not a directory"):
        server(tmp_path / "none")
    with server(tmp_path) as first, pytest.raises(UsageError, match="cannot be used"):
        server(tmp_path, first.server_port)


def test_a_client_that_goes_away_is_not_reported(tmp_path, capsys):
    handled = threading.Event()
    with server(tmp_path) as serving:
        done = serving.shutdown_request
        serving.shutdown_request = lambda request: (done(request), handled.set())  # type: ignore[method-assign]
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        client = socket.create_connection(("127.0.0.1", serving.server_port), timeout=120)
        client.send(b"GET ")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets the connection
        client.close()
        assert handled.wait(30)
        serving.shutdown()
        thread.join()
    assert capsys.readouterr().err == ""
