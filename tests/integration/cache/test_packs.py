"""Packs of a compiler cache through each kind of store: what is fetched, what is put, and what costs no build."""

import hashlib
import json
from pathlib import Path

import pytest

from farm.base.errors import InfrastructureError
from farm.engines.docker import DockerEngine
from farm.engines.swarm import SwarmEngine
from farm.index.backends import open_store
from farm.plan.build import resolve
from farm.plan.selectors import Selectors
from farm.plan.settings import load_settings
from farm.plan.variant import Variant
from farm.run import packs
from farm.run.packs import Pack, PackOutcome, chosen, collect_packs, prepare, push, scope, stored, wanted
from farm.run.report import Silent
from farm.run.workspace import Workspace

ROOT = Path(__file__).parents[3]
SCOPE = "canary-0.1.0-x86_64-debian-bookworm"


class Engine:
    """An engine's volumes, without jobs."""

    traits = DockerEngine.traits

    def __init__(self, volume="the machine's"):
        self.volume = volume

    def volume_id(self, name):
        assert name.startswith("farm-ccache-")
        assert name.endswith("-canary")
        return self.volume


@pytest.fixture(scope="module")
def plan():
    found = resolve(ROOT, Selectors(Variant.parse("cpu-avx-py311"), "canary"))
    return found.model_copy(update={"apt": ["ccache", *found.apt]})


@pytest.fixture
def workspace(tmp_path, store_url):
    (tmp_path / "dockerfiles").symlink_to(ROOT / "dockerfiles")
    settings = load_settings(ROOT).model_copy(update={"compiler_cache": store_url})
    return Workspace(tmp_path, settings, Silent())


@pytest.fixture
def store(store_url):
    return open_store(store_url)


@pytest.fixture
def said():
    return []


def name(data):
    return hashlib.sha256(data).hexdigest()


def place(store, data, made="20260101T000000", *, size=None, sha256=None):
    """A pack as it lies in the store."""
    key = f"packs/{SCOPE}/{made}-{len(data) if size is None else size}-{sha256 or name(data)}.tar"
    assert store.create(key, data, content_type="application/x-tar")
    return key


def given(dest):
    """The packs that a build is given, and the request."""
    return {path.stem for path in dest.glob("*.tar")}, json.loads((dest / "request.json").read_text())


def left(folder, data=None, **report):
    """What a build leaves."""
    (folder / "packs").mkdir(parents=True)
    whole = {"schema": 1, "held": [], "pack": name(data) if data else None, "objects": 3 if data else 0} | report
    (folder / "packs/report.json").write_text(json.dumps(whole))
    if data:
        (folder / f"packs/{name(data)}.tar").write_bytes(data)
    return folder


def test_packs_are_of_what_shares_objects(plan, workspace):
    assert scope(plan) == SCOPE
    others = [resolve(ROOT, Selectors(Variant.parse(variant), "canary")) for variant in ("sm35-avx2-py311",)]
    assert [scope(other) for other in others] == [SCOPE]
    assert wanted(workspace, plan)
    assert not wanted(workspace, others[0])  # its recipe compiles without ccache
    alone = Workspace(workspace.project, load_settings(ROOT), Silent())
    assert not wanted(alone, plan)  # the shipped ci/farm.yaml names no store


def test_from_one_machine_to_another(workspace, plan, store, tmp_path, said):
    one, two = Engine("one"), Engine("two")
    prepare(workspace, plan, one, tmp_path / "in", said.append)
    assert given(tmp_path / "in") == (set(), {"schema": 1, "scope": SCOPE, "stored": [], "max_bytes": 1 << 30})
    assert (tmp_path / "in/cache_packs.py").read_bytes() == (ROOT / "dockerfiles/scripts/cache_packs.py").read_bytes()

    data = b"what one compiled" * 100_000
    output = left(tmp_path / "out", data)
    (output / "wheel").mkdir()
    assert collect_packs(workspace, plan, one, output, said.append) == PackOutcome(
        (), name(data), 3, len(data), put=True
    )
    assert [path.name for path in output.iterdir()] == ["wheel"]
    (pack,) = stored(store, SCOPE)
    assert (pack.sha256, pack.size) == (name(data), len(data))

    for engine, packed in ((one, set()), (two, {name(data)})):
        prepare(workspace, plan, engine, tmp_path / "in", said.append)
        assert given(tmp_path / "in")[0] == packed
        assert given(tmp_path / "in")[1]["stored"] == [name(data)]
    assert (tmp_path / "in" / f"{name(data)}.tar").read_bytes() == data
    assert sorted(path.name for path in (tmp_path / "in").iterdir() if path.suffix == ".part") == []

    assert collect_packs(workspace, plan, two, left(tmp_path / "out2", held=[name(data)]), said.append) == PackOutcome(
        (name(data),)
    )
    prepare(workspace, plan, two, tmp_path / "in", said.append)
    assert given(tmp_path / "in")[0] == set()
    prepare(workspace, plan, Engine("two, made anew"), tmp_path / "in", said.append)
    assert given(tmp_path / "in")[0] == {name(data)}
    for empty in (Engine(None), type("Swarm", (Engine,), {"traits": SwarmEngine.traits})("none")):
        prepare(workspace, plan, empty, tmp_path / "in", said.append)
        assert given(tmp_path / "in")[0] == {name(data)}
    assert said[0] == "0 packs (0.0 MB) of 0 in the store"
    assert said[1] == "3 results (1.7 MB) are in the store"
    assert said[2:] == [f"{n} packs ({1.7 * n:.1f} MB) of 1 in the store" for n in (0, 1, 0, 1, 1, 1)]


def test_the_newest_first_within_the_bound(workspace, plan, store, tmp_path, monkeypatch, said):
    old, middle, new = (letter * 1000 for letter in (b"o", b"m", b"n"))
    for data, day in ((middle, 2), (new, 3), (old, 1)):
        place(store, data, f"2026010{day}T000000")
    monkeypatch.setattr(packs, "MAX_FETCH", 2500)
    prepare(workspace, plan, Engine(), tmp_path / "in", said.append)
    found, request = given(tmp_path / "in")
    assert found == {name(new), name(middle)}
    assert request["stored"] == [name(new), name(middle), name(old)]
    collect_packs(workspace, plan, Engine(), left(tmp_path / "out", held=sorted(found)), said.append)
    prepare(workspace, plan, Engine(), tmp_path / "in", said.append)
    assert given(tmp_path / "in")[0] == {name(old)}


def test_a_pack_stands_once_however_often_it_was_put():
    twice = [Pack("b", "20260102T000000", 10, "f" * 64), Pack("a", "20260101T000000", 10, "f" * 64)]
    assert chosen(twice, []) == twice[:1]
    assert chosen(twice, ["f" * 64]) == []


@pytest.mark.parametrize("how", ["other bytes", "longer", "shorter", "another name"])
def test_a_broken_pack_is_left_out_and_the_others_are_not(workspace, plan, store, tmp_path, said, how):
    good, bad = b"good" * 100, b"bad" * 100
    place(store, good)
    wrong = {
        "other bytes": {"sha256": "f" * 64},
        "longer": {"size": 299},
        "shorter": {"size": 301},
        "another name": {"sha256": name(good)[:-1] + ("0" if name(good)[-1] != "0" else "1")},
    }[how]
    key = place(store, bad, "20260102T000000", **wrong)
    prepare(workspace, plan, Engine(), tmp_path / "in", said.append)
    assert given(tmp_path / "in")[0] == {name(good)}
    assert said == [
        f"{key} is left out: its bytes are not what its name says",
        "1 packs (0.0 MB) of 2 in the store",
    ]
    assert len(list((tmp_path / "in").iterdir())) == 3


def test_names_that_are_no_packs_are_passed_over(store):
    data = b"x"
    kept = place(store, data)
    for other in (
        f"packs/{SCOPE}/{name(data)}.tar",
        f"packs/{SCOPE}/20260101T000000-0-{name(data)}.tar",
        f"packs/{SCOPE}/20260101T000000-{(1 << 30) + 1}-{name(data)}.tar",
        f"packs/{SCOPE}/20260101T000000-{'9' * 30}-{name(data)}.tar",
        f"packs/{SCOPE}/sub/20260101T000000-1-{name(data)}.tar",
        f"packs/{SCOPE}-other/20260101T000000-1-{name(data)}.tar",
        f"packs/{SCOPE}/readme.txt",
    ):
        assert store.create(other, data, content_type="text/plain")
    assert [pack.key for pack in stored(store, SCOPE)] == [kept]


def test_the_store_keeps_the_newest(store, tmp_path, monkeypatch):
    old = [place(store, bytes([65 + day]) * 1000, f"2026010{day}T000000") for day in range(1, 6)]
    elsewhere = f"packs/{SCOPE}-other/20250101T000000-1-{name(b'x')}.tar"
    store.create(elsewhere, b"x", content_type="application/x-tar")
    monkeypatch.setattr(packs, "MAX_STORED", 4000)
    file = tmp_path / "pack"
    file.write_bytes(b"new" * 300)
    assert push(store, SCOPE, file, name(file.read_bytes()))
    assert [pack.key for pack in stored(store, SCOPE)[1:]] == old[:1:-1]
    assert push(store, SCOPE, file, name(file.read_bytes())) is False
    monkeypatch.setattr(packs, "MAX_PACKS", 2)
    file.write_bytes(b"newer")
    assert push(store, SCOPE, file, name(b"newer"))
    assert {pack.sha256 for pack in stored(store, SCOPE)} == {name(b"newer"), name(b"new" * 300)}
    assert list(store.list(elsewhere)) == [elsewhere]


def test_a_pack_that_is_not_what_its_name_says_is_not_put(store, tmp_path, monkeypatch):
    file = tmp_path / "pack"
    file.write_bytes(b"data")
    with pytest.raises(InfrastructureError, match="changed while it was being stored"):
        push(store, SCOPE, file, "f" * 64)
    monkeypatch.setattr(packs, "MAX_PACK", 3)
    with pytest.raises(InfrastructureError, match="a pack of 4 bytes, at most 3"):
        push(store, SCOPE, file, name(b"data"))
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b" " * ((1 << 20) + 1),
        b'{"schema": 1, "held": ["../x"], "pack": null, "objects": 0}',
        b'{"schema": 1, "held": [], "pack": "../../secret", "objects": 1}',
        json.dumps({"schema": 1, "held": [], "pack": "e" * 64, "objects": -1}).encode(),
        json.dumps({"schema": 1, "held": [f"{n:064x}" for n in range(1000)], "pack": None, "objects": 0}).encode(),
    ],
    ids=range(8),
)
def test_a_report_that_is_none_costs_no_build(workspace, plan, store, tmp_path, said, report):
    output = tmp_path / "out"
    (output / "packs").mkdir(parents=True)
    (output / "packs/report.json").write_bytes(report)
    assert collect_packs(workspace, plan, Engine(), output, said.append) is None
    (line,) = said
    assert line.startswith("nothing is put into the store: ")
    assert list(output.iterdir()) == []
    assert list(store.list("")) == []


def test_a_pack_that_is_not_there_costs_no_build(workspace, plan, store, tmp_path, said):
    output = left(tmp_path / "out", held=["f" * 64], pack="e" * 64, objects=1)
    assert collect_packs(workspace, plan, Engine(), output, said.append) == PackOutcome(("f" * 64,))
    assert [line.partition(":")[0] for line in said] == ["nothing is put into the store"]
    assert list(store.list("")) == []


def test_a_build_that_tells_nothing_is_none(workspace, plan, tmp_path, said):
    (tmp_path / "out").mkdir()
    assert collect_packs(workspace, plan, Engine(), tmp_path / "out", said.append) is None
    assert said == []


def test_what_is_remembered_may_be_damaged(workspace, plan, store, tmp_path, said):
    data = b"x" * 100
    place(store, data)
    collect_packs(workspace, plan, Engine(), left(tmp_path / "out", held=[name(data)]), said.append)
    (note,) = (tmp_path / "artifacts/compiler-cache").iterdir()
    for text, fetched in ((note.read_text(), set()), ("{", {name(data)}), ("3", {name(data)}), ("\0", {name(data)})):
        note.write_text(text)
        prepare(workspace, plan, Engine(), tmp_path / "in", said.append)
        assert given(tmp_path / "in")[0] == fetched


@pytest.mark.parametrize("url", ["gopher://x", "s3://no-such-bucket?endpoint_url={moto}", "{file}"])
def test_a_store_that_cannot_be_had_costs_no_build(workspace, plan, tmp_path, moto_url, said, url):
    (tmp_path / "file").write_text("no folder")
    place_ = url.format(moto=moto_url, file=tmp_path / "file")
    away = Workspace(workspace.project, workspace.settings.model_copy(update={"compiler_cache": place_}), Silent())
    prepare(away, plan, Engine(), tmp_path / "in", said.append)
    assert given(tmp_path / "in") == (set(), {"schema": 1, "scope": SCOPE, "stored": None, "max_bytes": 1 << 30})
    output = left(tmp_path / "out", b"data", held=["f" * 64])  # what the cache had before counts all the same
    assert collect_packs(away, plan, Engine(), output, said.append) == PackOutcome(
        ("f" * 64,), name(b"data"), 3, 4, put=False
    )
    one, two = said
    assert one.startswith("the build goes on without other machines' packs: ")
    assert two.startswith("nothing is put into the store: ")
