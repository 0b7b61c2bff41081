"""A copy in `whl/variant/` is offered as its wheel is: yank, quarantine and removal reach it, whatever is killed."""

import contextlib
import functools
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farm.cli.main import main
from farm.errors import PublishRefusedError, UsageError
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.lifecycle import record_event, remove
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.records import metadata_inside
from farm.index.signing import load_public, load_signer, new_key
from farm.index.variant_tree import html_key, tree_key, variant_json
from farm.index.variants import properties, publish_variant, published
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
        put[name] = functools.partial(_put, wheel, path, label, labelled, metadata, signer)
    put[OLD](store)
    reconcile(store, signer)
    return store.root, signer, {public.keyid: public}, put


def publish(store, wheel, signer):
    publish_wheel(
        store, Wheel(wheel, metadata_inside(wheel)), group="sm61-avx2", signer=signer, provenance={"slsa": {}}
    )


def _put(wheel, path, label, labelled, metadata, signer, store):
    record = published(store, wheel)
    publish_variant(store, path, record, label=label, labelled=labelled, metadata=metadata, signer=signer)


def copies(store):
    """The copies that installers see, with what their links say of a yank; and those whose bytes are there."""
    page = store.get(html_key("canary")).data.decode()
    shown = {name: "data-yanked" in line for line in page.splitlines() for name in (OLD_COPY, NEW_COPY) if name in line}
    return shown, {name for name in (OLD_COPY, NEW_COPY) if store.stat(f"whl/files/{name}")}


CHANGES = {
    "put": lambda store, _signer, put: put[NEW](store),
    "put again": lambda store, _signer, put: put[OLD](store),
    "yank": lambda store, signer, _put: record_event(store, OLD, "yank", "x", signer=signer),
    "yank new": lambda store, signer, _put: record_event(store, NEW, "yank", "x", signer=signer),
    "quarantine": lambda store, signer, _put: record_event(store, OLD, "quarantine", "x", signer=signer),
    "quarantine project": lambda store, signer, _put: record_event(store, "canary", "quarantine", "x", signer=signer),
    "remove": lambda store, signer, _put: remove(store, [OLD], "x", signer=signer),
    "remove new": lambda store, signer, _put: remove(store, [NEW], "x", signer=signer),
    "reconcile": lambda store, signer, _put: reconcile(store, signer),
}
ENDS = {
    "yank": ({OLD_COPY: True}, {OLD_COPY}),
    "quarantine": ({}, {OLD_COPY}),
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


def without_sources(store):
    """As an older farm left the tree: nothing says which wheel a copy is of, and no event had an effect."""
    path = store.root / tree_key("canary")
    tree = json.loads(path.read_text())
    del tree["wheels"]
    for copy in tree["files"]:
        del copy["source"], copy["stored"]
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("what", "ended_by"),
    [
        ("yank", "put again"),
        ("yank", "reconcile"),
        ("quarantine", "yank new"),
        ("quarantine project", "reconcile"),
        ("remove", "yank new"),
        ("remove", "reconcile"),
    ],
)
def test_the_tree_of_an_older_farm(tmp_path, made, what, ended_by):
    root, signer, trusted, put = made
    store = open_store(str(root))
    pages = {key: store.get(key).data for key in (html_key("canary"), tree_key("canary"))}
    taken = {path: path.read_bytes() for path in root.rglob("*_v3.whl*")}
    CHANGES[what](store, signer, put)
    for path, data in taken.items():
        path.write_bytes(data)
    for key, data in pages.items():
        (root / key).write_bytes(data)
    without_sources(store)
    told = {problem.key for problem in check(store)}
    assert tree_key("canary") in told
    with contextlib.suppress(UsageError):  # of a removed wheel
        CHANGES[ended_by](store, signer, put)
    if ended_by != "yank new":
        CHANGES["reconcile"](store, signer, put)
        assert check(store) == []
        assert verify_index(open_reader(str(root)), trusted, wheels=True).problems == ()
    else:
        reconcile(store, signer)
    assert copies(store) == ENDS[what]


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


def test_what_somebody_changed_in_the_tree_is_named_and_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(str(index_of(tmp_path, OLD, NEW)))
    record_event(store, NEW, "yank", "slow")
    page, tree = store.root / html_key("canary"), store.root / tree_key("canary")
    labels = page.with_name("canary-2.0-variants.json")
    for path, old, new in (
        (page, ' data-yanked="slow"', ""),
        (tree, '"slow"', "false"),
        (labels, "sm61_v3", "sm61_v4"),
    ):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        assert [problem for problem in check(store) if problem.broken], path
        reconcile(store)
        assert check(store) == [], path
    (store.root / "whl/files" / OLD_COPY).unlink()
    assert [problem.what for problem in check(store)] == [f"whl/files/{OLD_COPY} is not there"]
