"""An index copied to another store: complete, incremental, resumed after a kill, refused where bytes differ."""

import itertools
import json
import shutil

import pytest

from farm.base.errors import VerificationFailedError
from farm.cli.main import main
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.copying import copy_index
from farm.index.events import read_state
from farm.index.lifecycle import promote, record_event, remove
from tests.integration.index.test_publish import Killed, Watched, kill_at

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
THIRD = "canary-2.0-py3-none-any.whl"


@pytest.fixture
def source(tmp_path, make_wheel, put):
    store = open_store(str(tmp_path / "source"))
    for name in (FIRST, SECOND, THIRD):
        put(store, make_wheel(name), channel="kepler")
    record_event(store, SECOND, "yank", "slow")
    remove(store, [THIRD], "secret")
    promote(store, [FIRST], "release")
    return store


def wheels(store):
    return {key: store.get(key).data for key in store.list("") if key.startswith(("records/", "events/", "whl/files/"))}


def test_a_copy_is_complete_and_the_next_is_incremental(source, store, make_wheel, put):
    assert copy_index(source, store, dry_run=True) == ((FIRST, SECOND), ())
    assert wheels(store) == {}
    assert copy_index(source, store) == ((FIRST, SECOND), ())
    assert wheels(store) == wheels(source)
    assert check(store) == []
    assert copy_index(source, store) == ((), ())
    put(source, make_wheel("canary-3.0-py3-none-any.whl"))
    assert copy_index(source, store).wheels == ("canary-3.0-py3-none-any.whl",)
    assert wheels(store) == wheels(source)


def test_one_group(source, tmp_path, make_wheel, put):
    put(source, make_wheel("canary-1.0+cu118.sm37.avx-py3-none-any.whl"), group="sm37-avx")
    there = open_store(str(tmp_path / "there"))
    assert copy_index(source, there, group="sm37-avx").wheels == ("canary-1.0+cu118.sm37.avx-py3-none-any.whl",)
    assert check(there) == []


def test_a_name_that_stands_for_other_bytes_is_told_and_left(source, tmp_path, make_wheel, put, capsys):
    there = open_store(str(tmp_path / "there"))
    put(there, make_wheel(FIRST, payload="other = 1\n"))
    before = there.get(f"whl/files/{FIRST}").data
    assert main(["index", "copy", "--index", str(source.root), "--to", str(tmp_path / "there")]) == 7
    assert FIRST in capsys.readouterr().out
    assert there.get(f"whl/files/{FIRST}").data == before
    assert there.get(f"whl/files/{SECOND}") is not None


def test_what_is_not_as_its_record_says_is_not_copied(source, tmp_path):
    there = open_store(str(tmp_path / "there"))
    (source.root / "whl/files" / FIRST).write_bytes(b"changed")
    with pytest.raises(VerificationFailedError, match="does not match its record"):
        copy_index(source, there)
    assert there.get(f"whl/files/{FIRST}") is None


def test_killed_at_any_operation_and_run_again(source, tmp_path):
    for number in itertools.count(1):
        there = open_store(str(tmp_path / f"there-{number}"))
        there.proved = True
        try:
            copy_index(source, Watched(there, after=kill_at(number)))
        except Killed:
            assert [problem for problem in check(there) if problem.broken] == [], number
            copy_index(source, there)
            assert check(there) == [], number
            assert wheels(there) == wheels(source), number
        else:
            break
    assert number > 15


def test_a_group_is_copied_with_what_was_promoted_into_it(source, tmp_path, make_wheel, put):
    put(source, make_wheel("canary-7.0-py3-none-any.whl"), group="staging")
    promote(source, ["canary-7.0-py3-none-any.whl"], "further")
    backup = open_store(str(tmp_path / "backup"))
    assert copy_index(source, backup, group="further").wheels == ("canary-7.0-py3-none-any.whl",)
    assert b"canary-7.0" in backup.get("whl/further/links.html").data
    assert check(backup) == []


def test_a_removal_reaches_a_copy_that_has_events_of_its_own(source, tmp_path, make_wheel, put):
    name = "canary-7.0-py3-none-any.whl"
    put(source, make_wheel(name))
    backup = open_store(str(tmp_path / "backup"))
    copy_index(source, backup)
    record_event(backup, name, "yank", "here alone")
    remove(source, [name], "holds a secret")
    copy_index(source, backup)
    assert not [key for key in backup.list("whl/files/") if name in key]
    assert check(backup) == []


SAYS = {
    "yank": lambda store, name: record_event(store, name, "yank", "slow"),
    "quarantine": lambda store, name: record_event(store, name, "quarantine", "odd"),
    "quarantine of the project": lambda store, _name: record_event(store, "canary", "quarantine", "stolen"),
}


def shown(store):
    """State of the project, and what installers get told of its wheels."""
    page = json.loads(store.get("whl/sm35-avx/v1-json/canary/index.json").data)
    return page["project-status"]["status"], {file["filename"]: file["yanked"] for file in page["files"]}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("what", SAYS)
def test_what_is_said_in_the_source_reaches_a_copy_that_has_events_of_its_own(tmp_path, make_wheel, put, what, killed):
    name = "canary-7.0-py3-none-any.whl"
    source, backup = open_store(str(tmp_path / "index")), open_store(str(tmp_path / "backup"))
    source.proved = backup.proved = True
    put(source, make_wheel(name))
    copy_index(source, backup)
    for target in (name, "canary"):
        record_event(backup, target, "quarantine", "here alone")
        record_event(backup, target, "release", "")
    assert shown(backup) == ("active", {name: False})
    SAYS[what](source, name)
    for number in itertools.count(1) if killed else ():
        there = open_store(str(shutil.copytree(backup.root, tmp_path / f"backup-{number}")))
        there.proved = True
        try:
            copy_index(source, Watched(there, after=kill_at(number)))
        except Killed:
            copy_index(source, there)
        else:
            break
        assert (shown(there), check(there)) == (shown(source), []), number
    copy_index(source, backup)
    assert shown(backup) == shown(source) != ("active", {name: False})
    assert check(backup) == []
    # It was brought: what the copy's owner says afterwards stays, and so does what both say.
    for target, kind in ((name, "unyank"), (name, "release"), ("canary", "release")):
        record_event(backup, target, kind, "")
    before = sorted(backup.list("events/"))
    copy_index(source, backup)
    assert sorted(backup.list("events/")) == before
    assert shown(backup) == ("active", {name: False})


def test_an_event_of_the_copy_between_any_two_operations(tmp_path, make_wheel, put):
    name = "canary-7.0-py3-none-any.whl"
    source, backup = open_store(str(tmp_path / "index")), open_store(str(tmp_path / "backup"))
    source.proved = backup.proved = True
    put(source, make_wheel(name))
    copy_index(source, backup)
    record_event(source, name, "quarantine", "odd")
    for wanted in itertools.count(1):
        there = open_store(str(shutil.copytree(backup.root, tmp_path / f"backup-{wanted}")))
        there.proved = True

        def interfere(number, name_, wanted=wanted, there=there):
            if number == wanted:
                record_event(there, name, "yank", "here alone")

        watched = Watched(there, after=interfere)
        copy_index(source, watched)
        if watched.calls < wanted:
            break
        state = read_state(there, name)
        assert (state.number, state.yanked, state.quarantined) == (2, "here alone", "odd"), wanted
        assert check(there) == [], wanted
    assert wanted > 5
