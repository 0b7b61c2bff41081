"""Wheels of a folder and of another index taken in: verified, incremental, resumed after a kill, refused if wrong."""

import hashlib
import html
import itertools
import json
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from farm.base.errors import InfrastructureError, PublishRefusedError, UsageError
from farm.cli.main import main
from farm.index import pages
from farm.index.adopting import adopt, in_folder, in_index
from farm.index.backends import open_store
from farm.index.check import check
from farm.index.lifecycle import record_event, remove
from farm.index.reader import open_reader
from farm.index.records import parse_record, record_key
from farm.index.serve import server
from farm.index.signing import load_public, load_signer, new_key
from farm.index.verify import verify_index
from tests.integration.index.test_publish import Killed, Watched, kill_at

FIRST = "canary-1.0+cu118.sm35.avx-py3-none-any.whl"
SECOND = "canary-1.0+cu118.sm35.avx.1-py3-none-any.whl"
THIRD = "canary-2.0-py3-none-any.whl"
GROUP = "sm35-avx"


@pytest.fixture
def key(tmp_path):
    public = load_public(new_key(tmp_path / "farm.key"))
    return load_signer(tmp_path / "farm.key"), {public.keyid: public}


@pytest.fixture
def folder(make_wheel):
    """A folder with three wheels."""
    for name in (FIRST, SECOND, THIRD):
        path = make_wheel(name).path
    return path.parent


def listed(store, group=GROUP):
    page = json.loads(store.get(pages.json_key(group, "canary")).data)
    return [file["filename"] for file in page["files"]]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        super().do_GET()


@pytest.fixture
def other(tmp_path):
    """Another index: its simple API's root; `page(...)` writes canary's page."""
    root = tmp_path / "other"
    (root / "simple/canary").mkdir(parents=True)
    served = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    served.asked = []
    thread = threading.Thread(target=served.serve_forever, args=(0.02,))
    thread.start()

    def page(*anchors):
        (root / "simple/canary/index.html").write_text("<!DOCTYPE html>" + "".join(anchors))
        return f"http://127.0.0.1:{served.server_port}/other/simple"

    page.asked, page.root = served.asked, (root / "simple").as_uri()
    yield page
    served.shutdown()
    thread.join()
    served.server_close()


def anchor(path, sha256=None, url=None, more=""):
    digest = sha256 or hashlib.sha256(path.read_bytes()).hexdigest()
    url = url or f"../../../{path.parent.name}/{quote(path.name)}"
    return f'<a href="{html.escape(url)}#sha256={digest}"{more}>{path.name}</a>'


def test_a_folder_is_adopted_and_the_next_call_has_nothing_to_do(store, folder, key):
    signer, trusted = key
    assert adopt(store, in_folder(folder), group=GROUP, dry_run=True).wheels == (FIRST, SECOND, THIRD)
    assert list(store.list("whl/")) == []
    taken = []
    done = adopt(store, in_folder(folder), group=GROUP, channel="kepler", signer=signer, progress=taken.append)
    assert (done.wheels, done.left_out, taken) == ((FIRST, SECOND, THIRD), {}, [FIRST, SECOND, THIRD])
    assert listed(store) == [FIRST, SECOND, THIRD]
    assert check(store) == []
    if hasattr(store, "root"):
        assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == ()
    record = parse_record(store.get(record_key(FIRST)).data, "")
    taken_from = record.provenance["slsa"]["buildDefinition"]["resolvedDependencies"]
    assert taken_from == [{"uri": FIRST, "digest": {"sha256": record.sha256}}], "no path of this machine"
    assert adopt(store, in_folder(folder), group=GROUP, signer=signer) == ((), {})


def test_another_index_is_adopted_and_only_what_is_missing_is_downloaded(tmp_path, folder, other):
    store = open_store(str(tmp_path / "index"))
    source = other(
        anchor(folder / FIRST), anchor(folder / SECOND, more=" data-yanked=''"), anchor(folder / THIRD, more="")
    )
    offers = partial(in_index, source, ["canary"])
    assert adopt(store, offers(), group=GROUP, dry_run=True).wheels == (FIRST, THIRD)
    assert not any(path.endswith(".whl") for path in other.asked)
    assert adopt(store, offers(), group=GROUP).wheels == (FIRST, THIRD), "a yanked wheel is not"
    assert listed(store) == [FIRST, THIRD]
    other.asked.clear()
    assert adopt(store, offers(), group=GROUP) == ((), {})
    assert not any(path.endswith(".whl") for path in other.asked)
    record = parse_record(store.get(record_key(FIRST)).data, "")
    [where] = record.provenance["slsa"]["buildDefinition"]["resolvedDependencies"]
    assert where["uri"].endswith(f"/{folder.name}/{quote(FIRST, safe='+')}".replace("+", "%2B")), where
    with pytest.raises(UsageError, match="has no project 'torch'"):
        adopt(store, in_index(source, ["torch"]), group=GROUP)


@pytest.mark.parametrize(
    "line",
    [
        "<form action=/login><input name=password></form>",
        "<a href='canary-1.0.tar.gz#sha256=" + "0" * 64 + "'>canary-1.0.tar.gz</a>",
        f"<a href='other-1.0-py3-none-any.whl#sha256={'0' * 64}'>other-1.0-py3-none-any.whl</a>",
    ],
)
def test_a_page_without_wheels_of_the_project_is_said_to_have_none(tmp_path, other, line):
    """It was read as an index from which nothing is missing here."""
    store = open_store(str(tmp_path / "index"))
    with pytest.raises(UsageError, match="has no wheel of 'canary' that is not yanked"):
        adopt(store, in_index(other(line), ["canary"]), group=GROUP, dry_run=True)


def test_an_index_of_the_farm_is_adopted_with_its_times(tmp_path, make_wheel, put):
    source = open_store(str(tmp_path / "source"))
    for name in (FIRST, SECOND, THIRD):
        put(source, make_wheel(name))
    record_event(source, SECOND, "quarantine", "may do harm")
    store = open_store(str(tmp_path / "index"))
    served = server(source.root, quiet=True)
    thread = threading.Thread(target=served.serve_forever, args=(0.02,))
    thread.start()
    try:
        root = f"http://127.0.0.1:{served.server_port}/whl/sm35-avx/v1-json"
        assert adopt(store, in_index(root, ["canary"]), group="release").wheels == (FIRST, THIRD)
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
    assert check(store) == []
    times = [parse_record(each.get(record_key(FIRST)).data, "").upload_time for each in (source, store)]
    assert times[0] == times[1] == "2026-11-21T00:00:00.000000Z"
    assert adopt(store, in_index(source.url("whl/sm35-avx/simple"), ["canary"]), group="release") == ((), {})


def test_what_may_not_be_published_is_left_out_with_the_reason(tmp_path, folder, other, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(SECOND, payload="mine = 1\n"))
    folder = make_wheel(SECOND).path.parent  # the same folder, with the other bytes again
    put(store, make_wheel(THIRD))
    remove(store, [THIRD], "secret")
    evil = make_wheel("canary-3.0-py3-none-any.whl", extra="Requires-Dist: x @ http://x.example/x.whl\n").path
    source = other(
        anchor(folder / FIRST, sha256="0" * 64),
        anchor(folder / SECOND),
        anchor(folder / THIRD),
        anchor(evil),
        anchor(folder / "canary-4.0-py3-none-any.whl", sha256="1" * 64, url="file:///etc/passwd"),
    )
    done = adopt(store, in_index(source, ["canary"]), group=GROUP)
    assert done.wheels == ()
    assert {name: why for name, why in done.left_out.items() if name != THIRD and why} == {
        FIRST: done.left_out[FIRST],
        SECOND: done.left_out[SECOND],
        evil.name: done.left_out[evil.name],
    }, "a link to a file of this machine is not even looked at"
    assert "other bytes than its page says" in done.left_out[FIRST]
    assert "with other content" in done.left_out[SECOND]
    assert "was removed (secret)" in done.left_out[THIRD]
    assert "direct URL" in done.left_out[evil.name]
    assert listed(store) == [SECOND]
    assert check(store) == []


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / FIRST)
    with pytest.raises(UsageError, match="is not a file"):
        list(in_folder(tmp_path))


def test_a_wheel_of_another_group_is_left_out(tmp_path, folder, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel(FIRST), group="staging")
    done = adopt(store, in_folder(folder), group=GROUP)
    assert done.wheels == (SECOND, THIRD)
    assert "is published in staging" in done.left_out[FIRST]


def numbered(make_wheel, count):
    """A folder with so many wheels, and their names in its order."""
    paths = [make_wheel(f"canary-1.{number}-py3-none-any.whl").path for number in range(count)]
    return paths[0].parent, sorted(path.name for path in paths)


def test_killed_at_any_operation_and_run_again(tmp_path, make_wheel, key):
    """With so many wheels that some are listed together."""
    signer, trusted = key
    folder, names = numbered(make_wheel, 7)
    for number in itertools.count(1):
        store = open_store(str(tmp_path / f"index-{number}"))
        store.proved = True
        work = partial(adopt, offers=in_folder(folder), group=GROUP, signer=signer)
        try:
            work(Watched(store, after=kill_at(number)))
        except Killed:
            assert [problem for problem in check(store) if problem.broken] == [], number
            adopt(store, in_folder(folder), group=GROUP, signer=signer)
            assert check(store) == [], number
            assert sorted(listed(store)) == names, number
            assert verify_index(open_reader(str(store.root)), trusted, wheels=True).problems == (), number
        else:
            break
    assert number > 35


class Counted(Watched):
    """A store that counts the bytes of the pages of projects that are written."""

    written = 0

    def replace(self, key, data, *arguments, **options):
        self.written += len(data) if key.endswith(("canary/index.json", "canary/index.html", "links.html")) else 0
        return super().replace(key, data, *arguments, **options)


def test_the_pages_written_grow_with_the_number_of_wheels_and_not_with_its_square(tmp_path, make_wheel):
    folder, names = numbered(make_wheel, 80)
    written = {}
    for count in (40, 80):
        store = Counted(open_store(str(tmp_path / f"index-{count}")))
        taken = []
        done = adopt(store, in_folder(*(folder / name for name in names[:count])), group=GROUP, progress=taken.append)
        assert list(done.wheels) == taken == names[:count]
        assert sorted(listed(store)) == names[:count]
        written[count] = store.written
    assert written[80] < 2.5 * written[40], written


def test_of_wheels_that_are_listed_together_one_that_was_removed_is_left_out(tmp_path, make_wheel):
    folder, names = numbered(make_wheel, 12)
    store = open_store(str(tmp_path / "index"))
    store.proved = True

    def meanwhile(number, name):
        if not removed and name == "create" and store.stat(pages.metadata_key(names[10])):
            removed.append(names[10])
            remove(store, [names[10]], "by somebody else")

    removed = []
    done = adopt(Watched(store, after=meanwhile), in_folder(folder), group=GROUP)
    assert removed == [names[10]]
    assert list(done.left_out) == [names[10]]
    assert "removed" in done.left_out[names[10]]
    assert sorted(listed(store)) == [name for name in names if name not in removed]
    assert store.stat(pages.wheel_key(names[10])) is None, "nothing leads to its bytes"
    assert check(store) == []


def test_what_was_taken_is_listed_where_the_source_fails_later(tmp_path, make_wheel):
    folder, names = numbered(make_wheel, 10)
    store = open_store(str(tmp_path / "index"))

    def failing():
        yield from in_folder(folder)
        raise UsageError("no project 'torch'")

    with pytest.raises(UsageError, match="torch"):
        adopt(store, failing(), group=GROUP)
    assert sorted(listed(store)) == names
    assert check(store) == []


def test_another_key_is_refused_before_anything_is_read(tmp_path, folder, key, make_wheel, put):
    store = open_store(str(tmp_path / "index"))
    put(store, make_wheel("canary-9.0-py3-none-any.whl"), signer=key[0], provenance={"slsa": {}})
    new_key(tmp_path / "other.key")
    with pytest.raises(PublishRefusedError, match="another key"):
        adopt(
            store,
            in_index("http://127.0.0.1:1/simple", ["canary"]),
            group=GROUP,
            signer=load_signer(tmp_path / "other.key"),
        )


def test_the_command(tmp_path, folder, other, capsys):
    index = str(tmp_path / "index")
    command = ["index", "adopt", "--index", index, "--to", GROUP]
    assert main([*command, str(folder), "--dry-run"]) == 0
    assert "3 would be listed in sm35-avx" in capsys.readouterr().out
    assert not Path(index).exists()
    assert main([*command, str(folder / FIRST), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"wheels": [FIRST], "left_out": {}, "dry_run": False}
    source = other(anchor(folder / SECOND), anchor(folder / THIRD, sha256="0" * 64))
    assert main([*command, source, "--package", "canary"]) == 7
    out = capsys.readouterr().out
    assert SECOND in out
    assert "left out: " in out
    assert main([*command, other.root, "--package", "canary"]) == 7, "file:// too"
    capsys.readouterr()
    for wrong in (
        [source],
        [str(folder), "--package", "canary"],
        [str(tmp_path / "none")],
        ["ftp://x", "--package", "a"],
    ):
        assert main([*command, *wrong]) == 2, wrong
    assert main([*command, "http://127.0.0.1:1/simple", "--package", "canary"]) == 9


def test_several_wheels_and_folders_are_taken_at_once(tmp_path, folder, make_wheel, capsys):
    """As a shell writes `old/*.whl`: one path alone was taken, and the second one an unknown argument."""
    command = ["index", "adopt", "--index", str(tmp_path / "index"), "--to", GROUP]
    more = tmp_path / "more"
    more.mkdir()
    make_wheel("canary-3.0-py3-none-any.whl").path.rename(more / "canary-3.0-py3-none-any.whl")
    # A wheel that is named twice, by itself and by its folder, is one wheel.
    assert main([*command, str(folder / FIRST), str(folder / SECOND), str(more), str(folder / FIRST), "--json"]) == 0
    taken = json.loads(capsys.readouterr().out)["wheels"]
    assert taken == [FIRST, SECOND, "canary-3.0-py3-none-any.whl"]
    make_wheel(FIRST).path.rename(more / FIRST)
    make_wheel(FIRST, payload="x = 2\n")
    assert main([*command, str(folder), str(more)]) == 2
    wrong = capsys.readouterr().err
    assert f"{folder / FIRST} and {more / FIRST} have the same name" in wrong
    assert main([*command, str(folder / FIRST), "https://old.example.org/simple", "--package", "canary"]) == 2
    assert "one index, or files and folders" in capsys.readouterr().err


def test_a_page_that_is_cut_off_or_hostile_says_so(tmp_path, folder, other):
    store = open_store(str(tmp_path / "index"))
    with pytest.raises(InfrastructureError):
        adopt(store, in_index("file:///etc", ["passwd"]), group=GROUP)
    source = other(anchor(folder / FIRST, url="http://127.0.0.1:1/" + FIRST))
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1"):
        adopt(store, in_index(source, ["canary"]), group=GROUP)
    assert list(store.list("records/")) == []
