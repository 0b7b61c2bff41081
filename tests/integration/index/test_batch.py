"""Many wheels at once: files, folders, other indexes; what may not be published is left out, and
listed.
"""

import itertools
import json
import os

import pytest

from farm.base.errors import InfrastructureError
from farm.cli.main import main
from farm.index.batch import in_folders, in_index, publish_all
from farm.index.changes import record_event
from farm.index.check import check
from farm.index.publish import check_store
from farm.index.records import PREDICATE, read_record
from farm.index.store_urls import open_store
from tests.indexes.recorder import Killed, Recorder, content, kill_at
from tests.indexes.wheels import build_wheel

NAMES = [
    "canary-1.0-py3-none-any.whl",
    "canary-2.0-py3-none-any.whl",
    "torch-2.0.1-py3-none-any.whl",
]


@pytest.fixture
def folder(tmp_path):
    """Three wheels, one of them in a folder below."""
    for name in NAMES:
        build_wheel(tmp_path / "dist" / ("deep" if "torch" in name else ""), name)
    return tmp_path / "dist"


def test_a_folder_is_published_and_the_next_call_has_nothing_to_do(store, folder):
    offers, left_out = in_folders([folder], "sm35-avx", "kepler")
    assert left_out == {}
    done = publish_all(store, offers)
    assert (sorted(done.wheels), done.left_out) == (NAMES, {})
    assert check(store) == []
    record = read_record(store, NAMES[0])
    assert (record.channel, record.groups) == ("kepler", ("sm35-avx",))
    made = record.provenance[PREDICATE]["buildDefinition"]["resolvedDependencies"]
    assert made == [{"uri": NAMES[0], "digest": {"sha256": record.sha256}}]
    before = content(store)
    assert publish_all(store, in_folders([folder], "sm35-avx", "kepler")[0]) == ((), {})
    assert content(store) == before


def test_what_is_no_wheel_is_left_out_and_the_rest_is_published(tmp_path, folder, capsys):
    """One dangling link, fifo, folder, broken or renamed wheel ended the whole call."""
    (folder / "dangling-1.0-py3-none-any.whl").symlink_to("nowhere")
    os.mkfifo(folder / "pipe-1.0-py3-none-any.whl")
    (folder / "folder-1.0-py3-none-any.whl").mkdir()
    (folder / "broken-1.0-py3-none-any.whl").write_bytes(b"PK")
    (folder / "no name.whl").write_bytes(b"PK")
    build_wheel(folder, "simple-1.0-py3-none-any.whl")
    build_wheel(folder / "twice", NAMES[0], "x = 2\n")
    index = str(tmp_path / "index")
    command = ["publish", str(folder), "--to", "sm35-avx", "--index", index, "--json"]
    assert main(command) == 7
    document = json.loads(capsys.readouterr().out)
    assert sorted(document["wheels"]) == NAMES
    wrong = ["broken", "canary", "dangling", "folder", "no name.whl", "pipe", "simple"]
    assert sorted(name.partition("-")[0] for name in document["left_out"]) == wrong
    assert check(open_store(index)) == []
    assert (
        main(
            [
                "publish",
                *(str(folder / name) for name in NAMES[:2]),
                "--to",
                "sm35-avx",
                "--index",
                index,
            ]
        )
        == 0
    )


def test_a_taken_name_and_a_wheel_of_another_group_are_left_out(tmp_path, folder, put, make_wheel):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(NAMES[0], payload="y = 1\n"))
    put(store, make_wheel(NAMES[1]), group="sm37-avx")
    done = publish_all(store, in_folders([folder], "sm35-avx")[0])
    assert done.wheels == (NAMES[2],)
    assert "is taken" in done.left_out[NAMES[0]]
    assert "published in sm37-avx" in done.left_out[NAMES[1]]


def test_killed_at_any_operation_and_run_again(tmp_path, folder):
    offers, _ = in_folders([folder], "sm35-avx")
    for number in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{number}"))
        check_store(store)
        try:
            publish_all(Recorder(store, after=kill_at(number)), offers)
        except Killed:
            assert not any(problem.broken for problem in check(store)), number
            publish_all(store, offers)
            assert check(store) == [], number
        else:
            break
    assert number > 20


def test_indexes_of_several_jobs_are_joined(tmp_path, put, make_wheel, store, capsys):
    for number, name in enumerate(NAMES):
        put(
            open_store(str(tmp_path / f"job-{number}")),
            make_wheel(name),
            group=f"sm3{number}-avx",
            channel="kepler",
        )
    record_event(open_store(str(tmp_path / "job-1")), [NAMES[1]], "yank", "bad")
    report = f"smoke/{NAMES[0]}/0123456789abcdef.json"
    open_store(str(tmp_path / "job-0")).create(report, b"{}", content_type="application/json")
    for number in (0, 1, 2):
        offers, left_out = in_index(open_store(str(tmp_path / f"job-{number}")))
        publish_all(store, offers)
        assert left_out == ({NAMES[1]: f"{NAMES[1]} is yanked there"} if number == 1 else {})
    assert check(store) == []
    ours, theirs = (
        read_record(store, NAMES[0]),
        read_record(open_store(str(tmp_path / "job-0")), NAMES[0]),
    )
    assert ours == theirs
    assert store.get(report).data == b"{}", "what was tested of a wheel comes with it"
    before = content(store)
    offers, _ = in_index(open_store(str(tmp_path / "job-0")))
    assert publish_all(store, offers) == ((), {})
    assert content(store) == before
    jobs = [part for number in (0, 2) for part in ("--from", str(tmp_path / f"job-{number}"))]
    assert main(["publish", *jobs, "--index", str(tmp_path / "joined"), "--to", "all"]) == 0
    assert "2 published" in capsys.readouterr().out
    assert read_record(open_store(str(tmp_path / "joined")), NAMES[0]).groups == ("all",)


def test_a_link_in_another_index_leads_nowhere(tmp_path, put, make_wheel):
    """A job that made `smoke/<wheel>/x.json` a link to a key had it published."""
    source = open_store(str(tmp_path / "job"))
    put(source, make_wheel(NAMES[0]))
    (tmp_path / "farm.key").write_text("secret")
    report = tmp_path / f"job/smoke/{NAMES[0]}/x.json"
    report.parent.mkdir(parents=True)
    report.symlink_to(tmp_path / "farm.key")
    store = open_store(str(tmp_path / "index"))
    with pytest.raises(InfrastructureError, match="is a symbolic link"):
        publish_all(store, in_index(source)[0])
    assert not any(b"secret" in data for data in content(store).values())


def test_a_wheel_that_its_source_holds_otherwise_is_left_out(tmp_path, put, make_wheel):
    source = open_store(str(tmp_path / "job"))
    put(source, make_wheel(NAMES[0]))
    (tmp_path / f"job/whl/files/{NAMES[0]}").write_bytes(b"other")
    done = publish_all(open_store(str(tmp_path / "index")), in_index(source)[0])
    assert "is not as its record says" in done.left_out[NAMES[0]]


def test_what_was_stored_is_listed_where_a_later_wheel_cannot_be(tmp_path, folder):
    store = open_store(str(tmp_path / "index"))
    check_store(store)
    offers, _ = in_folders([folder], "sm35-avx")

    gone = open_store(str(tmp_path / "gone"))
    publish_all(gone, offers[2:])
    more, _ = in_index(gone)
    (tmp_path / f"gone/whl/files/{offers[2].path.name}").unlink()
    with pytest.raises(InfrastructureError, match="gone"):
        publish_all(store, [*offers[:2], *more])
    assert check(store) == []


def test_the_pages_written_grow_with_the_number_of_wheels_and_not_with_its_square(tmp_path):
    written = []
    for count in (40, 160):
        folder, store = tmp_path / f"dist-{count}", open_store(str(tmp_path / f"index-{count}"))
        for number in range(count):
            build_wheel(folder, f"canary-{number}-py3-none-any.whl")
        check_store(store)
        recorder = Recorder(store)
        sizes = []
        replace = store.replace
        store.replace = lambda key, data, etag, r=replace, s=sizes, **o: (
            s.append(len(data)) or r(key, data, etag, **o)
        )
        publish_all(recorder, in_folders([folder], "g")[0])
        written.append(sum(sizes))
    assert written[1] < 6 * written[0]
