"""Every other change of an index, killed after each operation of the store and run again; and every dry run."""

import functools
import itertools
import json
import shutil

import pytest

from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.copying import copy_index
from farm.index.directory import DirectoryStore
from farm.index.keys import change, newest_root, online_keys, remember_online, start
from farm.index.lifecycle import promote, record_event
from farm.index.probe import keep_proof
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.roles import UNSIGNED, renew
from farm.index.signing import load_public, load_signer, new_key
from farm.index.verify import verify_index
from tests.indexes.fixtures import build_wheel, publish_wheel
from tests.integration.index.test_publish import Killed, Watched, content, kill_at

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"


class Keys:
    """A root key, a publisher's and two further ones."""

    def __init__(self, folder):
        self.files = {name: folder / f"{name}.key" for name in ("root", "farm", "next", "root-2")}
        self.public = {name: load_public(new_key(file)) for name, file in self.files.items()}
        self.signers = {name: load_signer(file) for name, file in self.files.items()}
        self.trusted = {self.public["root"].keyid: self.public["root"]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def made(tmp_path_factory, keys):
    """A signed index with an offline root key, two wheels in a channel, and a group that was promoted to."""
    folder = tmp_path_factory.mktemp("made")
    store = open_store(str(folder / "index"))
    keep_proof(store)
    start(store, keys.signers["root"], [keys.public["farm"]])
    remember_online(store)
    options = {"signer": keys.signers["farm"], "channel": "kepler", "provenance": {"slsa": {}}}
    for name in (FIRST, SECOND):
        publish_wheel(store, build_wheel(folder, name), **options)
    promote(store, [SECOND], "release", signer=keys.signers["farm"])
    return folder / "index"


def damaged(store, keys=None):
    for key in ("catalog.json", "whl/sm35-avx/v1-json/canary/index.json", "whl/release/links.html", "whl/index.html"):
        (store.root / key).unlink()


def rotated(store, keys):
    change(store, keys.signers["root"], add=[keys.public["next"]])
    remember_online(store)
    reconcile(store, keys.signers["next"])


def event(kind, target):
    return lambda store, keys: record_event(store, target, kind, "why", signer=keys.signers["farm"])


def mirrored(store, keys):
    record_event(store, "canary", "mirrors", "", mirrors=["https://mirror.example.org"], signer=keys.signers["farm"])


def key_change(**options):
    def work(store, keys):
        given = {
            name: [keys.public[each] for each in value] if name == "add" else value for name, value in options.items()
        }
        if "revoke" in given:
            given |= {"revoke": keys.public[given["revoke"]], "reason": "stolen"}
        if "successor" in given:
            given["successor"] = keys.signers[given["successor"]]
        change(store, keys.signers["root"], **given)
        remember_online(store)

    return work


def nothing(store, keys=None):
    pass


WORK = {
    "yank": (nothing, event("yank", FIRST)),
    "quarantine": (nothing, event("quarantine", FIRST)),
    "quarantine of a project": (nothing, event("quarantine", "canary")),
    "unyank": (event("yank", FIRST), event("unyank", FIRST)),
    "mirrors": (nothing, mirrored),
    "sign": (nothing, lambda store, keys: renew(store, keys.signers["farm"])),
    "reconcile": (damaged, lambda store, keys: reconcile(store, keys.signers["farm"])),
    "reconcile with a new key": (
        key_change(add=["next"]),
        lambda store, keys: reconcile(store, keys.signers["next"]),
    ),
    "key rotate": (nothing, key_change(add=["next"])),
    "key revoke": (rotated, key_change(revoke="farm")),
    "key rotate --new-root-key": (nothing, key_change(successor="root-2")),
    "key renew": (nothing, key_change()),
}


@pytest.mark.parametrize("what", WORK)
def test_killed_at_any_operation_and_run_again(tmp_path, made, keys, what):
    """A reader finds nothing broken that was not, signed pages are as signed or newer, and the next run ends it."""
    prepare, work = WORK[what]
    shutil.copytree(made, tmp_path / "before")
    prepare(open_store(str(tmp_path / "before")), keys)
    were = {problem.key for problem in check(open_store(str(tmp_path / "before"))) if problem.broken}
    for number in itertools.count(1):
        root = shutil.copytree(tmp_path / "before", tmp_path / f"index-{number}")
        store = open_store(str(root))
        store.proved = True
        try:
            work(Watched(store, after=kill_at(number)), keys)
        except Killed:
            assert {problem.key for problem in check(store) if problem.broken} <= were | {"whl/index.html"}, number
            told = () if were else verify_index(open_reader(str(root)), keys.trusted).problems
            assert all(line.endswith("(yet)") or "another key" in line or "revoked" in line for line in told), told
            work(store, keys)
            finished = content(store)
            assert check(store) == [], number
            if "key" not in what or "reconcile" in what:
                assert verify_index(open_reader(str(root)), keys.trusted, wheels=True).problems == (), number
            work(store, keys)
            assert finished.keys() - content(store).keys() == set()
        else:
            break
        shutil.rmtree(root)
    assert number > 2
    if what.startswith("key"):
        assert set(online_keys(newest_root(store).signed)) == {
            keys.public[name].keyid
            for name in {"key rotate": ("farm", "next"), "key revoke": ("next",)}.get(what, ("farm",))
        }


def test_a_root_whose_start_was_killed_is_started_again(tmp_path, keys):
    store = open_store(str(tmp_path / "index"))
    begin = functools.partial(start, signer=keys.signers["root"], online=[keys.public["farm"]])
    with pytest.raises(Killed):
        begin(Watched(store, after=kill_at(1)))
    assert begin(store)
    assert not start(store, keys.signers["root-2"], [keys.public["farm"]]), "another root is refused"
    assert not start(store, keys.signers["root"], [keys.public["next"]]), "and so are other publishers"


COMMANDS = {
    "yank": ["yank", FIRST, "--reason", "x"],
    "quarantine": ["quarantine", "canary", "--reason", "x"],
    "mirrors": ["mirrors", "canary", "https://mirror.example.org"],
    "remove": ["remove", FIRST, SECOND, "--reason", "x"],
    "prune": ["prune", "--keep", "1", "--rebuilds"],
    "promote": ["promote", FIRST, "--to", "public"],
    "adopt": ["adopt", "{folder}", "--to", "sm35-avx"],
    "reconcile": ["reconcile"],
    "sign": ["sign"],
    "dependencies": ["dependencies", "--from", "{folder_uri}"],
    "copy": ["copy", "--to", "{there}"],
    "key init": ["key", "init", "{next}.pub", "--root-key", "{root}"],
    "key rotate": ["key", "rotate", "{next}.pub", "--root-key", "{root}"],
    "key revoke": ["key", "revoke", "{farm}.pub", "--reason", "x", "--root-key", "{root}"],
    "key renew": ["key", "renew", "--root-key", "{root}"],
}
SIGNS = ["--signing-key", "{farm}"]


@pytest.mark.parametrize("what", COMMANDS)
def test_a_dry_run_writes_nothing_and_says_what_would_be(tmp_path, made, keys, what, capsys):
    """And without it the command does it: a dry run of what does nothing would prove nothing."""
    root = shutil.copytree(made, tmp_path / "index")
    store = open_store(str(root))
    if what == "reconcile":
        damaged(store)
    if what == "key init":
        shutil.rmtree(root / "whl/keys")
    if what == "key revoke":
        rotated(store, keys)
    wheel = build_wheel(tmp_path / "wheels", "canary-3.0-py3-none-any.whl").path
    words = {"folder": wheel.parent, "folder_uri": wheel.parent.as_uri(), "there": tmp_path / "there"}
    words |= keys.files
    signs = [] if what.startswith("key") else SIGNS
    command = ["index", *(word.format(**words) for word in (*COMMANDS[what], *signs)), "--index", str(root)]
    keep_proof(store)  # else the proof of a copied index is what changes
    before = content(store)
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "would" in said, said
    assert content(store) == before
    assert not (tmp_path / "there").exists()
    assert main(command) == 0
    assert "would" not in capsys.readouterr().out
    if what not in {"copy", "dependencies"}:
        assert content(store) != before


@pytest.mark.parametrize(
    "what", [each for each in COMMANDS if each not in {"copy", "sign"} and not each.startswith("key")]
)
def test_a_change_of_a_signed_index_without_the_key_is_said(tmp_path, made, keys, what, capsys):
    """Users who verify it are refused from then on. An unsigned copy is made on purpose."""
    root = shutil.copytree(made, tmp_path / "index")
    wheel = build_wheel(tmp_path / "wheels", "canary-3.0-py3-none-any.whl").path
    words = {"folder": wheel.parent, "folder_uri": wheel.parent.as_uri(), **keys.files}
    command = ["index", *(word.format(**words) for word in COMMANDS[what]), "--index", str(root), "--json", "-n"]
    for signs in ([], [word.format(**words) for word in SIGNS]):
        assert main([*command, *signs]) == 0
        said = capsys.readouterr()
        assert (UNSIGNED in said.err) is not bool(signs)
        assert isinstance(json.loads(said.out), dict)


@pytest.mark.parametrize(("command", "reads"), [("yank WHEEL --reason x", 1), ("check --fix", 2)])
def test_that_nobody_signs_is_known_without_a_request(tmp_path, made, command, reads, monkeypatch):
    """It is read off the catalogue that comes with the store's proof. `check` reads it to see an index at all, too."""
    asked, said, get = [], [], DirectoryStore.get
    monkeypatch.setattr(DirectoryStore, "get", lambda self, key: asked.append(key) or get(self, key))
    monkeypatch.setattr("farm.cli.show.note", lambda text: said.append((text, asked.count("catalog.json"))))
    root = shutil.copytree(made, tmp_path / "index")
    keep_proof(open_store(str(root)))
    asked.clear()
    assert main(["index", *command.replace("WHEEL", FIRST).split(), "--index", str(root)]) in {0, 1}
    assert said == [(f"farm: {UNSIGNED}", reads)]


def test_a_dry_run_of_a_mistake_is_the_mistake(tmp_path, made, capsys):
    root = shutil.copytree(made, tmp_path / "index")
    for command in (
        ["remove", "none-1.0-py3-none-any.whl", "--reason", "x"],
        ["promote", "none-1.0-py3-none-any.whl", "--to", "release"],
        ["yank", "none-1.0-py3-none-any.whl", "--reason", "x"],
    ):
        assert main(["index", *command, "--index", str(root), "--dry-run"]) == 2
        assert "is not in the index" in capsys.readouterr().err


def test_a_store_is_tried_out_before_any_command_writes_to_it(tmp_path, made, keys):
    """Else a store that takes tags without their quotes alone (Ceph) refuses every change."""
    for what in ("yank", "sign", "promote"):
        root = shutil.copytree(made, tmp_path / what)
        (root / "catalog.json").unlink()
        command = [word.format(farm=keys.files["farm"]) for word in (*COMMANDS[what], *SIGNS)]
        assert main(["index", *command, "--index", str(root)]) == 0
        assert b'"_proof"' in (root / "catalog.json").read_bytes(), what


def test_a_copy_is_not_older_than_an_index_that_was_published_to_many_times_a_second(tmp_path, make_wheel, put, keys):
    """Users of an index that moves have seen its versions; those of the copy begin with the clock."""
    source, there = open_store(str(tmp_path / "index")), open_store(str(tmp_path / "moved"))
    for number in range(12):
        put(
            source,
            make_wheel(f"canary-{number}-py3-none-any.whl"),
            provenance={"slsa": {}},
            signer=keys.signers["farm"],
        )
    trusted = {keys.public["farm"].keyid: keys.public["farm"]}
    assert verify_index(open_reader(str(source.root)), trusted, state=tmp_path / "state").problems == ()
    copy_index(source, there, signer=keys.signers["farm"])
    assert verify_index(open_reader(str(there.root)), trusted, state=tmp_path / "state").problems == ()


def test_a_copy_keeps_the_root_key_that_users_have_and_the_pages_of_links(tmp_path, made, keys):
    source = open_store(str(shutil.copytree(made, tmp_path / "index")))
    change(source, keys.signers["root"], add=[keys.public["next"]])
    state = tmp_path / "state"
    assert verify_index(open_reader(str(made)), keys.trusted, state=state).problems == ()
    there = open_store(str(tmp_path / "backup"))
    copy_index(source, there, signer=keys.signers["farm"])
    assert newest_root(there).signed.version == newest_root(source).signed.version == 2
    assert verify_index(open_reader(str(there.root)), keys.trusted, state=state, wheels=True).problems == ()
    change(source, keys.signers["root"], revoke=keys.public["farm"], reason="stolen")
    copy_index(source, there, signer=keys.signers["next"])
    assert newest_root(there).signed.version == 3, "a backup follows a change of keys"
    assert verify_index(open_reader(str(there.root)), keys.trusted, state=state, wheels=True).problems == ()
    unsigned = open_store(str(tmp_path / "unsigned"))
    copy_index(source, unsigned)
    assert newest_root(unsigned).signed.version == 3
    restored = open_store(str(tmp_path / "restored"))
    copy_index(unsigned, restored, signer=keys.signers["next"])
    assert verify_index(open_reader(str(restored.root)), keys.trusted, wheels=True).problems == ()
    mirror = open_store(str(tmp_path / "mirror"))
    copy_index(source, mirror, signer=keys.signers["root-2"])
    assert list(online_keys(newest_root(mirror).signed)) == [keys.public["root-2"].keyid], "a mirror has its own key"
