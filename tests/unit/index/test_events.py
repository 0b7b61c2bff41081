"""Events fold into a state; the newest wins, each kind for itself."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.index import pages
from farm.index.catalogue import without_rebuild
from farm.index.directory import DirectoryStore
from farm.index.events import Event, State, fold, with_states
from farm.index.folders import from_folder, to_folder
from farm.index.pages import File, Hashes
from farm.index.s3 import S3Store
from farm.index.serve import byte_range, media_type
from farm.index.stores import Stored
from farm.index.swap import predicted

WHEEL = "canary-1.0-py3-none-any.whl"


def events(*kinds):
    return [
        Event(number=n, kind=kind, target=WHEEL, reason=f"r{n}", time="2026-11-21T00:00:00+00:00")
        for n, kind in enumerate(kinds, 1)
    ]


@pytest.mark.parametrize(
    ("kinds", "state"),
    [
        ((), State(0, False, None)),
        (("yank",), State(1, "r1", None)),
        (("yank", "unyank"), State(2, False, None)),
        (("yank", "quarantine"), State(2, "r1", "r2")),
        (("quarantine", "yank", "release"), State(3, "r2", None)),
        (("yank", "yank"), State(2, "r2", None)),
    ],
)
def test_folding(kinds, state):
    assert fold(events(*kinds)) == state


def page():
    file = File(filename=WHEEL, hashes=Hashes(sha256="a" * 64), size=1, core_metadata=Hashes(sha256="b" * 64))
    return pages.with_files(None, "canary", file)


@given(st.permutations([1, 2, 3, 4]))
def test_whatever_the_order_in_which_writers_come_the_newest_event_is_shown(order):
    told = events("yank", "quarantine", "release", "unyank")
    shown = page()
    for number in order:
        shown = with_states(shown, "sm35-avx", {WHEEL: fold(told[:number])})
    [file] = shown.files
    assert (file.yanked, file.quarantined, file.event) == (False, None, 4)


def test_a_page_is_sound_only_if_it_follows_from_its_entries():
    sound = page()
    assert pages.is_sound(sound, "canary")
    assert not pages.is_sound(sound.model_copy(update={"versions": ("2.0",)}), "canary")
    assert not pages.is_sound(sound.model_copy(update={"name": "other"}), "canary")
    quarantined = with_states(sound, "sm35-avx", {"canary": State(1, quarantined="x")})
    assert pages.is_sound(quarantined, "canary")
    assert quarantined.files == ()
    assert quarantined.withheld[0].url is None


@pytest.mark.parametrize(
    ("version", "short"),
    [
        ("2.0.1+cu118.sm35.avx.1", "2.0.1+cu118.sm35.avx"),
        ("2.0.1+cu118.sm35.avx.12", "2.0.1+cu118.sm35.avx"),
        ("2.0.1+cu118.sm35.avx", "2.0.1+cu118.sm35.avx"),
        ("2.0.1", "2.0.1"),
        ("2.0.1+1", "2.0.1+1"),
        ("2.8.0+cu128.sm120.armv8.2", "2.8.0+cu128.sm120.armv8.2"),
        ("2.8.0+cu128.sm120.armv8.2.3", "2.8.0+cu128.sm120.armv8.2"),
    ],
)
def test_a_rebuild_is_nothing_new(version, short):
    assert without_rebuild(version) == short


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("whl/g/simple/torch/index.html", "whl/g/simple/torch/"),
        ("whl/g/simple/index.html", "whl/g/simple/"),
        ("whl/c/g/simple/torch/index.html", "whl/c/g/simple/torch/"),
        ("whl/g/v1-json/torch/index.json", "whl/g/v1-json/torch/"),
        ("whl/g/links.html", "whl/g/links.html"),
        ("catalog.json", "catalog.json"),
        ("index.html", "index.html"),
    ],
)
def test_pages_at_folders(key, place):
    assert to_folder(key) == place
    assert from_folder(place) == key


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, None),
        ("bytes=0-3", (0, 3)),
        ("bytes=4-", (4, 9)),
        ("bytes=-3", (7, 9)),
        ("bytes=-99", (0, 9)),
        ("bytes=0-99", (0, 9)),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
    ],
)
def test_ranges(header, part):
    assert byte_range(header, 10) == part


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=5-4", "bytes=99-100", "bytes=-0"])
def test_ranges_behind_the_end(header):
    with pytest.raises(ValueError, match="bytes"):
        byte_range(header, 10)


def test_media_types_are_those_that_clients_take():
    assert media_type("whl/g/simple/torch/index.html") == "text/html; charset=utf-8"
    assert media_type("whl/g/v1-json/torch/index.json") == "application/vnd.pypi.simple.v1+json"
    assert media_type("catalog.json") == "application/json"
    assert media_type("whl/files/x.whl") == "application/octet-stream"


def test_a_tag_is_guessed_from_how_another_was_made(tmp_path):
    """Tags are SHA-256 of the content in a folder; MD5 (of what is stored) in S3, with quotes or without."""
    folder = DirectoryStore(tmp_path)
    assert folder.create("a", b"a", content_type="text/plain")
    sample = folder.get("a")
    guess = predicted(folder, sample, b"b")
    assert folder.replace("b", b"b", None, content_type="text/plain")
    assert guess.stored == folder.get("b")
    assert predicted(folder, Stored(b"a", '"0cc175b9c0f1b6a831c399e269772661-2"'), b"b") is None  # another kind of tag

    bucket = S3Store("wheels", endpoint_url="http://127.0.0.1:9")
    of_a, of_b = hashlib.md5(b"a").hexdigest(), hashlib.md5(b"b").hexdigest()
    assert predicted(bucket, Stored(b"a", f'"{of_a}"'), b"b").stored.etag == f'"{of_b}"'
    assert predicted(bucket, Stored(b"a", of_a), b"b").stored.etag == of_b
    assert predicted(bucket, Stored(b"a", f'"{of_a}-2"'), b"b") is None
