"""What every store promises, asked of each kind."""

import hashlib
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError, UsageError
from farm.index.directory import DirectoryStore
from farm.index.publish import check_store
from farm.index.store_urls import open_store
from farm.index.stores import Stat

TEXT = "text/plain"
KEY = "whl/files/a-1+cu118-py3-none-any.whl"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(store_url):
    """Empty, without a proof."""
    return open_store(store_url)


def test_absent_objects(store):
    assert store.get(KEY) is None
    assert store.stat(KEY) is None
    assert list(store.list("")) == []
    with pytest.raises(InfrastructureError):
        list(store.chunks(KEY))
    assert store.get("whl") is None


def test_create_stores_once(store):
    assert store.create(KEY, b"one", content_type=TEXT) is True
    assert store.create(KEY, b"two", content_type=TEXT) is False
    assert store.create(KEY, b"one", content_type=TEXT) is False
    assert store.get(KEY).data == b"one"
    assert store.stat(KEY) == Stat(3, sha256(b"one"))
    assert b"".join(store.chunks(KEY)) == b"one"
    assert store.get("whl/files") is None


def test_an_empty_object_is_an_object(store):
    assert store.create(KEY, b"", content_type=TEXT) is True
    assert store.get(KEY).data == b""
    assert store.create(KEY, b"x", content_type=TEXT) is False


def test_create_copies_a_file(store, tmp_path):
    data = bytes(range(256)) * 20_000  # 5 MB: several chunks
    source = tmp_path / "source"
    source.write_bytes(data)
    assert store.create(KEY, source, content_type=TEXT, sha256=sha256(data)) is True
    assert b"".join(store.chunks(KEY)) == data
    assert store.stat(KEY) == Stat(len(data), sha256(data))
    assert source.read_bytes() == data
    source.write_bytes(b"changed later")
    assert store.get(KEY).data == data


def test_create_refuses_a_file_that_changed(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"other")
    with pytest.raises(InfrastructureError, match="changed while"):
        store.create(KEY, source, content_type=TEXT, sha256=sha256(b"what was hashed"))
    assert store.get(KEY) is None


def test_replace_stores_where_nothing_changed(store):
    assert store.replace(KEY, b"one", None, content_type=TEXT) is True
    assert store.replace(KEY, b"two", None, content_type=TEXT) is False
    first = store.get(KEY)
    assert first.data == b"one"
    assert store.replace(KEY, b"two", first.etag, content_type=TEXT) is True
    assert store.get(KEY).data == b"two"
    assert store.get(KEY).etag != first.etag
    assert store.replace(KEY, b"three", first.etag, content_type=TEXT) is False
    assert store.get(KEY).data == b"two"


def test_replace_of_an_absent_object_by_tag_is_refused(store):
    store.create("other", b"x", content_type=TEXT)
    assert store.replace(KEY, b"one", store.get("other").etag, content_type=TEXT) is False
    assert store.get(KEY) is None


def test_list_takes_any_prefix(store):
    keys = ["records/a.json", "records/ab.json", "whl/files/a", "whl/g/a", "whl/gg/a"]
    for key in keys:
        store.create(key, b"x", content_type=TEXT)
    assert sorted(store.list("")) == keys
    assert sorted(store.list("records/")) == keys[:2]
    assert sorted(store.list("records/a.")) == keys[:1]
    assert sorted(store.list("whl/g")) == keys[3:]
    assert sorted(store.list("whl/g/")) == keys[3:4]
    assert list(store.list("none/")) == []


def test_bad_keys_never_reach_the_store(store):
    for key in ("../x", "/x", "a/../x", ".tmp/x"):
        for operate in (
            lambda key=key: store.get(key),
            lambda key=key: store.stat(key),
            lambda key=key: list(store.chunks(key)),
            lambda key=key: store.create(key, b"", content_type=TEXT),
            lambda key=key: store.replace(key, b"", None, content_type=TEXT),
        ):
            with pytest.raises(UsageError, match="not a key"):
                operate()


def test_records_and_pages_are_never_discarded(store):
    kept = ("records/x.json", "whl/index.html")
    for key in ("probe/x", KEY, *kept):
        store.create(key, b"x", content_type=TEXT)
    for key in ("probe/x", KEY):
        store.discard(key)
        store.discard(key)
    for key in kept:
        with pytest.raises(ValueError, match="never discarded"):
            store.discard(key)
    assert sorted(store.list("")) == sorted(kept)


def test_one_of_many_creators_wins(store):
    def create(number):
        return store.create(KEY, b"%d" % number, content_type=TEXT)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(16)))
    assert won.count(True) == 1
    assert store.get(KEY).data == b"%d" % won.index(True)


def test_no_replacement_is_lost(store):
    def add(_):
        while True:
            old = store.get(KEY)
            data, etag = old or (b"", None)
            if store.replace(KEY, data + b"x", etag, content_type=TEXT):
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    assert store.get(KEY).data == b"x" * 40


def test_the_first_publish_tries_the_store_and_leaves_a_note(store_url):
    store = open_store(store_url)
    check_store(store)
    assert list(store.list("")) == ["catalog.json"]
    before = store.get("catalog.json")
    check_store(open_store(store_url))
    assert store.get("catalog.json") == before


def test_a_large_page_comes_back_whole(store):
    page = b"<a>wheel</a>\n" * 50_000
    assert store.replace("whl/index.html", page, None, content_type=TEXT) is True
    first = store.get("whl/index.html")
    assert first.data == page
    assert store.replace("whl/index.html", page + b"x", first.etag, content_type=TEXT) is True
    assert store.get("whl/index.html").data == page + b"x"
    assert store.replace("whl/index.html", page, first.etag, content_type=TEXT) is False


def test_progress_of_a_file_is_reported(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    progress = []
    assert store.create(KEY, source, content_type=TEXT, progress=progress.append) is True
    assert progress == sorted(progress)
    assert progress[-1] == 3_000_000


def test_the_clock_is_the_servers_own(store):
    if isinstance(store, DirectoryStore):
        assert store.clock() is None
    else:
        assert abs(store.clock() - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_directory_holds_only_files_and_folders(tmp_path):
    store = open_store(str(tmp_path / "index"))
    store.create(KEY, b"x", content_type=TEXT)
    kinds = {stat.S_IFMT(path.lstat().st_mode) for path in Path(store.root).rglob("*")}
    assert kinds == {stat.S_IFDIR, stat.S_IFREG}
