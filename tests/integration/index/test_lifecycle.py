"""Yank, remove, prune and promote: what pages show, what stays, and that the next run ends what a killed one began."""

import contextlib
import itertools
import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from farm.base.errors import PublishRefusedError, UsageError
from farm.cli.main import main
from farm.index import html, pages
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.layout import html_key, json_key, record_key
from farm.index.lifecycle import Retention, prunable, prune, record_event
from farm.index.reconcile import reconcile
from farm.index.records import read_state
from tests.indexes.watched import FIRST, GROUP, SECOND, Killed, Watched, kill_at

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
    assert [(event["kind"], event["reason"]) for event in events] == [("yank", "wrong <GPU>"), ("unyank", "")]
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
    with pytest.raises(UsageError, match=message):
        record_event(index, [target], kind, "two\nlines")
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
    assert html.parse_list(store.get("whl/index.html").data, "") == {"staging", GROUP}
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
            work(Watched(store, after=kill_at(number)))
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


@pytest.mark.parametrize("what", WORK)
def test_a_publish_of_the_same_wheel_between_any_two_operations(tmp_path, make_wheel, put, what):
    wheel = make_wheel(FIRST)
    for wanted in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{wanted}"))
        put(store, wheel)

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                try:
                    put(store, wheel)
                except PublishRefusedError:
                    assert what == "remove"

        watched = Watched(store, before=interfere)
        WORK[what](watched)
        if watched.calls < wanted:
            break
        if what == "remove":
            assert listed(store) == [], wanted
            reconcile(store)
            assert gone(store, FIRST), wanted
        assert check(store) == [], wanted


NOW = datetime(2026, 11, 21, tzinfo=UTC)


def at(days):
    return NOW - timedelta(days=days)


@pytest.fixture
def aged(tmp_path, make_wheel, put):
    """Versions with their age in days; the yanked and the promoted are wheels like others."""
    store = open_store(str(tmp_path / "index"))
    for version, days in {
        "1.0+cu118.sm35.avx": 400,
        "1.0+cu118.sm35.avx.1": 300,
        "1.0+cu118.sm35.avx.2": 200,
        "2.0rc1+cu118.sm35.avx": 150,
        "2.0+cu118.sm35.avx": 100,
        "3.0rc1+cu118.sm35.avx": 10,
    }.items():
        put(store, make_wheel(f"canary-{version}-py3-none-any.whl"), upload_time=at(days))
    return store


@pytest.mark.parametrize(
    ("rules", "taken"),
    [
        (Retention(1, rebuilds=True), ["1.0+cu118.sm35.avx", "1.0+cu118.sm35.avx.1"]),
        (Retention(2, rebuilds=True), ["1.0+cu118.sm35.avx"]),
        (Retention(1, timedelta(days=350), rebuilds=True), ["1.0+cu118.sm35.avx"]),
        (Retention(1, pre=True), ["2.0rc1+cu118.sm35.avx"]),
        (Retention(1, timedelta(days=151), pre=True), []),
        (Retention(3), ["1.0+cu118.sm35.avx", "1.0+cu118.sm35.avx.1", "1.0+cu118.sm35.avx.2"]),
        (Retention(5), []),
    ],
)
def test_retention_rules(aged, rules, taken):
    assert prunable(aged, rules, now=NOW) == [f"canary-{version}-py3-none-any.whl" for version in taken]
    assert prunable(aged, rules, now=NOW, group="sm37-avx") == []


def test_prune_says_what_it_would_do_and_does_it(aged, capsys):
    promote(aged, ["canary-1.0+cu118.sm35.avx-py3-none-any.whl"], "release")
    command = [
        "index",
        "prune",
        "--json",
        "--index",
        str(aged.root),
        "--keep",
        "1",
        "--older-than",
        "90d",
        "--rebuilds",
    ]
    before = sorted(aged.list(""))
    assert main([*command, "--dry-run"]) == 0
    taken = json.loads(capsys.readouterr().out)["wheels"]
    assert taken == ["canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"], "a promoted wheel stays"
    assert sorted(aged.list("")) == before
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["wheels"] == taken
    assert check(aged) == []
    assert prunable(aged, Retention(1, timedelta(days=90), rebuilds=True)) == []


def project(folder, store, rules):
    """A project whose ci/farm.yaml has these retention rules."""
    (folder / "ci").mkdir(parents=True)
    (folder / "ci/farm.yaml").write_text(json.dumps({"index": str(store.root), "retention": rules}))
    return ["--project", str(folder), "index", "prune"]


def test_prune_without_a_rule_applies_those_of_the_project(aged, tmp_path, capsys):
    rules = [
        {"keep": 2, "rebuilds": True, "older_than": "50w"},
        {"keep": 1, "pre": True, "older_than": "90d"},
        {"keep": 1, "group": "sm37-avx"},
    ]
    command = project(tmp_path / "project", aged, rules)
    taken = [f"canary-{version}+cu118.sm35.avx-py3-none-any.whl" for version in ("1.0", "2.0rc1")]
    assert main([*command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert [name for name in taken if name in out] == taken
    assert "2 would be removed" in out
    assert main(command) == 0
    assert check(aged) == []
    assert {name for name in taken if read_state(aged, name).removed == "pruned"} == set(taken)
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"wheels": [], "dry_run": False}


def test_prune_without_any_rule_removes_nothing(aged, tmp_path, capsys):
    before = sorted(aged.list(""))
    assert main(project(tmp_path / "project", aged, [])) == 0
    said = capsys.readouterr()
    assert "no rules" in said.err
    assert main([*project(tmp_path / "other", aged, []), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"wheels": [], "dry_run": False}
    assert sorted(aged.list("")) == before
    for half in (["--pre"], ["--rebuilds"], ["--older-than", "1d"], ["--group", "sm35-avx"]):
        assert main(["--project", str(tmp_path / "project"), "index", "prune", *half]) == 2
        assert "--keep N" in capsys.readouterr().err
    assert sorted(aged.list("")) == before


@pytest.mark.parametrize(
    "rule", [{"keep": 0}, {"pre": True}, {"keep": 1, "older_than": "3 months"}, {"keep": 1, "x": 1}]
)
def test_a_wrong_rule_is_a_mistake_in_the_configuration(aged, tmp_path, rule, capsys):
    assert main(project(tmp_path / "project", aged, [rule])) == 2
    assert "ci/farm.yaml" in capsys.readouterr().err


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
                # the wheel may not be there yet
                with contextlib.suppress(UsageError):
                    second(store)

        watched = Watched(store, after=interfere)
        with contextlib.suppress(PublishRefusedError, UsageError):
            first(watched)
        if watched.calls < wanted:
            break
        assert check(store) == [], wanted
        shutil.rmtree(store.root)
    assert wanted > 5


def test_a_wheel_that_is_claimed_and_not_listed_is_not_promoted(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    with pytest.raises(Killed):
        put(
            Watched(store, after=lambda _number, name: kill_at(1)(1, name) if name == "create" else None),
            make_wheel(NEW),
        )
    assert store.get(record_key(NEW))
    with pytest.raises(UsageError, match="its publish did not finish"):
        promote(store, [NEW], "release")
    assert not [problem for problem in check(store) if problem.broken]


def test_prune_ends_what_a_killed_prune_began(aged):
    rules = Retention(1, rebuilds=True)
    taken = prunable(aged, rules)
    for number in itertools.count(1):
        root = shutil.copytree(aged.root, aged.root.with_name(f"killed-{number}"))
        store = open_store(str(root))
        try:
            remove(Watched(store, after=kill_at(number)), taken, "old")
        except Killed:
            remove(store, prunable(store, rules), "old")
            assert check(store) == [], number
            assert prunable(store, rules) == []
        else:
            break
    assert number > 5


def test_a_wheel_that_is_promoted_while_prune_runs_stays(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    names = (FIRST, SECOND, NEW)
    for name in names:
        put(store, make_wheel(name), upload_time=at(400))
    for number in itertools.count(1):
        copy = open_store(str(shutil.copytree(store.root, tmp_path / f"index-{number}")))
        rules, promoted = Retention(1, rebuilds=True), []

        def interfere(at, name, number=number, copy=copy, promoted=promoted):
            if at == number:
                with contextlib.suppress(UsageError):
                    promote(copy, [FIRST], "release")
                    promoted.append(FIRST)

        watched = Watched(copy, after=interfere)
        taken = prune(watched, prunable(copy, rules))
        if watched.calls < number:
            break
        assert taken == [name for name in names[:1] if name not in promoted], number
        assert (copy.stat(f"whl/files/{FIRST}") is not None) is bool(promoted), number
        assert check(copy) == [], number
    assert number > 8


@pytest.mark.parametrize("command", [["promote", "--to", "release"], ["remove", "--reason", "x"]])
def test_a_wheel_that_is_named_twice_counts_once(aged, command, capsys):
    assert main(["index", *command, NEW, NEW, "--index", str(aged.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wheels"] == [NEW]
