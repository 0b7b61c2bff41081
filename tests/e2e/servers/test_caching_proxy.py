"""An index behind a cache that keeps pages in spite of `no-cache`: what a stranger is told who never saw the index."""

import contextlib
import urllib.request

import pytest

from farm.base.errors import VerificationFailedError
from farm.index.backends import open_store
from farm.index.reader import open_reader
from farm.index.sign import set_keys, sign
from farm.index.verify import verify_index
from tests.indexes.keys import write_key
from tests.indexes.wheels import build_wheel, publish_wheel
from tests.servers import static, web
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
    """A signed index of one wheel, and how to publish and sign the next; the root that users trust."""
    signer, store = write_key(tmp_path / "farm.key"), open_store(str(tmp_path / "index"))

    def publish(version):
        publish_wheel(store, build_wheel(tmp_path / "made", f"canary-{version}-py3-none-any.whl"))
        sign(store, signer)

    _, root = set_keys(store, signer, [signer.public_key])
    publish("1.0")
    return publish, root


@pytest.fixture
def urls(tmp_path, index, require):
    """The index as its owner's server shows it, and through the cache."""
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(static.serving(tmp_path / "index"))
        (tmp_path / "cache.conf").write_text(CACHE.format(folder=tmp_path, origin=origin))
        try:
            yield origin, stack.enter_context(web.nginx(tmp_path / "nginx", str(tmp_path / "cache.conf")))
        except MissingError as error:
            require("a caching proxy", error)


def read(url, *keys):
    for key in keys:
        with urllib.request.urlopen(f"{url}/{key}", timeout=120) as answer:
            answer.read()


@pytest.mark.parametrize("cached", PROJECT)
def test_an_old_page_with_a_new_signature_is_named(urls, index, cached):
    (origin, cache), (publish, root) = urls, index
    read(cache, cached)
    publish("2.0")
    [told] = verify_index(open_reader(cache), root).problems
    assert told.startswith(f"{cached}: not as it was signed on ")
    assert verify_index(open_reader(origin), root).problems == ()


def test_a_whole_old_index_passes_only_for_who_never_saw_a_newer_one(urls, index, tmp_path):
    """Nothing in an old state contradicts itself; so verify says when it was signed, and remembers what it saw."""
    (origin, cache), (publish, root) = urls, index
    first = verify_index(open_reader(cache), root)
    assert (first.problems, first.wheels) == ((), 1)
    publish("2.0")
    seen = tmp_path / "seen"
    newest = verify_index(open_reader(origin), root, state=seen)
    assert (newest.problems, newest.wheels) == ((), 2)
    stranger = verify_index(open_reader(cache), root)
    assert (stranger.problems, stranger.wheels, stranger.time) == ((), 1, first.time)
    with pytest.raises(VerificationFailedError, match="older than what was seen"):
        verify_index(open_reader(cache), root, state=seen)
