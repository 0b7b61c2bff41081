"""A copy in `whl/variant/` is offered as its wheel is: yank, quarantine and removal reach it, whatever is killed."""

import contextlib
import functools
import itertools
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from farm.index.copying import copy_index
from farm.index.labels import properties, variant_json

from farm.base.errors import PublishRefusedError, UsageError
from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.keys import load_public, load_signer, new_key
from farm.index.lifecycle import promote, record_event, remove
from farm.index.pages import html_key, json_key
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.records import metadata_inside
from farm.index.variants import publish_variant, published
from farm.index.verify import verify_index
from farm.wheel.label import label_wheel
from tests.indexes.clients import clean
from tests.indexes.fixtures import Wheel, publish_wheel
from tests.integration.index.test_lifecycle import Discarding
from tests.integration.index.test_publish import Killed, kill_at
from tests.integration.index.test_variants import whole_wheel

OLD = "canary-1.0+cu118.sm61.avx2-py3-none-any.whl"
NEW = "canary-2.0+cu118.sm61.avx2-py3-none-any.whl"
OLD_COPY, NEW_COPY = "canary-1.0-py3-none-any-sm61_v3.whl", "canary-2.0-py3-none-any-sm61_v3.whl"


def index_of(folder, *names):
    """A folder index with wheels and their copies, made by the commands."""
    for name in names:
        wheel = whole_wheel(folder, name, f"name = {name!r}\n")
        for command in (["adopt", wheel, "--to", "sm61-avx2"], ["variant", wheel, "--variant", "sm61-avx2-py311"]):
            assert main(["index", *map(str, command), "--index", str(folder / "index")]) == 0
    return folder / "index"


def test_a_wheel_that_is_given_by_its_name_alone_is_asked_for_as_a_file(tmp_path, monkeypatch, capsys):
    index = index_of(tmp_path, OLD)
    monkeypatch.chdir(index)
    capsys.readouterr()
    assert main(["index", "variant", OLD, "--variant", "sm61-avx2-py311", "--index", str(index)]) == 2
    assert capsys.readouterr().err.startswith(
        f"farm: cannot read {OLD}: No such file or directory\n  next: give the path"
    )


SAID = {
    "yank": ["yank", NEW, "--reason", "slow"],
    "quarantine": ["quarantine", NEW, "--reason", "odd"],
    "remove": ["remove", NEW, "--reason", "secret"],
    "prune": ["prune", "--keep", "1"],
    "quarantine of the project": ["quarantine", "canary", "--reason", "stolen"],
}


@pytest.mark.parametrize("what", SAID)
def test_uv_gets_no_copy_of_a_wheel_that_is_withdrawn(tmp_path, monkeypatch, what):
    """And pip, which does not know variants, gets none at all."""
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2, so uv takes none of the wheels")
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD, NEW)
    forced = {"SM_ARCH": "6.1", "CUDA_DRIVER_VERSION": "12.8"}
    environment = clean(tmp_path, UV_PREVIEW_FEATURES="wheel-variants") | {
        f"NV_VARIANT_PROVIDER_FORCE_{name}": value for name, value in forced.items()
    }
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--no-cache", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--disable-pip-version-check"]
    root = (index / "whl/variant/simple").as_uri()

    def installed(client, *requirements):
        target = tmp_path / "target"
        shutil.rmtree(target, ignore_errors=True)
        command = [*client, "--target", target, "--index-url", root, *requirements]
        subprocess.run(command, env=environment, check=False, capture_output=True, timeout=120)
        found = [path.name for path in target.glob("*.dist-info")] if target.exists() else []
        return found[0].split("-")[1].removesuffix(".dist") if found else None

    assert installed(uv, "canary") == "2.0"
    assert main(["index", *SAID[what], "--index", str(index)]) == 0
    wanted = {"quarantine of the project": None, "prune": "2.0"}.get(what, "1.0")
    assert installed(uv, "canary") == wanted
    assert installed(pip, "canary") is None
    # A yanked wheel is there for whoever asks for its very version (PEP 592).
    version = "1.0" if what == "prune" else "2.0"
    assert installed(uv, f"canary=={version}") == ("2.0" if what == "yank" else None)
    gone = {"remove": NEW_COPY, "prune": OLD_COPY}.get(what)
    assert {path.name for path in (index / "whl/files").glob("canary-*-sm61_v3.whl")} == {OLD_COPY, NEW_COPY} - {gone}
    assert check(open_store(str(index))) == []
    if what in {"quarantine", "quarantine of the project"}:
        assert main(["index", *SAID[what], "--lift", "--index", str(index)]) == 0
        assert installed(uv, "canary") == "2.0"


@pytest.fixture
def made(tmp_path):
    """A signed index with two wheels, of which the older has a copy; the key; and what puts the other's there."""
    folder = tmp_path / "made"
    folder.mkdir()
    public = load_public(new_key(folder / "farm.key"))
    signer = load_signer(folder / "farm.key")
    store = open_store(str(folder / "index"))
    store.proved = True
    label, labelled = properties("sm61", (61,), "avx2")
    put = {}
    for name in (OLD, NEW):
        wheel = whole_wheel(folder, name, "x = 1\n")
        publish(store, wheel, signer)
        (folder / "copies").mkdir(exist_ok=True)
        path, metadata = label_wheel(wheel, folder / "copies", label, variant_json({label: labelled}))
        put[name] = functools.partial(_put, wheel, path, labelled, metadata, signer)
    put[OLD](store)
    return store.root, signer, {public.keyid: public}, put


def publish(store, wheel, signer):
    publish_wheel(
        store, Wheel(wheel, metadata_inside(wheel)), group="sm61-avx2", signer=signer, provenance={"slsa": {}}
    )


def _put(wheel, path, labelled, metadata, signer, store):
    publish_variant(store, path, published(store, wheel), labelled, metadata, signer)


def copies(store):
    """The copies that installers see, with what their links say of a yank; and those whose bytes are there."""
    page = store.get(html_key("variant", "canary")).data.decode()
    shown = {name: "data-yanked" in line for line in page.splitlines() for name in (OLD_COPY, NEW_COPY) if name in line}
    return shown, {name for name in (OLD_COPY, NEW_COPY) if store.stat(f"whl/files/{name}")}


CHANGES = {
    "put": lambda store, _signer, put: put[NEW](store),
    "put again": lambda store, _signer, put: put[OLD](store),
    "yank": lambda store, signer, _put: record_event(store, [OLD], "yank", "x", signer=signer),
    "yank new": lambda store, signer, _put: record_event(store, [NEW], "yank", "x", signer=signer),
    "quarantine": lambda store, signer, _put: record_event(store, [OLD], "quarantine", "x", signer=signer),
    "quarantine project": lambda store, signer, _put: record_event(store, ["canary"], "quarantine", "x", signer=signer),
    "remove": lambda store, signer, _put: remove(store, [OLD], "x", signer=signer),
    "promote": lambda store, signer, _put: promote(store, [OLD], "release", signer=signer),
    "remove new": lambda store, signer, _put: remove(store, [NEW], "x", signer=signer),
    "reconcile": lambda store, signer, _put: reconcile(store, signer),
}
ENDS = {
    "yank": ({OLD_COPY: True}, {OLD_COPY}),
    "quarantine": ({}, {OLD_COPY}),
    "promote": ({OLD_COPY: False}, {OLD_COPY}),
    "quarantine project": ({}, {OLD_COPY}),
    "remove": ({}, set()),
    "put": ({OLD_COPY: False, NEW_COPY: False}, {OLD_COPY, NEW_COPY}),
}


@pytest.mark.parametrize("what", [what for what in ENDS if what != "quarantine"])
def test_killed_at_any_operation(tmp_path, made, what):
    root, signer, trusted, put = made
    for number in itertools.count(1):
        store = open_store(str(shutil.copytree(root, tmp_path / f"index-{number}")))
        store.proved = True
        try:
            CHANGES[what](Discarding(store, after=kill_at(number)), signer, put)
        except Killed:
            assert [problem for problem in check(store) if problem.broken] == [], number
            told = verify_index(open_reader(str(store.root)), trusted, wheels=True).problems
            assert all(line.endswith("(yet)") for line in told), (number, told)
            began = list(store.list("events/"))
            # What was begun is ended by either; a copy's bytes come from whoever puts it there.
            CHANGES["reconcile" if began and number % 2 else what](store, signer, put)
            assert copies(store) == ENDS[what], number
            assert check(store) == [], number
            assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == (), number
            assert reconcile(store, signer).written == (), number
        else:
            break
        shutil.rmtree(store.root)
    assert number > 8


PAIRS = [
    ("put", "remove new"),
    ("put", "quarantine project"),
    ("yank", "put"),
    ("promote", "put again"),
    ("promote", "yank"),
    ("remove", "put again"),
    ("reconcile", "remove"),
]


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_another_change_between_any_two_operations(tmp_path, made, pair):
    root, signer, trusted, put = made
    first, second = (CHANGES[name] for name in pair)
    for wanted in itertools.count(1):
        store = open_store(str(shutil.copytree(root, tmp_path / f"index-{wanted}")))
        store.proved = True

        def interfere(number, name, wanted=wanted, store=store):
            if number == wanted:
                with contextlib.suppress(UsageError):  # removed already
                    second(store, signer, put)

        watched = Discarding(store, after=interfere)
        with contextlib.suppress(PublishRefusedError, UsageError):
            first(watched, signer, put)
        if watched.calls < wanted:
            break
        assert check(store) == [], wanted
        assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == (), wanted
        shown, there = copies(store)
        if "quarantine project" in pair:
            assert shown == {}, wanted
        if "remove" in pair:
            assert OLD_COPY not in {*shown, *there}, wanted
        if "remove new" in pair:
            assert NEW_COPY not in {*shown, *there}, wanted
        shutil.rmtree(store.root)
    assert wanted > 8


def test_the_tree_of_an_older_farm_is_offered_no_more(tmp_path, made):
    """It did not say which wheel a copy is of, so no removal could reach it."""
    root, signer, trusted, put = made
    store = open_store(str(root))
    put[NEW](store)
    for path in (root / json_key("variant", "canary"), *root.glob("records/*_v3.whl.json")):
        path.unlink()
    page = root / html_key("variant", "canary")
    page.write_text(page.read_text().replace('farm:generation" content="2"', 'farm:generation" content="7"'))
    assert 'content="7"' in page.read_text()
    assert html_key("variant", "canary") in {problem.key for problem in check(store) if problem.broken}
    reconcile(store, signer)
    assert check(store) == []
    assert copies(store)[0] == {}
    put[NEW](store)
    assert copies(store)[0] == {NEW_COPY: False}
    assert check(store) == []
    assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == ()


def test_a_copy_needs_its_wheel_in_the_index(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    index = index_of(tmp_path, OLD)
    variant = ["--variant", "sm61-avx2-py311", "--index", str(index)]
    wheel = whole_wheel(tmp_path, NEW, "x = 1\n")
    assert main(["index", "variant", str(wheel), *variant]) == 2
    assert "is not in the index" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    assert main(["index", "variant", str(whole_wheel(tmp_path / "other", OLD, "other = 1\n")), *variant]) == 7
    assert "is not the wheel that the index has" in capsys.readouterr().err
    assert main(["index", "remove", OLD, "--reason", "secret", "--index", str(index)]) == 0
    assert main(["index", "variant", str(tmp_path / OLD), *variant]) == 2
    assert "was removed: secret" in capsys.readouterr().err
    assert check(open_store(str(index))) == []


def test_what_somebody_changed_in_the_tree_is_named_and_mended(tmp_path, made):
    root, signer, trusted, put = made
    store = open_store(str(root))
    put[NEW](store)
    record_event(store, [NEW], "yank", "slow", signer=signer)
    page, tree = root / html_key("variant", "canary"), root / json_key("variant", "canary")
    labels = page.with_name("canary-2.0-variants.json")
    for path, old, new in (
        (page, ' data-yanked="slow"', ""),
        (tree, '"slow"', "false"),
        (tree, "canary-2.0-variants.json", "canary-3.0-variants.json"),
        (labels, "sm61_v3", "sm61_v4"),
        (tree, "{", "of somebody else"),
        (page, "farm:generation", "of somebody else"),
        (labels, "{", "of somebody else"),
    ):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        assert [problem for problem in check(store) if problem.broken], path
        assert verify_index(open_reader(str(root)), trusted).problems, path
        reconcile(store, signer)
        assert check(store) == [], path
        assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == (), path
    copy = root / "whl/files" / OLD_COPY
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    assert verify_index(open_reader(str(root)), trusted).problems == ()
    assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == (
        f"{OLD_COPY}: its bytes are not those of its page",
    )
    copy.unlink()
    assert {problem.what for problem in check(store)} == {f"whl/files/{OLD_COPY} is not there"}


def test_the_copy_of_a_rebuild_replaces_that_of_a_removed_wheel(tmp_path, monkeypatch, capsys):
    """Its name stays taken, so the rebuild's has a build number."""
    monkeypatch.chdir(tmp_path)
    store = open_store(str(index_of(tmp_path, OLD)))
    rebuild = OLD.replace(".avx2-", ".avx2.1-")
    assert main(["index", "remove", OLD, "--reason", "secret", "--index", str(store.root)]) == 0
    index_of(tmp_path, rebuild)
    capsys.readouterr()
    wanted = "canary-1.0-1-py3-none-any-sm61_v3.whl"
    page = store.get(html_key("variant", "canary")).data.decode()
    assert f">{wanted}</a>" in page
    assert OLD_COPY not in page
    with zipfile.ZipFile(store.root / "whl/files" / wanted) as archive:
        assert "Build: 1\nTag: py3-none-any\n" in archive.read("canary-1.0.dist-info/WHEEL").decode()
    assert check(store) == []


def test_a_wheel_that_was_deleted_by_hand_takes_its_copy_with_it(made):
    root, signer, trusted, put = made
    store = open_store(str(root))
    put[NEW](store)
    for path in (root / f"records/{OLD}.json", root / f"whl/files/{OLD}", root / f"whl/files/{OLD}.metadata"):
        path.unlink()
    reconcile(store, signer)
    assert copies(store) == ({NEW_COPY: False}, {NEW_COPY})
    assert check(store) == []
    assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == ()


def test_pages_of_somebody_else_do_not_keep_the_index_from_being_signed(made):
    root, signer, trusted, _put = made
    store = open_store(str(root))
    for key in ("whl/variant/simple/other/index.html", "whl/other/simple/canary/index.html", "whl/other/links.html"):
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_text("<html>of somebody else</html>")
    (root / html_key("variant", "canary")).write_text("of somebody else")
    reconcile(store, signer)
    assert copies(store)[0] == {OLD_COPY: False}
    assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == ()
    assert {problem.key for problem in check(store) if problem.broken} == {
        "whl/variant/simple/other/index.html",
        "whl/other/simple/canary/index.html",
        "whl/other/",
    }


def test_what_is_said_of_a_copy_alone(tmp_path, made):
    root, signer, trusted, put = made
    store = open_store(str(root))
    put[NEW](store)
    with pytest.raises(UsageError, match=f"is a copy of {re.escape(NEW)}"):
        promote(store, [NEW_COPY], "release", signer=signer)
    record_event(store, [NEW_COPY], "yank", "label", signer=signer)
    record_event(store, [NEW], "yank", "slow", signer=signer)
    record_event(store, [NEW], "unyank", "", signer=signer)
    assert copies(store)[0] == {OLD_COPY: False, NEW_COPY: True}
    remove(store, [OLD_COPY], "label", signer=signer)
    assert copies(store) == ({NEW_COPY: True}, {NEW_COPY})
    assert store.stat(f"whl/files/{OLD}") is not None
    assert check(store) == []
    assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == ()


def test_a_backup_has_the_copies_with_what_was_said_of_their_wheels(tmp_path, made):
    root, signer, trusted, put = made
    store = open_store(str(root))
    put[NEW](store)
    record_event(store, [OLD], "yank", "slow", signer=signer)
    remove(store, [NEW], "secret", signer=signer)
    for group in (None, "variant"):
        there = open_store(str(tmp_path / f"backup-{group}"))
        copy_index(store, there, group=group, signer=signer)
        assert copies(there) == ({OLD_COPY: True}, {OLD_COPY}), group
        assert check(there) == [], group
        assert verify_index(open_reader(str(there.root)), trusted, wheels=True).problems == (), group
