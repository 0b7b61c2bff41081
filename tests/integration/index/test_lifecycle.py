"""Yank, remove and promote: what pages show, what stays, and that the next run ends what a killed
one began.
"""

import contextlib
import itertools
import json
import shutil

import pytest

from farm.base.errors import PublishRefusedError, UsageError
from farm.cli.main import main
from farm.index import pages
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.layout import html_key, json_key, record_key
from farm.index.reconcile import reconcile
from farm.index.records import read_state
from farm.index.store_urls import open_store
from tests.indexes.recorder import FIRST, GROUP, SECOND, Killed, Recorder, kill_at

THIRD = "canary-1.0+cu118.sm35.avx.2-py3-none-any.whl"


def listed(store, group=GROUP):
    """The names on the JSON page, which the HTML page must show too."""
    page = json.loads(store.get(json_key(group, "canary")).data)
    names = [file["filename"] for file in page["files"]]
    text = store.get(html_key(group, "canary")).data.decode()
    assert [name for name in (FIRST, SECOND, THIRD) if f">{name}</a>" in text] == names
    return names


def gone(store, name):
    return not [key for key in store.list("whl/files/") if name in key]


def remove(store, names, reason):
    return record_event(store, names, "remove", reason)


def promote(store, names, group):
    return record_event(store, names, "promote", "", group=group)[1]


@pytest.fixture
def index(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    put(store, make_wheel(SECOND))
    return store


def document(store):
    return json.loads(store.get(json_key(GROUP, "canary")).data)


def test_a_yank_shows_its_reason_everywhere_and_is_taken_back(index):
    record_event(index, [SECOND], "yank", "wrong <GPU>")
    assert listed(index) == [FIRST, SECOND]
    assert [file["yanked"] for file in document(index)["files"]] == [False, "wrong <GPU>"]
    shown = index.get(html_key(GROUP, "canary")).data
    assert shown.count(b'data-yanked="wrong &lt;GPU&gt;"') == 1
    assert check(index) == []
    record_event(index, [SECOND], "unyank", "")
    assert [file["yanked"] for file in document(index)["files"]] == [False, False]
    assert b"data-yanked" not in index.get(html_key(GROUP, "canary")).data
    events = [json.loads(index.get(f"events/{SECOND}/{n}.json").data) for n in (1, 2)]
    assert [(event["kind"], event["reason"]) for event in events] == [
        ("yank", "wrong <GPU>"),
        ("unyank", ""),
    ]
    assert check(index) == []


def test_saying_it_again_adds_no_event(index):
    for _ in range(2):
        record_event(index, [SECOND], "yank", "x")
    record_event(index, [FIRST], "unyank", "nothing was yanked")
    assert sorted(index.list("events/")) == [f"events/{SECOND}/1.json"]


def test_an_event_that_no_page_shows_yet_is_shown_by_saying_it_again_or_by_reconcile(index):
    before = index.get(json_key(GROUP, "canary"))
    record_event(index, [SECOND], "yank", "x")
    for repair in (lambda: record_event(index, [SECOND], "yank", "x"), lambda: reconcile(index)):
        now = index.get(json_key(GROUP, "canary"))
        index.replace(json_key(GROUP, "canary"), before.data, now.etag, content_type=pages.JSON)
        assert any("does not show event 1" in problem.what for problem in check(index))
        repair()
        assert [file["yanked"] for file in document(index)["files"]] == [False, "x"]


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("canary", "yank", "not the file name of a wheel"),
        ("none-1.0-py3-none-any.whl", "yank", "is not in the index"),
        ("../x.whl", "yank", "not the file name of a wheel"),
        (FIRST, "yank", "one line of at most 500"),
    ],
)
def test_mistakes_change_nothing(index, target, kind, message):
    before = sorted(index.list(""))
    for reason in ("two\nlines", "\x9b2J", "\u202eevil"):
        with pytest.raises(UsageError, match=message):
            record_event(index, [target], kind, reason)
    assert sorted(index.list("")) == before


def test_a_claimed_wheel_that_is_not_listed_cannot_be_yanked(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    (tmp_path / f"index/{json_key(GROUP, 'canary')}").unlink()
    with pytest.raises(UsageError, match="not yet listed"):
        record_event(store, [FIRST], "yank", "x")


def test_a_removed_wheel_is_nowhere_and_its_name_stays_taken(store, make_wheel, put):
    for name in (FIRST, SECOND):
        put(store, make_wheel(name))
    remove(store, [FIRST], "holds a secret")
    assert listed(store) == [SECOND]
    assert check(store) == []
    assert set(store.list("whl/files/")) == {f"whl/files/{SECOND}", f"whl/files/{SECOND}.metadata"}
    for again in (lambda: None, lambda: reconcile(store)):
        again()
        assert check(store) == []
        for payload in ("x = 1\n", "x = 2\n"):
            with pytest.raises(PublishRefusedError, match=r"was removed|is taken"):
                put(store, make_wheel(FIRST, payload=payload))
        assert listed(store) == [SECOND]
    with pytest.raises(UsageError, match="was removed: holds a secret"):
        record_event(store, [FIRST], "yank", "x")


def test_a_promoted_wheel_is_in_both_groups_without_new_bytes(store, make_wheel, put):
    put(store, make_wheel(FIRST), group="staging")
    before = set(store.list("whl/files/"))
    record_event(store, [FIRST], "yank", "slow")
    promote(store, [FIRST], GROUP)
    assert set(store.list("whl/files/")) == before
    for group in ("staging", GROUP):
        [file] = json.loads(store.get(json_key(group, "canary")).data)["files"]
        assert (file["filename"], file["yanked"]) == (FIRST, "slow")
    assert pages.parse_list(store.get("whl/index.html").data, "") == {"staging", GROUP}
    assert check(store) == []
    promote(store, [FIRST], GROUP)  # again is not an error
    record_event(store, [FIRST], "unyank", "")
    assert check(store) == []
    assert reconcile(store).written == ()
    remove(store, [FIRST], "x")
    assert check(store) == []
    assert listed(store, "staging") == listed(store) == []


WORK = {
    "remove": lambda store: remove(store, [FIRST], "x"),
    "promote": lambda store: promote(store, [FIRST], "release"),
    "yank": lambda store: record_event(store, [FIRST], "yank", "x"),
}


@pytest.mark.parametrize("ended_by", ["again", "reconcile"])
@pytest.mark.parametrize("what", WORK)
def test_killed_at_any_operation(tmp_path, make_wheel, put, what, ended_by):
    """A reader finds nothing broken, and the next run ends it."""
    wheels = [make_wheel(FIRST), make_wheel(SECOND)]
    for number in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{number}"))
        for wheel in wheels:
            put(store, wheel)
        work = WORK[what]
        try:
            work(Recorder(store, after=kill_at(number)))
        except Killed:
            assert [problem for problem in check(store) if problem.broken] == [], number
            if ended_by == "again":
                work(store)
            else:
                reconcile(store)
            state = read_state(store, FIRST)
            assert ended_by == "reconcile" or state.number, "the event is what decides"
            assert listed(store) == ([SECOND] if state.removed else [FIRST, SECOND]), number
            assert gone(store, FIRST) is bool(state.removed), number
            if state.groups:
                assert listed(store, "release") == [FIRST], number
            assert check(store) == [], number
        else:
            break
    assert number > 8


NEW = "canary-2.0+cu118.sm35.avx-py3-none-any.whl"

AT_ONCE = {
    "publish and remove": ("publish", "remove new"),
    "publish and promote": ("publish", "promote new"),
    "publish again and remove": ("publish again", "remove"),
    "promote and remove": ("promote", "remove"),
    "promote and yank": ("promote", "yank"),
    "yank and promote": ("yank", "promote"),
    "reconcile and remove": ("reconcile", "remove"),
    "reconcile and publish": ("reconcile", "publish"),
    "reconcile and yank": ("reconcile", "yank"),
    "remove and publish again": ("remove", "publish again"),
    "promote and publish again": ("promote", "publish again"),
    "yank and publish again": ("yank", "publish again"),
}


@pytest.mark.parametrize("pair", AT_ONCE)
def test_another_change_between_any_two_operations(tmp_path, make_wheel, put, pair):
    """Both are done, or one is refused; what is offered is there, and events hold."""
    wheels = {name: make_wheel(name) for name in (FIRST, SECOND, NEW)}
    changes = {
        "publish": lambda store: put(store, wheels[NEW]),
        "publish again": lambda store: put(store, wheels[FIRST]),
        "remove": lambda store: remove(store, [FIRST], "x"),
        "remove new": lambda store: remove(store, [NEW], "x"),
        "promote": lambda store: promote(store, [FIRST], "release"),
        "promote new": lambda store: promote(store, [NEW], "release"),
        "yank": lambda store: record_event(store, [FIRST], "yank", "x"),
        "reconcile": reconcile,
    }
    first, second = (changes[name] for name in AT_ONCE[pair])
    before = open_store(str(tmp_path / "before"))
    for name in (FIRST, SECOND):
        put(before, wheels[name])
    for wanted in itertools.count(1):
        store = open_store(str(shutil.copytree(before.root, tmp_path / f"index-{wanted}")))

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                # the wheel may not be there yet, or was removed
                with contextlib.suppress(
                    UsageError, *([PublishRefusedError] if pair.startswith("remove") else [])
                ):
                    second(store)

        recorder = Recorder(store, after=interfere)
        with contextlib.suppress(PublishRefusedError, UsageError):
            first(recorder)
        if recorder.calls < wanted:
            break
        if pair.startswith("remove"):
            assert listed(store) == [SECOND], wanted
            reconcile(store)
            assert gone(store, FIRST), wanted
        assert check(store) == [], wanted
        shutil.rmtree(store.root)
    assert wanted > 5


def test_a_wheel_that_is_claimed_and_not_listed_is_not_promoted(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    with pytest.raises(Killed):
        put(
            Recorder(
                store, after=lambda _number, name: kill_at(1)(1, name) if name == "create" else None
            ),
            make_wheel(NEW),
        )
    assert store.get(record_key(NEW))
    with pytest.raises(UsageError, match="its publish did not finish"):
        promote(store, [NEW], "release")
    assert not [problem for problem in check(store) if problem.broken]


@pytest.mark.parametrize("command", [["promote", "--to", "release"], ["remove", "--reason", "x"]])
def test_a_wheel_that_is_named_twice_counts_once(tmp_path, make_wheel, put, command, capsys):
    put(open_store(str(tmp_path / "index")), make_wheel(NEW))
    assert main(["index", *command, NEW, NEW, "--index", str(tmp_path / "index"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wheels"] == [NEW]
