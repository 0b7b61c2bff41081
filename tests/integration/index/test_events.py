"""Yank, unyank, quarantine: what pages show, that it lasts, and that nothing else changes."""

import json

import pytest

from farm.base.errors import UsageError
from farm.index import html, pages
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.lifecycle import record_event
from farm.index.reconcile import reconcile

GROUP = "sm35-avx"
FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
THIRD = "canary-1.0+cu118.sm35.avx.2-py3-none-any.whl"


@pytest.fixture
def index(store, make_wheel, put):
    put(store, make_wheel(FIRST), channel="kepler-2.0.1")
    put(store, make_wheel(SECOND), channel="kepler-2.0.1")
    return store


def document(store):
    return json.loads(store.get(pages.json_key(GROUP, "canary")).data)


def links(store):
    """File names that clients are offered: on the JSON page, which must be those of every other page."""
    files = document(store)["files"]
    found = [file["filename"] for file in files]
    flat = [file["filename"] for file in files if file["yanked"] is False]
    for key in (
        pages.html_key(GROUP, "canary"),
        pages.links_key(GROUP),
        f"{pages.channel_root('kepler-2.0.1', GROUP)}canary/index.html",
    ):
        text = store.get(key).data.decode()
        wanted = flat if key == pages.links_key(GROUP) else found
        assert [name for name in (FIRST, SECOND, THIRD) if f">{name}</a>" in text] == wanted, key
    return found


def test_a_yank_shows_its_reason_everywhere_and_is_taken_back(index):
    record_event(index, SECOND, "yank", "wrong <GPU>")
    assert links(index) == [FIRST, SECOND]
    assert [file["yanked"] for file in document(index)["files"]] == [False, "wrong <GPU>"]
    shown = index.get(pages.html_key(GROUP, "canary")).data
    assert shown.count(b'data-yanked="wrong &lt;GPU&gt;"') == 1
    assert SECOND.encode() not in index.get(pages.links_key(GROUP)).data, "uv does not heed a yank there"
    assert check(index) == []
    record_event(index, SECOND, "unyank", "")
    assert [file["yanked"] for file in document(index)["files"]] == [False, False]
    assert b"data-yanked" not in index.get(pages.html_key(GROUP, "canary")).data
    events = [json.loads(index.get(f"events/{SECOND}/{n}.json").data) for n in (1, 2)]
    assert [(event["kind"], event["reason"]) for event in events] == [("yank", "wrong <GPU>"), ("unyank", "")]
    assert check(index) == []


def test_a_quarantined_wheel_is_offered_nowhere_and_publishing_it_again_does_not_bring_it_back(index, make_wheel, put):
    record_event(index, FIRST, "quarantine", "suspicious")
    assert links(index) == [SECOND]
    assert document(index)["project-status"] == {"status": "active"}
    assert not put(index, make_wheel(FIRST), channel="kepler-2.0.1").changed
    put(index, make_wheel(THIRD), channel="kepler-2.0.1")
    assert links(index) == [SECOND, THIRD]
    assert check(index) == []
    record_event(index, FIRST, "release", "was fine")
    assert links(index) == [FIRST, SECOND, THIRD]
    assert check(index) == []


def test_a_quarantined_project_has_no_links_until_it_is_released(index, make_wheel, put):
    record_event(index, "canary", "quarantine", "stolen account")
    put(index, make_wheel(THIRD), channel="kepler-2.0.1")
    assert links(index) == []
    assert document(index)["project-status"] == {"status": "quarantined", "reason": "stolen account"}
    assert document(index)["versions"] == []
    shown = index.get(pages.html_key(GROUP, "canary")).data
    assert b'<meta name="pypi:project-status" content="quarantined">' in shown
    assert b'<meta name="pypi:project-status-reason" content="stolen account">' in shown
    assert b'<meta name="pypi:repository-version" content="1.4">' in shown
    assert list(json.loads(index.get("catalog.json").data)["groups"]["sm35-avx"]) == ["canary"]
    assert check(index) == []
    record_event(index, "canary", "release", "")
    assert links(index) == [FIRST, SECOND, THIRD]
    assert check(index) == []


def test_a_projects_pages_name_its_mirrors(index, make_wheel, put):
    here, there = "https://wheels.example.org/farm", "https://mirror.example.org"
    record_event(index, "canary", "mirrors", "", mirrors=[f"{here}/", there, here])
    pages_of = [f"{here}/whl/{GROUP}/simple/canary/", f"{there}/whl/{GROUP}/simple/canary/"]
    head = [f'<meta name="pypi:alternate-locations" content="{url}">' for url in pages_of]
    put(index, make_wheel(THIRD), channel="kepler-2.0.1")
    reconcile(index)
    assert document(index)["alternate-locations"] == pages_of
    shown = index.get(pages.html_key(GROUP, "canary")).data.decode().splitlines()
    assert [line for line in shown if "alternate" in line] == head
    assert links(index) == [FIRST, SECOND, THIRD]
    assert check(index) == []
    stored = index.get(pages.json_key(GROUP, "canary"))
    other = stored.data.replace(there.encode(), b"https://mirror.example.com")
    index.replace(pages.json_key(GROUP, "canary"), other, stored.etag, content_type=pages.JSON)
    assert any("names other mirrors" in problem.what for problem in check(index) if problem.broken)
    record_event(index, "canary", "mirrors", "", mirrors=[])
    assert "alternate-locations" not in document(index)
    assert check(index) == []


NO_MIRRORS = ["mirror.example.org", "https://", 'https://x/"><script>', "https://x y", "ftp://x", "https://x/?a"]


@pytest.mark.parametrize("url", [*NO_MIRRORS, "https://x/" + "a" * 500])
def test_a_mirror_that_is_no_address_is_refused(index, url):
    before = sorted(index.list(""))
    with pytest.raises(UsageError, match="addresses of indexes"):
        record_event(index, "canary", "mirrors", "", mirrors=[url])
    with pytest.raises(UsageError, match="mirrors are those of a project"):
        record_event(index, FIRST, "mirrors", "", mirrors=["https://x"])
    assert sorted(index.list("")) == before


def test_saying_it_again_adds_no_event(index):
    for _ in range(2):
        record_event(index, SECOND, "yank", "x")
    assert record_event(index, FIRST, "unyank", "nothing was yanked")
    assert sorted(index.list("events/")) == [f"events/{SECOND}/1.json"]


def test_an_event_that_no_page_shows_yet_is_shown_by_saying_it_again_or_by_reconcile(index):
    before = index.get(pages.json_key(GROUP, "canary"))
    record_event(index, SECOND, "yank", "x")
    for repair in (lambda: record_event(index, SECOND, "yank", "x"), lambda: reconcile(index)):
        now = index.get(pages.json_key(GROUP, "canary"))
        index.replace(pages.json_key(GROUP, "canary"), before.data, now.etag, content_type=pages.JSON)
        assert any("does not show event 1" in problem.what for problem in check(index))
        repair()
        assert [file["yanked"] for file in document(index)["files"]] == [False, "x"]


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("canary", "yank", "is not a wheel's file name"),
        ("none-1.0-py3-none-any.whl", "yank", "is not in the index"),
        ("../x.whl", "yank", "not the file name of a wheel"),
        ("torch", "quarantine", "no project 'torch'"),
        (FIRST, "yank", "one line of at most 500"),
    ],
)
def test_mistakes_change_nothing(index, target, kind, message):
    before = sorted(index.list(""))
    with pytest.raises(UsageError, match=message):
        record_event(index, target, kind, "two\nlines")
    assert sorted(index.list("")) == before


def test_a_claimed_wheel_that_is_not_listed_cannot_be_yanked(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    (tmp_path / f"index/{pages.json_key(GROUP, 'canary')}").unlink()
    with pytest.raises(UsageError, match="not yet listed"):
        record_event(store, FIRST, "yank", "x")


def test_the_channel_root_has_its_own_wheels_alone(index, make_wheel, put):
    put(index, make_wheel(THIRD), channel="other")
    root = pages.channel_root("other", GROUP)
    text = index.get(f"{root}canary/index.html").data.decode()
    assert f">{THIRD}</a>" in text
    assert f">{FIRST}</a>" not in text
    assert '<a href="../../../../files/canary-1.0%2Bcu118' in text
    assert html.parse_root(index.get(f"{root}index.html").data, "") == {"canary"}
    assert check(index) == []
