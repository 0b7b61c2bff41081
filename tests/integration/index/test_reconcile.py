"""Reconcile brings back every page from the records and events, whatever was done to the pages."""

import json
import shutil

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError
from farm.cli.main import main
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.reconcile import reconcile
from farm.index.records import ForeignObjectError
from farm.index.store_urls import open_store

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
OTHER = "torch-2.0.1+cu118.sm35.avx-py3-none-any.whl"


@pytest.fixture
def index(tmp_path, make_wheel, put):
    """Two projects, two groups and a yank: the store and its directory."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    put(store, make_wheel(SECOND))
    put(store, make_wheel(OTHER))
    put(store, make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx")
    record_event(store, [FIRST], "yank", "old")
    assert check(store) == []
    return store, tmp_path / "index"


def page_files(root):
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and path.name in {"index.html", "index.json", "catalog.json"}
    )


def plain(text):
    """Without generations and what is derived from them, which only grow, and without the proof of
    the store.
    """
    import re

    return re.sub(
        rb'"_tried":"[0-9a-f]*",?|_generation":\d+|generation" content="\d+|data-generation="\d+',
        b"",
        text,
    )


def test_a_sound_index_is_left_as_it_is(index):
    store, _root = index
    assert reconcile(store) == ((), (), (), ())


def test_all_pages_gone(index):
    store, root = index
    before = {path: plain(path.read_bytes()) for path in page_files(root)}
    for path in before:
        path.unlink()
    done = reconcile(store)
    assert len(done.written) == len(before)
    assert check(store) == []
    assert {path: plain(path.read_bytes()) for path in page_files(root)} == before


@pytest.mark.parametrize("damage", [b"", b"<html>by hand</html>", b"\xff"])
def test_any_page_overwritten(index, damage):
    store, root = index
    for path in set(page_files(root)) - {
        root / "index.html"
    }:  # that one may be anybody's: the site's, for one
        before = path.read_bytes()
        path.write_bytes(damage)
        assert check(store) != [], path
        reconcile(store)
        assert check(store) == [], path
        assert plain(path.read_bytes()) == plain(before), path


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"yanked":"old"', '"yanked":false'),
        ("../../../files/canary", "../../../files/evil"),
        ('data-yanked="old"', 'data-yanked=""'),
        ('"sha256":"', '"sha256":"0'),
        ('"requires-python":">=3.7"', '"requires-python":">=3.8"'),
        ('<a href="canary/">canary</a>', '<a href="evil/">evil</a>'),
        ('{"name":"canary"}', '{"name":"evil"}'),
        ("1.0+cu118.sm35.avx", "9.0+cu118.sm35.avx"),
    ],
)
def test_any_word_changed(index, old, new):
    store, root = index
    changed = 0
    for path in page_files(root):
        text = path.read_text()
        if old in text:
            changed += 1
            path.write_text(text.replace(old, new, 1))
            assert check(store) != [], path
            reconcile(store, take_back=True)  # a name on a page may be that of no wheel
            assert check(store) == [], path
    assert changed


def test_a_wheel_whose_bytes_are_gone_is_left_out_and_named(index):
    store, root = index
    (root / f"whl/files/{SECOND}").unlink()
    done = reconcile(store)
    assert done.missing == (SECOND,)
    assert [problem.what for problem in check(store)] == ["is claimed, and its files are not there"]


def test_a_page_without_any_record_is_not_touched_and_check_says_so(index):
    store, root = index
    shutil.copytree(root / "whl/sm35-avx/v1-json/canary", root / "whl/sm35-avx/v1-json/evil")
    reconcile(store)
    assert any(problem.broken and "v1-json/evil" in problem.key for problem in check(store))


@pytest.mark.parametrize("what", ["records", "events"])
def test_records_and_events_of_others_are_ignored(index, what):
    store, root = index
    victim = next(path for path in sorted((root / what).rglob("*.json")))
    victim.write_text("{}")
    before = {path: path.read_bytes() for path in page_files(root)}
    with pytest.raises(InfrastructureError, match="of this farm"):
        reconcile(store)
    assert {path: path.read_bytes() for path in page_files(root)} == before


def test_on_every_kind_of_store(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    record_event(store, [FIRST], "yank", "old")
    assert reconcile(store).written == ()
    key = "whl/sm35-avx/simple/index.html"
    store.replace(key, b"by hand", store.get(key).etag, content_type="text/html")
    assert reconcile(store).written == (key,)
    assert check(store) == []


VERSIONS = {"_generation": 1, "versions": {"1.0": {"py3-none-any": ["kepler"]}}}


@pytest.mark.parametrize(
    "older",
    [
        pytest.param(
            {"signature": {"payload": "e30="}},
            id="the digests of all pages and their signature in it",
        ),
        pytest.param(
            {"schema": 1, "_generation": 1, "groups": {"sm35-avx": {"canary": VERSIONS}}},
            id="versions of each project",
        ),
    ],
)
def test_a_catalogue_of_an_older_farm_stops_publishers_until_reconcile(
    tmp_path, make_wheel, put, older
):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel("canary-1.0-py3-none-any.whl"))
    path = tmp_path / "index/catalog.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **older}))
    with pytest.raises(ForeignObjectError) as caught:
        put(store, make_wheel("canary-2.0-py3-none-any.whl"))
    assert "farm index reconcile" in caught.value.hint
    assert ("schema 1, of another version of the farm" in str(caught.value)) == ("schema" in older)
    reconcile(store)
    assert check(store) == []
    assert put(store, make_wheel("canary-2.0-py3-none-any.whl")).changed


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("yank", "event 1 of .* by which it is yanked .slow."),
        ("remove", "the removal of "),
        ("lost", "has no record"),
    ],
)
def test_what_nothing_says_any_more_is_taken_back_only_when_asked_to(
    index, make_wheel, kind, message, capsys
):
    """Somebody deleted `events/<wheel>/` in the store: the advised reconcile took the yank back in
    silence.
    """
    store, root = index
    wheel, files = (
        make_wheel(SECOND),
        (root / "whl/files" / SECOND, root / f"whl/files/{SECOND}.metadata"),
    )
    if kind == "lost":
        for path in (root / f"records/{SECOND}.json", *files):
            path.unlink()
    else:
        record_event(store, [SECOND], kind, "slow")
        shutil.rmtree(root / "events" / SECOND)
    if kind == "remove":  # and its bytes are there again, from a backup
        files[0].write_bytes(wheel.path.read_bytes())
        files[1].write_bytes(wheel.metadata)
    assert check(store), (
        "a removal of which nothing is left looks like a publish that was not finished"
    )
    before = {path: path.read_bytes() for path in page_files(root)}
    with pytest.raises(PublishRefusedError, match=message):
        reconcile(store)
    assert main(["index", "reconcile", "--index", str(root)]) == 7
    assert "--take-back" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in page_files(root)} == before
    assert main(["index", "reconcile", "--index", str(root), "--take-back"]) == 0
    assert not any(problem.broken for problem in check(store))
    shown = (root / "whl/sm35-avx/simple/canary/index.html").read_text()
    assert "slow" not in shown
    assert (f">{SECOND}</a>" in shown) is (kind != "lost")


def lose_record_and_take_back(root, name):
    (root / f"records/{name}.json").unlink()
    return main(["index", "reconcile", "--index", str(root), "--take-back"])


def test_what_is_taken_back_leaves_no_bytes_and_its_name_is_free(index, make_wheel, put, capsys):
    """The advised commands led to a page with a hash that the stored bytes did not have."""
    store, root = index
    assert lose_record_and_take_back(root, SECOND) == 0
    assert f"deleted: whl/files/{SECOND}" in capsys.readouterr().out
    assert check(store) == []
    put(store, make_wheel(SECOND, payload="x = 2\n"))
    assert check(store) == []


def test_a_wheel_is_never_listed_over_other_bytes(index):
    store, root = index
    for path in page_files(root):
        path.unlink()
    (root / f"whl/files/{SECOND}").write_bytes(b"other")
    done = reconcile(store)
    assert done.differing == (SECOND,)
    assert SECOND not in (root / "whl/sm35-avx/simple/canary/index.html").read_text()
    [problem] = check(store)
    assert "its files have other bytes" in problem.what


def test_files_without_a_record_are_shown_and_can_be_deleted(index, make_wheel, capsys):
    store, root = index
    orphan = f"whl/files/{FIRST.replace('1.0', '9.0')}"
    (root / orphan).write_bytes(b"bytes")
    [problem] = check(store)
    assert (problem.key, problem.broken) == (orphan, False)
    assert main(["index", "reconcile", "--index", str(root)]) == 0
    assert f"without a record (--take-back deletes it): {orphan}" in capsys.readouterr().out
    assert main(["index", "reconcile", "--index", str(root), "--take-back"]) == 0
    assert check(store) == []
