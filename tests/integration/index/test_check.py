"""The check finds what is broken: each test breaks one promise by hand."""

from collections import Counter
from pathlib import Path

import pytest

from farm.index.changes import record_event
from farm.index.check import check
from farm.index.store_urls import open_store

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
HTML = "whl/sm35-avx/simple/canary/index.html"
JSON = "whl/sm35-avx/v1-json/canary/index.json"
ROOT = "whl/sm35-avx/simple/index.html"


@pytest.fixture
def index(tmp_path, make_wheel, put):
    """A sound index with two wheels: the store, and its directory to break things in."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    put(store, make_wheel(SECOND))
    assert check(store) == []
    return store, Path(tmp_path / "index")


def broken(store):
    return {problem.key for problem in check(store) if problem.broken}


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("key", [f"whl/files/{FIRST}", f"whl/files/{SECOND}.metadata"])
def test_changed_and_missing_files(index, key):
    store, root = index
    data = (root / key).read_bytes()
    (root / key).write_bytes(data[:-1] + b"?")
    assert broken(store) == {JSON}
    (root / key).unlink()
    assert broken(store) == {JSON}


def test_a_wheel_without_a_record(index):
    store, root = index
    (root / f"records/{FIRST}.json").unlink()
    assert broken(store) == {JSON}


def test_a_page_that_contradicts_a_record(index):
    store, root = index
    edit(root / f"records/{FIRST}.json", "2026-11-21", "2026-11-22")
    assert broken(store) == {JSON}


def test_a_root_that_leads_nowhere(index):
    store, root = index
    edit(root / ROOT, '<a href="canary/">canary</a><br>', '<a href="torch/">torch</a><br>')
    assert broken(store) == {ROOT}
    assert [problem.what for problem in check(store) if not problem.broken] == [
        "does not list canary yet"
    ]


def test_a_project_without_its_json_page(index):
    store, root = index
    (root / JSON).unlink()
    assert broken(store) == {JSON}


@pytest.mark.parametrize(
    ("key", "says"),
    [(HTML, HTML), (JSON, JSON), (ROOT, ROOT), (f"records/{FIRST}.json", f"records/{FIRST}.json")],
)
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"<html>by hand</html>"])
def test_foreign_objects_are_problems_not_crashes(index, key, says, data):
    store, root = index
    (root / key).write_bytes(data)
    assert any(problem.broken and says in problem.what for problem in check(store))


@pytest.mark.parametrize("key", [HTML, ROOT])
def test_a_page_that_is_missing_is_broken_once_the_catalogue_promises_it(index, key):
    store, root = index
    (root / key).unlink()
    assert broken(store) == {key}
    for last in ("whl/index.html", "catalog.json"):  # as after a publish that was killed
        (root / last).unlink()
    assert broken(store) == set()
    assert key in {problem.key for problem in check(store)}


def test_each_object_is_asked_for_once_however_many_groups_list_it(index):
    """A wheel that was promoted twice was downloaded three times."""
    store, _root = index
    for group in ("sm37-avx", "staging"):
        record_event(store, [FIRST], "promote", "", group=group)
    asked = []

    class Counting:
        def __getattr__(self, name):
            return getattr(store, name)

        def get(self, key):
            asked.append(key)
            return store.get(key)

        def chunks(self, key):
            asked.append(key)
            return store.chunks(key)

        def stat(self, key):
            asked.append(key)
            return store.stat(key)

        def list(self, prefix):
            asked.append(f"list {prefix}")
            return store.list(prefix)

    assert check(Counting()) == []
    present = set(store.list(""))
    counts = Counter(asked)
    signatures = {"tuf/1.root.json", "tuf/timestamp.json"}
    assert {key: count for key, count in counts.items() if count > 1} == {}
    assert counts.keys() - signatures == {"list ", *present}
