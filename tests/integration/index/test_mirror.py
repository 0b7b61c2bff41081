"""`farm index copy`: a copy that is whole at every moment, and that never loses what it has."""

import shutil
import threading

import pytest

from farm.base.errors import VerificationFailedError
from farm.cli.main import main
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.layout import wheel_key
from farm.index.mirror import copy_index
from farm.index.pages import parse_page
from farm.index.reader import open_reader
from farm.index.reconcile import reconcile
from farm.index.signatures import set_keys, sign, verify_index
from farm.index.store_urls import open_store
from tests.indexes.keys import write_key
from tests.indexes.recorder import FIRST, GROUP, OTHER, SECOND, Killed, Recorder, content, kill_at


@pytest.fixture
def index(tmp_path, make_wheel, put):
    """An index with two projects and its first copy: the folders of both."""
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST))
    put(store, make_wheel(OTHER))
    copy_index(store, open_store(str(tmp_path / "copy")))
    return tmp_path / "index", tmp_path / "copy"


def copy(index, target):
    return copy_index(open_store(str(index)), open_store(str(target)))


def dead_links(store):
    """Wheels on pages of a store whose files are not there."""
    missing = set()
    for key in store.list("whl/"):
        if key.endswith("/index.json") and key.count("/") == 4:
            page = parse_page(store.get(key).data, key)
            missing |= {name for name in page.entries if store.stat(wheel_key(name)) is None}
    return missing


def test_a_copy_is_an_index_on_every_kind_of_store(index, store):
    source = open_store(str(index[0]))
    copy_index(source, store)
    assert check(store) == []
    assert copy_index(source, store) == (0, 0, 0)


def test_what_is_published_and_yanked_later_is_copied(index, make_wheel, put):
    source = open_store(str(index[0]))
    put(source, make_wheel(SECOND))
    record_event(source, [FIRST], "yank", "slow")
    assert copy(*index).files == 2
    copied = open_store(str(index[1]))
    assert check(copied) == []
    assert content(copied) == content(source)


def test_signatures_are_copied_with_what_they_cover(index, tmp_path):
    source = open_store(str(index[0]))
    signer = write_key(tmp_path / "farm.key")
    _number, root = set_keys(source, signer, [signer.public_key])
    sign(source, signer)
    copy(*index)
    assert verify_index(open_reader(str(index[1])), root, wheels=True).problems == ()


@pytest.mark.parametrize(
    "lost", ["whl/files", "records", "whl/sm35-avx/v1-json", f"records/{FIRST}.json"]
)
def test_what_the_index_lost_stays_in_the_copy_on_the_next_night(index, lost):
    """`aws s3 sync --delete` deleted it from the backup as well."""
    source, target = index
    before = content(open_store(str(target)))
    path = source / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    for _night in range(2):
        with pytest.raises(VerificationFailedError, match="the index lost objects"):
            copy(*index)
    assert content(open_store(str(target))) == before
    copy(target, source)
    assert check(open_store(str(source))) == []
    assert copy(*index) == (0, 0, 0)


def test_other_bytes_are_not_copied(index, make_wheel, put):
    source, target = index
    put(open_store(str(source)), make_wheel(SECOND))
    before = content(open_store(str(target)))
    (source / wheel_key(SECOND)).write_bytes(b"other")
    with pytest.raises(VerificationFailedError, match="other bytes than its record says"):
        copy(*index)
    assert content(open_store(str(target))) == before


def test_a_removed_wheel_leaves_the_pages_of_the_copy_and_reconcile_deletes_its_bytes(index):
    source, target = index
    record_event(open_store(str(source)), [FIRST], "remove", "held a key")
    copy(*index)
    copied = open_store(str(target))
    assert FIRST not in copied.get(f"whl/{GROUP}/simple/canary/index.html").data.decode()
    reconcile(copied)
    assert check(copied) == []
    assert copied.stat(wheel_key(FIRST)) is None


def test_another_root_is_named_and_not_mixed_in(index, tmp_path):
    source, target = (open_store(str(folder)) for folder in index)
    for store, name in ((source, "one"), (target, "two")):
        signer = write_key(tmp_path / f"{name}.key")
        set_keys(store, signer, [signer.public_key])
    with pytest.raises(VerificationFailedError, match=r"another tuf/1\.root\.json"):
        copy(*index)


def test_signatures_that_newer_ones_replaced_leave_the_copy(index, tmp_path):
    source = open_store(str(index[0]))
    signer = write_key(tmp_path / "farm.key")
    set_keys(source, signer, [signer.public_key])
    for _ in range(4):
        sign(source, signer)
        copy(*index)
    assert content(open_store(str(index[1]))) == content(source)


def test_killed_at_any_write_the_copy_shows_no_dead_link(index, make_wheel, put, tmp_path):
    source = open_store(str(index[0]))
    put(source, make_wheel(SECOND))
    for number in range(1, 200):
        target = shutil.copytree(index[1], tmp_path / f"copy-{number}")
        store = open_store(str(target))
        try:
            copy_index(source, Recorder(store, after=kill_at(number)))
        except Killed:
            assert dead_links(store) == set(), number
        else:
            break
    else:
        pytest.fail("it never ended")
    assert check(store) == []


def test_a_copy_made_while_others_publish_is_whole(index, tmp_path, make_wheel, put):
    """A copy in the order of names showed 50 dead links in 178 copies."""
    source = open_store(str(index[0]))
    wheels = [make_wheel(f"aa_{number}-1.0-py3-none-any.whl") for number in range(12)]
    ended = threading.Event()

    def publish():
        try:
            for number, wheel in enumerate(wheels):
                put(source, wheel, group="aa-cpu" if number % 2 else GROUP)
        finally:
            ended.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    copies = 0
    while not ended.is_set() or not copies:
        target = open_store(str(tmp_path / f"copy-{copies}"))
        copy_index(source, target)
        assert dead_links(target) == set()
        assert [problem for problem in check(target) if problem.broken] == []
        copies += 1
    publisher.join()


def test_the_command(index, capsys):
    source, target = map(str, index)
    assert main(["index", "copy", "--index", source, "--to", target]) == 0
    assert capsys.readouterr().out == "copied: 0 files, 0 records, 0 pages\n"
    shutil.rmtree(index[0] / "whl/files")
    assert main(["index", "copy", "--index", source, "--to", target]) == 6
    assert "index-handbook.md#backup-and-restore" in capsys.readouterr().err
