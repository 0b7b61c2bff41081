"""`farm index check --public`: what clients of the address get, against the store."""

import json
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.index.changes import record_event
from farm.index.public import check_public
from farm.index.reader import open_reader
from farm.index.store_urls import open_store
from tests.indexes.recorder import FIRST, GROUP, OTHER
from tests.servers.static import Handler as StaticHandler
from tests.servers.threads import answered_by

FOLDER = f"whl/{GROUP}/simple/canary/"


class Sound(StaticHandler):
    """A server that does all that docs/servers do, for a folder."""

    root = ""
    cache = "no-cache"
    origin = "*"

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=self.root, requests=[])

    def end_headers(self):
        if self.origin:
            self.send_header("Access-Control-Allow-Origin", self.origin)
        if self.cache and "/files/" not in self.path:
            self.send_header("Cache-Control", self.cache)
        super().end_headers()

    def do_GET(self):
        wants_range = self.headers.get("Range") == "bytes=0-0" and "/files/" in self.path
        path = Path(self.translate_path(self.path))
        if not wants_range or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        self.send_response(206)
        self.send_header("Content-Range", f"bytes 0-0/{len(data)}")
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(data[:1])


@pytest.fixture
def index(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    put(store, make_wheel(OTHER))
    return store


def problems(store, **attributes):
    handler = type("Server", (Sound,), {"root": str(store.root), **attributes})
    with answered_by(handler) as url:
        return check_public(store, open_reader(url), wheels=True)


def answering(end, answer):
    """A server that answers paths with this end in its own way."""

    def do_GET(self):
        if self.path.endswith(end):
            answer(self)
        else:
            Sound.do_GET(self)

    return {"do_GET": do_GET}


def reply(status, body=b"", **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_a_sound_server_has_no_problem(index):
    assert problems(index) == []


def test_an_old_page_is_named_to_be_purged(index):
    old = index.get(f"{FOLDER}index.html").data
    record_event(index, [FIRST], "yank", "slow")
    stale = problems(index, **answering(FOLDER, reply(200, old, Content_Type="text/html")))
    assert {(each.key, each.broken) for each in stale} == {(FOLDER, True)}
    assert "purge it" in stale[0].what


def test_a_host_that_drops_a_wheel_is_named(index):
    dropped = problems(index, **answering(FIRST.replace("+", "%2B"), reply(404)))
    assert [(each.what, each.broken) for each in dropped] == [("HTTP 404", True)]


def test_a_host_that_refuses_a_plus_is_named(index):
    refused = problems(index, **answering(FIRST, reply(404)))
    assert [each.key for each in refused] == [f"whl/files/{FIRST}"]


def test_a_host_that_answers_403_for_what_is_absent_is_named(index):
    forbidden = problems(index, **answering("no-such-project-of-the-farm/", reply(403)))
    assert [each.broken for each in forbidden] == [True]
    assert "uv stops unless it is 404" in forbidden[0].what


def test_a_page_of_a_wrong_type_is_named(index):
    page = index.get(f"{FOLDER}index.html").data
    wrong = problems(index, **answering(FOLDER, reply(200, page, Content_Type="text/plain")))
    assert all(each.broken and "has the type 'text/plain'" in each.what for each in wrong)
    assert len(wrong) == 2


def test_pages_that_caches_keep_are_named(index):
    kept = problems(index, cache="public, max-age=3600")
    assert kept
    assert all("is kept for 3600 s" in each.what and not each.broken for each in kept)


def test_answers_that_no_browser_may_read_are_named(index):
    closed = problems(index, origin="")
    assert closed
    assert all("Access-Control-Allow-Origin" in each.what for each in closed)
    assert any("(HTTP 404)" in each.what for each in closed)


def test_json_without_vary_is_named(index):
    page = index.get(f"{FOLDER}index.html").data
    document = index.get(f"whl/{GROUP}/v1-json/canary/index.json").data
    json_type = "application/vnd.pypi.simple.v1+json"

    def negotiate(handler):
        if json_type in handler.headers.get("Accept", ""):
            reply(200, document, Content_Type=json_type)(handler)
        else:
            reply(200, page, Content_Type="text/html")(handler)

    [problem] = problems(index, **answering(FOLDER, negotiate))
    assert "without Vary: Accept" in problem.what


def test_other_bytes_are_named(index):
    path = index.root / f"whl/files/{FIRST}"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    [problem] = problems(index)
    assert problem.what == "has other bytes than its page says"


def test_the_command(index, capsys):
    handler = type("Server", (Sound,), {"root": str(index.root)})
    command = ["index", "check", "--index", str(index.root), "--json", "--public"]
    with answered_by(handler) as url:
        assert main([*command, url]) == 0
        assert json.loads(capsys.readouterr().out) == []
        (index.root / f"whl/files/{FIRST}").unlink()
        assert main([*command, url]) == 6
    assert main([*command, str(index.root)]) == 2
