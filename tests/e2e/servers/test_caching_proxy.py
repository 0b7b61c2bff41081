"""An index behind a cache that keeps pages in spite of `no-cache`: what a stranger is told who never saw the index."""

import contextlib
import re
import threading
import urllib.request

import pytest
from farm.index.serve import server

from farm.index.backends import open_store
from farm.index.keys import load_public, load_signer, new_key
from farm.index.reader import open_reader
from farm.index.verify import verify_index
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers import web
from tests.servers.process import MissingError

PROJECT = ("whl/sm35-avx/simple/canary/index.html", "whl/sm35-avx/v1-json/canary/index.json")

CACHE = """
proxy_cache_path {folder}/cache keys_zone=pages:1m;
server {{
    listen 80;
    location / {{
        proxy_pass {origin};
        proxy_cache pages;
        proxy_cache_valid 200 1h;
        proxy_ignore_headers Cache-Control Expires Vary;
    }}
}}
"""


@pytest.fixture
def index(tmp_path):
    """A signed index of one wheel, and how to publish the next."""
    public = load_public(new_key(tmp_path / "farm.key"))
    signer, store = load_signer(tmp_path / "farm.key"), open_store(str(tmp_path / "index"))

    def publish(version):
        wheel = build_wheel(tmp_path / "made", f"canary-{version}-py3-none-any.whl")
        publish_wheel(store, wheel, signer=signer, provenance={"slsa": {}})

    publish("1.0")
    return publish, {public.keyid: public}


@pytest.fixture
def urls(tmp_path, index, require):
    """The index as its owner's server shows it, and through the cache."""
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(server(tmp_path / "index", quiet=True))
        thread = threading.Thread(target=serving.serve_forever, args=(0.02,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(serving.shutdown)
        origin = f"http://127.0.0.1:{serving.server_port}"
        (tmp_path / "cache.conf").write_text(CACHE.format(folder=tmp_path, origin=origin))
        try:
            yield origin, stack.enter_context(web.nginx(tmp_path / "nginx", str(tmp_path / "cache.conf")))
        except MissingError as error:
            require("a caching proxy", error)


def read(url, *keys):
    for key in keys:
        with urllib.request.urlopen(f"{url}/{key}", timeout=120) as answer:
            answer.read()


@pytest.mark.parametrize("cached", [*PROJECT, "catalog.json"])
def test_an_old_page_with_a_new_signature_is_named_as_old(urls, index, cached):
    (origin, cache), (publish, trusted) = urls, index
    read(cache, cached)
    publish("2.0")
    if cached == "catalog.json":  # which a wheel of a known project does not change
        done = verify_index(open_reader(cache), trusted)
        assert (done.problems, done.wheels) == ((), 2)
        return
    [told] = verify_index(open_reader(cache), trusted).problems
    assert told.startswith(f"{cached}: older than its signature")
    assert "cache" in told
    assert verify_index(open_reader(origin), trusted).problems == ()


def test_an_old_signature_over_new_pages_is_named_too(urls, index):
    (_origin, cache), (publish, trusted) = urls, index
    read(cache, "whl/sm35-avx/links.html")
    publish("2.0")
    told = verify_index(open_reader(cache), trusted).problems
    assert {line.partition(":")[0] for line in told} == {*PROJECT}
    assert all("newer than its signature" in line for line in told), told


def test_a_whole_old_index_passes_only_for_who_never_saw_a_newer_one(urls, index, tmp_path):
    """Nothing in an old state contradicts itself; so verify says when it was signed, and remembers what it saw."""
    (origin, cache), (publish, trusted) = urls, index
    first = verify_index(open_reader(cache), trusted)
    assert (first.problems, first.wheels) == ((), 1)
    publish("2.0")
    seen = tmp_path / "seen"
    newest = verify_index(open_reader(origin), trusted, state=seen)
    assert (newest.problems, newest.wheels) == ((), 2)
    stranger = verify_index(open_reader(cache), trusted)
    assert (stranger.problems, stranger.wheels, stranger.time) == ((), 1, first.time)
    told = verify_index(open_reader(cache), trusted, state=seen).problems
    assert any(re.match(r"whl/sm35-avx/links.html: older than what was there before", line) for line in told), told
