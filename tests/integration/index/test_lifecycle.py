"""Remove, prune and promote: what stays, what goes, and that the next run ends what a killed one began."""

import contextlib
import functools
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
from farm.index.events import read_state
from farm.index.lifecycle import Retention, promote, prunable, prune, record_event, remove
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.records import record_key
from farm.index.signing import load_public, load_signer, new_key
from farm.index.verify import verify_index
from tests.integration.index.test_publish import Killed, Watched, kill_at

GROUP = "sm35-avx"
FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"


class Discarding(Watched):
    def discard(self, *arguments, **options):
        return self._call("discard", arguments, options)


@pytest.fixture
def key(tmp_path):
    public = load_public(new_key(tmp_path / "farm.key"))
    return load_signer(tmp_path / "farm.key"), {public.keyid: public}


def listed(store, group=GROUP):
    """The names on the JSON page, which every other page must show too."""
    page = json.loads(store.get(pages.json_key(group, "canary")).data)
    names = [file["filename"] for file in page["files"]]
    for place in (pages.html_key(group, "canary"), pages.links_key(group)):
        text = store.get(place).data.decode()
        assert [name for name in (FIRST, SECOND) if f">{name}</a>" in text] == names
    return names


def gone(store, name):
    return not [key for key in store.list("whl/") if name in key and key.startswith(("whl/files", "whl/attestations"))]


def test_a_removed_wheel_is_nowhere_and_its_name_stays_taken(store, make_wheel, put):
    for name in (FIRST, SECOND):
        put(store, make_wheel(name), channel="kepler")
    remove(store, [FIRST], "holds a secret")
    assert listed(store) == [SECOND]
    assert f">{FIRST}<" not in store.get("whl/kepler/sm35-avx/simple/canary/index.html").data.decode()
    assert check(store) == []
    assert set(store.list("whl/files/")) == {f"whl/files/{SECOND}", f"whl/files/{SECOND}.metadata"}
    for again in (lambda: None, lambda: reconcile(store)):
        again()
        assert check(store) == []
        for payload in ("x = 1\n", "x = 2\n"):
            with pytest.raises(PublishRefusedError, match=r"was removed \(holds a secret\)|is taken"):
                put(store, make_wheel(FIRST, payload=payload), channel="kepler")
        assert listed(store) == [SECOND]
    with pytest.raises(UsageError, match="was removed: holds a secret"):
        record_event(store, FIRST, "yank", "x")


def test_the_last_wheel_of_a_project_and_a_channel(store, make_wheel, put):
    put(store, make_wheel(FIRST), channel="kepler")
    put(store, make_wheel("canary-2.0-py3-none-any.whl"), channel="other")
    remove(store, [FIRST], "x")
    assert FIRST.encode() not in store.get("whl/kepler/sm35-avx/simple/canary/index.html").data
    remove(store, ["canary-2.0-py3-none-any.whl"], "x")
    assert check(store) == []
    assert reconcile(store).written == ()


@pytest.mark.parametrize("keeps_page", [True, False])
@pytest.mark.parametrize("names", [(FIRST,), (FIRST, SECOND)])
def test_a_name_stays_taken_after_record_and_bytes_were_deleted_by_hand(tmp_path, make_wheel, put, names, keeps_page):
    store, root = open_store(str(tmp_path / "index")), tmp_path / "index"
    for name in names:
        put(store, make_wheel(name))
    for path in (record_key(FIRST), f"whl/files/{FIRST}", f"whl/files/{FIRST}.metadata"):
        (root / path).unlink()
    if not keeps_page:
        (root / "catalog.json").unlink()
    reconcile(store)
    assert check(store) == []
    assert listed(store) == list(names[1:])
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".tmp" not in path.parts}
    with pytest.raises(PublishRefusedError):
        put(store, make_wheel(FIRST, payload="other = 1\n"))
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".tmp" not in path.parts}
    assert {path for path in after if before.get(path) != after[path]} <= {root / "catalog.json"}


def test_a_promoted_wheel_is_in_both_groups_without_new_bytes(store, make_wheel, put):
    put(store, make_wheel(FIRST), group="staging")
    before = set(store.list("whl/files/"))
    record_event(store, FIRST, "yank", "slow")
    promote(store, [FIRST], GROUP)
    assert set(store.list("whl/files/")) == before
    for group in ("staging", GROUP):
        [file] = json.loads(store.get(pages.json_key(group, "canary")).data)["files"]
        assert (file["filename"], file["yanked"]) == (FIRST, "slow")
    assert html.parse_root(store.get("whl/index.html").data, "") == {"staging", GROUP}
    assert check(store) == []
    assert promote(store, [FIRST], GROUP), "again is not an error"
    record_event(store, FIRST, "unyank", "")
    assert check(store) == []
    assert reconcile(store).written == ()
    remove(store, [FIRST], "x")
    assert check(store) == []
    assert listed(store, "staging") == listed(store) == []


WORK = {
    "remove": lambda store, **options: remove(store, [FIRST], "x", **options),
    "promote": lambda store, **options: promote(store, [FIRST], "release", **options),
}


@pytest.mark.parametrize("ended_by", ["again", "reconcile"])
@pytest.mark.parametrize("what", WORK)
def test_killed_at_any_operation(tmp_path, make_wheel, put, key, what, ended_by):
    """A reader finds nothing broken, signatures are sound or late, and the next run ends it."""
    signer, trusted = key
    options = {"signer": signer, "provenance": {"slsa": {}}, "channel": "kepler"}
    wheels = [make_wheel(FIRST), make_wheel(SECOND)]
    for number in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{number}"))
        store.proved = True
        for wheel in wheels:
            put(store, wheel, **options)
        work = functools.partial(WORK[what], signer=signer)
        try:
            work(Discarding(store, after=kill_at(number)))
        except Killed:
            assert [problem for problem in check(store) if problem.broken] == [], number
            told = verify_index(open_reader(str(store.root)), trusted, wheels=True).problems
            assert all(line.endswith("(yet)") for line in told), (number, told)
            if ended_by == "again":
                work(store)
            else:
                reconcile(store, signer)
            state = read_state(store, FIRST)
            assert ended_by == "reconcile" or state.removed or state.groups, "the event is what decides"
            assert listed(store) == ([SECOND] if state.removed else [FIRST, SECOND]), number
            assert gone(store, FIRST) is bool(state.removed), number
            if state.groups:
                assert listed(store, "release") == [FIRST], number
            assert check(store) == [], number
            assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == (), number
        else:
            break
    assert number > 8


@pytest.mark.parametrize("what", WORK)
def test_a_publish_of_the_same_wheel_between_any_two_operations(tmp_path, make_wheel, put, what):
    wheel = make_wheel(FIRST)
    for wanted in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{wanted}"))
        store.proved = True
        put(store, wheel)

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                try:
                    put(store, wheel)
                except PublishRefusedError:
                    assert what == "remove"

        watched = Discarding(store, before=interfere)
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
    assert "no rules" in capsys.readouterr().out
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


@pytest.mark.parametrize("command", [["remove", "--reason", "x"], ["promote", "--to", "release"]])
def test_a_dry_run_writes_nothing(aged, command, capsys):
    name = "canary-2.0+cu118.sm35.avx-py3-none-any.whl"
    before = {key: aged.get(key).data for key in aged.list("")}
    assert main(["index", *command, name, "--index", str(aged.root), "--dry-run"]) == 0
    assert name in capsys.readouterr().out
    assert {key: aged.get(key).data for key in aged.list("")} == before
    assert main(["index", *command, name, "--index", str(aged.root)]) == 0
    assert check(aged) == []
    with pytest.raises(UsageError):
        remove(aged, ["none-1.0-py3-none-any.whl"], "x")


NEW = "canary-2.0+cu118.sm35.avx-py3-none-any.whl"

AT_ONCE = {
    "publish and remove": ("publish", "remove new"),
    "publish and promote": ("publish", "promote new"),
    "publish again and remove": ("publish again", "remove"),
    "a further group and quarantine of the project": ("publish elsewhere", "quarantine project"),
    "promote and remove": ("promote", "remove"),
    "promote and yank": ("promote", "yank"),
    "yank and promote": ("yank", "promote"),
    "promote and quarantine of the project": ("promote", "quarantine project"),
    "quarantine of the project and promote": ("quarantine project", "promote"),
    "reconcile and remove": ("reconcile", "remove"),
    "reconcile and publish": ("reconcile", "publish"),
    "reconcile and yank": ("reconcile", "yank"),
}


@pytest.mark.parametrize("pair", AT_ONCE)
def test_another_change_between_any_two_operations(tmp_path, make_wheel, put, key, pair):
    """Both are done, or one is refused; what is offered is there, events hold, and signatures cover the pages."""
    signer, trusted = key
    options = {"signer": signer, "provenance": {"slsa": {}}, "channel": "kepler"}
    wheels = {name: make_wheel(name) for name in (FIRST, SECOND, NEW)}
    changes = {
        "publish": lambda store: put(store, wheels[NEW], **options),
        "publish again": lambda store: put(store, wheels[FIRST], **options),
        "publish elsewhere": lambda store: put(store, wheels[NEW], **options, group="further"),
        "remove": lambda store: remove(store, [FIRST], "x", signer=signer),
        "remove new": lambda store: remove(store, [NEW], "x", signer=signer),
        "promote": lambda store: promote(store, [FIRST], "release", signer=signer),
        "promote new": lambda store: promote(store, [NEW], "release", signer=signer),
        "yank": lambda store: record_event(store, FIRST, "yank", "x", signer=signer),
        "quarantine project": lambda store: record_event(store, "canary", "quarantine", "x", signer=signer),
        "reconcile": lambda store: reconcile(store, signer),
    }
    first, second = (changes[name] for name in AT_ONCE[pair])
    before = open_store(str(tmp_path / "before"))
    before.proved = True
    for name in (FIRST, SECOND):
        put(before, wheels[name], **options)
    for wanted in itertools.count(1):
        store = open_store(str(shutil.copytree(before.root, tmp_path / f"index-{wanted}")))
        store.proved = True

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                # the wheel may not be there yet
                with contextlib.suppress(UsageError):
                    second(store)

        watched = Discarding(store, after=interfere)
        with contextlib.suppress(PublishRefusedError, UsageError):
            first(watched)
        if watched.calls < wanted:
            break
        assert check(store) == [], wanted
        assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == (), wanted
        shutil.rmtree(store.root)
    assert wanted > 5


def test_a_wheel_that_is_claimed_and_not_listed_is_not_promoted(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    store.proved = True
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


def test_a_quarantined_project_stays_so_in_every_further_group(store, make_wheel, put):
    put(store, make_wheel(FIRST))
    record_event(store, "canary", "quarantine", "stolen")
    put(store, make_wheel(NEW), group="further")
    promote(store, [FIRST], "release")
    for group in (GROUP, "further", "release"):
        page = json.loads(store.get(pages.json_key(group, "canary")).data)
        assert (page["files"], page["project-status"]["status"]) == ([], "quarantined")
    assert check(store) == []


def test_prune_ends_what_a_killed_prune_began(aged):
    rules = Retention(1, rebuilds=True)
    taken = prunable(aged, rules)
    for number in itertools.count(1):
        root = shutil.copytree(aged.root, aged.root.with_name(f"killed-{number}"))
        store = open_store(str(root))
        store.proved = True
        try:
            remove(Discarding(store, after=kill_at(number)), taken, "old")
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
        copy.proved = True
        rules, promoted = Retention(1, rebuilds=True), []

        def interfere(at, name, number=number, copy=copy, promoted=promoted):
            if at == number:
                with contextlib.suppress(UsageError):
                    promote(copy, [FIRST], "release")
                    promoted.append(FIRST)

        watched = Discarding(copy, after=interfere)
        taken = prune(watched, prunable(copy, rules))
        if watched.calls < number:
            break
        assert taken == [name for name in names[:1] if name not in promoted], number
        assert (copy.stat(f"whl/files/{FIRST}") is not None) is bool(promoted), number
        assert check(copy) == [], number
    assert number > 8


def test_a_project_that_is_quarantined_before_the_catalogue_has_it(tmp_path, make_wheel, put):
    """Its first publisher was killed in between; a further group gets it at the same time, and has it quarantined."""
    before, wheel = open_store(str(tmp_path / "before")), make_wheel(NEW)
    before.proved = True
    put(before, make_wheel("torch-1.0-py3-none-any.whl"))

    def kill_late(_number, name):
        # The catalogue comes after links.html.
        if name == "replace" and FIRST.encode() in before.get(pages.links_key(GROUP)).data:
            raise Killed

    with pytest.raises(Killed):
        put(Watched(before, before=kill_late), make_wheel(FIRST))
    for wanted in itertools.count(1):
        store = open_store(str(shutil.copytree(before.root, tmp_path / f"index-{wanted}")))
        store.proved = True

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                record_event(store, "canary", "quarantine", "stolen")

        watched = Watched(store, after=interfere)
        put(watched, wheel, group="further")
        if watched.calls < wanted:
            break
        page = json.loads(store.get(pages.json_key("further", "canary")).data)
        assert (page["files"], page["project-status"]["status"]) == ([], "quarantined"), wanted
        assert check(store) == [], wanted
    assert wanted > 8


def test_a_project_is_known_by_any_spelling(tmp_path, make_wheel, put):
    store = open_store((tmp_path / "index").as_uri())
    put(store, make_wheel("my_canary-1.0-py3-none-any.whl"))
    record_event(store, "My.Canary", "quarantine", "stolen key")
    key = pages.json_key(GROUP, "my-canary")
    assert pages.parse_page(store.get(key).data, key).project_status.status == "quarantined"
    record_event(store, "MY_CANARY", "mirrors", "", mirrors=["https://wheels.example.org"])
    assert pages.parse_page(store.get(key).data, key).alternate_locations is not None
    with pytest.raises(UsageError, match="no project 'my-canaries'"):
        record_event(store, "My.Canaries", "quarantine", "x")
    assert check(store) == []


@pytest.mark.parametrize("command", [["promote", "--to", "release"], ["remove", "--reason", "x"]])
def test_a_wheel_that_is_named_twice_counts_once(aged, command, capsys):
    assert main(["index", *command, NEW, NEW, "--index", str(aged.root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wheels"] == [NEW]
