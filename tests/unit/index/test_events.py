"""Events fold into a state; keys at folders; tags that are guessed."""

import pytest

from farm.index.layout import from_folder, to_folder, without_rebuild
from farm.index.records import Event, State, fold

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
        (("yank", "remove"), State(2, "r1", "r2")),
        (("yank", "yank"), State(2, "r2", None)),
    ],
)
def test_events_fold_into_one_state(kinds, state):
    assert fold(events(*kinds)) == state


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
def test_rebuilding_pages_changes_nothing(version, short):
    assert without_rebuild(version) == short


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("whl/g/simple/torch/index.html", "whl/g/simple/torch/"),
        ("whl/g/simple/index.html", "whl/g/simple/"),
        ("whl/g/v1-json/torch/index.json", "whl/g/v1-json/torch/"),
        ("catalog.json", "catalog.json"),
        ("index.html", "index.html"),
    ],
)
def test_pages_at_folders(key, place):
    assert to_folder(key) == place
    assert from_folder(place) == key
