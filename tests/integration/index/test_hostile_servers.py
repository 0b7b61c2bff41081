"""Foreign servers that answer without end, too slowly, cut off or wrongly: one clear error each."""

import shutil
import threading

import pytest
from tuf.api.metadata import Metadata

from farm.base.errors import InfrastructureError, VerificationFailedError
from farm.cli.main import main
from farm.index import budget, s3
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.reader import open_reader
from farm.index.signatures import set_keys, sign, verify_index
from farm.index.store_urls import open_store
from tests.indexes.keys import write_key
from tests.indexes.recorder import FIRST, GROUP
from tests.servers.static import Handler as StaticHandler
from tests.servers.threads import Handler, answered_by

CHUNK = bytes(64 * 1024)


@pytest.fixture
def signed(tmp_path, make_wheel, put):
    """A signed index of one wheel: its store, its root and the key that signs."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    signer = write_key(tmp_path / "farm.key")
    _number, root = set_keys(store, signer, [signer.public_key])
    sign(store, signer)
    return store, root, signer


def serving(store, answers):
    """A web server of the index; `answers` maps the end of a path to a function of the handler."""

    class Server(StaticHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(store.root), requests=[])

        def do_GET(self):
            for end, answer in answers.items():
                if self.path.split("?")[0].endswith(end):
                    answer(self)
                    return
            super().do_GET()

    return answered_by(Server)


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    try:
        while True:
            handler.wfile.write(CHUNK)
    except OSError:
        handler.server.ended = True


def dripping(handler):
    """A byte at a time, until the client has enough."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    try:
        while True:
            handler.wfile.write(b" ")
            threading.Event().wait(0.01)
    except OSError:
        pass


def dripping_headers(handler):
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            handler.wfile.write(b" ")
            threading.Event().wait(0.01)
    except OSError:
        handler.close_connection = True


def compressed(handler):
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", "5")
    handler.end_headers()
    handler.wfile.write(b"bytes")


def status(code, **headers):
    def answer(handler):
        handler.send_response(code)
        for name, value in {"Content-Length": "0", **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def test_an_endless_wheel_is_read_to_its_signed_length(signed):
    """8.9 GB were read in 40 s, and it went on."""
    store, root, _signer = signed
    with serving(store, {FIRST.replace("+", "%2B"): endless}) as url:
        problems = verify_index(open_reader(url), root, wheels=True).problems
    assert problems == (f"whl/files/{FIRST}: has other bytes than signed",)


@pytest.mark.parametrize("answer", [dripping, dripping_headers])
def test_a_slow_answer_ends(signed, monkeypatch, answer):
    monkeypatch.setattr(budget, "GRACE_S", 0.3)
    store, root, _signer = signed
    with (
        serving(store, {"catalog.json": answer}) as url,
        pytest.raises(InfrastructureError, match=r"catalog\.json: (too slow|no headers)"),
    ):
        verify_index(open_reader(url), root)


def test_an_answer_that_is_compressed_unasked_is_named(signed):
    store, root, _signer = signed
    with (
        serving(store, {"catalog.json": compressed}) as url,
        pytest.raises(InfrastructureError, match=r"catalog\.json: .*Content-Encoding gzip"),
    ):
        verify_index(open_reader(url), root)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (status(302, Location="/tuf/2.root.json"), "HTTP 302 redirects without end"),
        (status(302, Location="file:///etc/passwd"), "HTTP 302"),
        (status(302, Location="ftp://127.0.0.1/x"), "unknown url type: ftp|HTTP 302"),
        (status(500), "HTTP 500"),
        (status(200, **{"Content-Length": "99"}), "cut off after 0 of 99 bytes"),
    ],
    ids=["circle", "file", "ftp", "500", "cut off"],
)
def test_a_failure_below_tuf_names_its_address_and_cause(signed, answer, why):
    """It said "Failed to download index:tuf/2.root.json" and "run it again"."""
    store, root, _signer = signed
    with (
        serving(store, {"tuf/2.root.json": answer}) as url,
        pytest.raises(InfrastructureError, match=why) as caught,
    ):
        verify_index(open_reader(url), root)
    assert f"{url}/tuf/2.root.json" in str(caught.value)


# --- what installers ask for ---

FOLDER = f"/whl/{GROUP}/simple/canary/"


def test_a_folder_that_shows_a_yanked_wheel_again_is_named(signed, tmp_path):
    """A cache kept the page at its folder: verify said "all as signed", pip took the wheel."""
    store, root, signer = signed
    old = shutil.copytree(store.root, tmp_path / "old")
    record_event(store, [FIRST], "yank", "crashes")
    sign(store, signer)

    def stale(handler):
        data = (old / FOLDER.lstrip("/") / "index.html").read_bytes()
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    with serving(store, {}) as url:
        assert verify_index(open_reader(url), root, wheels=True).problems == ()
    with serving(store, {FOLDER: stale}) as url:
        problems = verify_index(open_reader(url), root, wheels=True).problems
    assert len(problems) == 2
    assert problems[0].startswith(f"{FOLDER[1:]}, as pip asks for it: not as it was signed")


@pytest.mark.parametrize("answer", [status(500), status(404)])
def test_a_folder_that_fails_is_named(signed, answer):
    store, root, _signer = signed
    with serving(store, {FOLDER: answer}) as url:
        problems = verify_index(open_reader(url), root).problems
    assert len(problems) == 2
    assert "as pip asks for it: HTTP " in problems[0]


def test_what_verify_says_names_the_file_and_the_address(signed, tmp_path, capsys, monkeypatch):
    store, root, _signer = signed
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "root.json").write_bytes(root)
    forged = Metadata.from_bytes(store.get("tuf/timestamp.json").data)
    forged.signed.version += 1
    path = store.root / "tuf/timestamp.json"
    path.write_bytes(forged.to_bytes())
    with serving(store, {}) as url:
        assert main(["index", "verify", url, "--root", str(tmp_path / "root.json")]) == 6
    error = capsys.readouterr().err
    assert f"{url}/tuf/timestamp.json" in error
    assert "no signatures that lead back" in error


def test_a_root_that_the_root_key_did_not_sign_is_refused_by_sign_and_named_by_check(
    signed, tmp_path
):
    """A thief with write access put it there; `sign` said "signed", and no user could verify."""
    store, root, signer = signed
    thief = write_key(tmp_path / "thief.key")
    forged = Metadata.from_bytes(root)
    forged.signed.version = 2
    forged.signatures.clear()
    forged.sign(thief)
    store.create("tuf/2.root.json", forged.to_bytes(), content_type="application/json")
    before = store.get("tuf/timestamp.json").data
    with pytest.raises(VerificationFailedError, match=r"tuf/2\.root\.json is not signed by the ro"):
        sign(store, signer)
    assert store.get("tuf/timestamp.json").data == before
    [problem] = check(store)
    assert problem.broken
    assert "2.root.json is not signed by the root key" in problem.what


# --- S3 ---

LISTING = (
    b'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    b"<Contents><Key>records/x.json</Key></Contents></ListBucketResult>"
)


@pytest.fixture
def hostile(aws, monkeypatch):
    """`hostile(get, head)` is a context with a store on a server that answers with these."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _seconds: None)

    def serve(get, head=None):
        class Server(Handler):
            def do_GET(self):
                get(self)

            def do_HEAD(self):
                (head or get)(self)

        return answered_by(Server)

    return serve


def store_at(url):
    return open_store(f"s3://wheels?endpoint_url={url}")


def listing(handler):
    handler.reply(200, LISTING, {"Content-Type": "application/xml"})


def endless_listing(handler):
    handler.send_response(200)
    handler.send_header("Content-Type", "application/xml")
    handler.end_headers()
    handler.close_connection = True
    try:
        handler.wfile.write(LISTING.partition(b"</ListBucketResult>")[0])
        while True:
            handler.wfile.write(b"<Contents><Key>records/x.json</Key></Contents>" * 1000)
    except OSError:
        pass


def test_a_listing_without_end_is_refused(hostile, monkeypatch):
    """It took 16 GB in 70 s."""
    monkeypatch.setattr(s3, "MAX_GET", 4 << 20)
    with hostile(endless_listing) as url, pytest.raises(InfrastructureError, match="is over"):
        list(store_at(url).list(""))


def test_a_continuation_token_that_repeats_ends_the_listing(hostile):
    with hostile(listing) as url, pytest.raises(InfrastructureError, match="does not end"):
        list(store_at(url).list(""))


def test_an_object_without_a_length_is_read_whole(hostile):
    """It was a KeyError and exit 1."""

    def whole(handler):
        handler.send_response(200)
        handler.send_header("ETag", '"1"')
        handler.end_headers()
        handler.wfile.write(b"page")
        handler.close_connection = True

    with hostile(whole) as url:
        assert store_at(url).get("catalog.json").data == b"page"
        with pytest.raises(InfrastructureError, match="Content-Length"):
            store_at(url).stat("catalog.json")


@pytest.mark.parametrize("length", ["abc", "-1", "1e3"])
def test_a_length_that_is_no_number_is_refused(hostile, length):
    def wrong(handler):
        handler.reply(200, b"page", {"ETag": '"1"', "Content-Length": length})

    with hostile(wrong) as url:
        for ask in (store_at(url).get, store_at(url).stat):
            with pytest.raises(InfrastructureError, match="no S3 store answers there"):
                ask("catalog.json")


def test_an_endless_object_is_refused(hostile, monkeypatch):
    monkeypatch.setattr(s3, "MAX_GET", 4 << 20)

    def forever(handler):
        handler.send_response(200)
        handler.send_header("ETag", '"1"')
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(CHUNK)
        except OSError:
            pass

    with hostile(forever) as url, pytest.raises(InfrastructureError, match="is over"):
        store_at(url).get("catalog.json")


def test_a_store_that_sends_a_byte_at_a_time_is_refused(hostile, monkeypatch):
    monkeypatch.setattr(budget, "GRACE_S", 0.3)
    monkeypatch.setattr("farm.index.s3.TRIES", 1)

    def slow(handler):
        handler.send_response(200)
        handler.send_header("ETag", '"1"')
        handler.end_headers()
        handler.close_connection = True
        try:
            while True:
                handler.wfile.write(b" ")
                threading.Event().wait(0.01)
        except OSError:
            pass

    with hostile(slow) as url, pytest.raises(InfrastructureError, match="too slow"):
        store_at(url).get("catalog.json")


def test_a_range_that_is_ignored_is_named(hostile):
    def head(handler):
        handler.reply(200, b"", {"ETag": '"1"', "Content-Length": "10"})

    def get(handler):
        handler.reply(200, b"more than ten bytes", {"ETag": '"1"'})

    with hostile(get, head) as url, pytest.raises(InfrastructureError, match="instead of 10"):
        b"".join(store_at(url).chunks("whl/files/x.whl"))
