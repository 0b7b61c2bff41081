"""An index copied to another store: complete, incremental, resumed after a kill, refused where bytes differ."""

import itertools

import pytest

from farm.cli.main import main
from farm.errors import VerificationFailedError
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.copying import copy_index
from farm.index.events import record_event
from farm.index.lifecycle import promote, remove
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
