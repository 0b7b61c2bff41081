"""The directory store under kill, failure and sweep. What all stores promise is tested beside the
S3 store.
"""

import errno
import hashlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import farm
from farm.base.errors import InfrastructureError
from farm.index import directory
from farm.index.directory import DirectoryStore

TEXT = "text/plain"
OLD, NEW = b"old" * 50_000, b"new" * 50_000  # several writes each

# Runs one operation in a child again and again, killed by SIGKILL before its 1st, 2nd ... system
# call, until one child lives to the end. Every round has a directory of its own.
KILLER = """
import itertools, os, signal, sys
from pathlib import Path
from farm.index.directory import DirectoryStore

top, what = Path(sys.argv[1]), sys.argv[2]
OLD, NEW = b"old" * 50_000, b"new" * 50_000
(top / "new.bin").write_bytes(NEW)

def operate(store):
    if what == "create":
        assert store.create("whl/files/x", NEW, content_type="text/plain")
    if what == "copy":
        assert store.create("whl/files/x", top / "new.bin", content_type="text/plain")
    if what == "replace":
        assert store.replace("whl/files/x", NEW, store.get("whl/files/x").etag, content_type="text/plain")

for n in itertools.count(1):
    store = DirectoryStore(top / f"case-{n:03}")
    if what == "replace":
        store.create("whl/files/x", OLD, content_type="text/plain")
        store = DirectoryStore(store.root)
    child = os.fork()
    if child == 0:
        calls = 0
        def watch(frame, event, function):
            global calls
            names = {"write", "flush", "close", "open", "read"}
            if event == "c_call" and (function.__module__ in {"posix", "fcntl"} or function.__name__ in names):
                calls += 1
                if calls == n:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(watch)
        operate(store)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.parametrize("what", ["create", "copy", "replace"])
def test_a_kill_between_any_two_system_calls_leaves_old_or_new(what, tmp_path):
    subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path), what],
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(farm.__file__).parents[1])},
    )
    before = OLD if what == "replace" else None
    found = []
    for case in sorted(tmp_path.glob("case-*")):
        store = DirectoryStore(case)
        stored = store.get("whl/files/x")
        found.append(None if stored is None else stored.data)
        assert found[-1] in {before, NEW}
        assert list(store.list("")) == ([] if found[-1] is None else ["whl/files/x"])
        assert store.create("next", b"x", content_type=TEXT), "a killed writer blocks nobody"
        if found[-1] == before:
            etag = None if stored is None else stored.etag
            assert store.replace("whl/files/x", NEW, etag, content_type=TEXT)
        assert store.get("whl/files/x").data == NEW
    assert len(found) > 15
    assert found[0] == before
    assert found[-1] == NEW
    # first always the old, then always the new
    assert found == sorted(found, key=lambda data: data == NEW)


# Two operations in a child again and again, with Ctrl-C before its 1st, 2nd ... change of a file,
# until one child ends.
INTERRUPTER = """
import itertools, os, sys
from pathlib import Path
from farm.index.directory import DirectoryStore

top = Path(sys.argv[1])
CHANGES = {"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.truncate"}

for n in itertools.count(1):
    store = DirectoryStore(top / f"case-{n:03}")
    old = store.create("whl/files/x", b"old", content_type="text/plain") and store.get("whl/files/x")
    child = os.fork()
    if child == 0:
        seen = 0
        def hook(event, arguments):
            global seen
            seen += event in CHANGES
            if event in CHANGES and seen == n:
                raise KeyboardInterrupt
        sys.addaudithook(hook)
        try:
            store.replace("whl/files/x", b"new", old.etag, content_type="text/plain")
            store.create("whl/files/y", b"new", content_type="text/plain")
        except KeyboardInterrupt:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_ctrl_c_before_any_change_leaves_no_temporary_file(tmp_path):
    subprocess.run(
        [sys.executable, "-c", INTERRUPTER, str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(farm.__file__).parents[1])},
    )
    cases = sorted(tmp_path.glob("case-*"))
    assert len(cases) > 10
    assert {case.name: [path.name for path in (case / ".tmp").iterdir()] for case in cases} == {
        case.name: [] for case in cases
    }


def test_old_temporary_files_are_removed(tmp_path):
    (tmp_path / ".tmp").mkdir()
    for name in ("living", "dead"):
        (tmp_path / ".tmp" / name).touch()
    os.utime(tmp_path / ".tmp/dead", (0, 0))
    assert DirectoryStore(tmp_path).create("x", b"x", content_type=TEXT)
    assert [path.name for path in (tmp_path / ".tmp").iterdir()] == ["living"]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    store = DirectoryStore(tmp_path / "index")
    assert store.replace("page", b"old", None, content_type=TEXT)
    etag = store.get("page").etag
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(InfrastructureError, match="index directory failed"):
            store.create("wheel", NEW, content_type=TEXT)
        with pytest.raises(InfrastructureError, match="index directory failed"):
            store.replace("page", NEW, etag, content_type=TEXT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.list("")) == ["page"]
    assert store.get("page").data == b"old"
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_file_in_the_way_is_an_error_of_the_farm(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(InfrastructureError, match="index directory failed"):
        DirectoryStore(tmp_path / "file").create("a", b"x", content_type=TEXT)
    store = DirectoryStore(tmp_path)
    with pytest.raises(InfrastructureError, match="index directory failed"):
        store.create("file/a", b"x", content_type=TEXT)
    assert store.get("file/a") is None


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_web_server_can_read_what_is_stored_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = DirectoryStore(tmp_path / "index")
        store.create("a/b", b"x", content_type=TEXT)
        store.replace("a/b", b"y", store.get("a/b").etag, content_type=TEXT)
    finally:
        os.umask(before)
    modes = {
        path: (tmp_path / path).stat().st_mode & 0o777 for path in ("index", "index/a", "index/a/b")
    }
    assert modes == {"index": 0o755, "index/a": 0o755, "index/a/b": 0o644}


@pytest.mark.parametrize("link", ["whl", "whl/files", "whl/files/x.whl"])
def test_nothing_is_written_or_read_through_a_symbolic_link(tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    store = DirectoryStore(tmp_path / "index")
    store.create("probe/x", b"x", content_type=TEXT)
    place = tmp_path / "index" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    target = outside / "x.whl" if link.endswith(".whl") else outside
    if target.suffix:
        target.write_bytes(b"theirs")
    place.symlink_to(target)
    with pytest.raises(InfrastructureError, match="is a symbolic link") as caught:
        store.create("whl/files/x.whl", b"ours", content_type=TEXT)
    assert "remove it" in caught.value.hint
    with pytest.raises(InfrastructureError, match="is a symbolic link"):
        store.replace(
            "whl/files/x.whl", b"ours", hashlib.sha256(b"theirs").hexdigest(), content_type=TEXT
        )
    for read in (store.get, store.stat, lambda key: list(store.chunks(key))):
        with pytest.raises(InfrastructureError, match="is a symbolic link"):
            read("whl/files/x.whl")
    assert [path.read_bytes() for path in outside.iterdir()] == (
        [b"theirs"] if target.suffix else []
    )


def test_the_folder_itself_may_be_a_symbolic_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "index").symlink_to(tmp_path / "disk")
    assert DirectoryStore(tmp_path / "index").create("a", b"x", content_type=TEXT)
    assert (tmp_path / "disk/a").read_bytes() == b"x"


def test_posix_locks_are_imported_by_one_module_only():
    """On Windows there is no fcntl: `farm.base.locks` has the other way."""
    folder = Path(farm.__file__).parent
    locking = [
        path.relative_to(folder)
        for path in folder.rglob("*.py")
        if "fcntl.flock" in path.read_text("utf-8")
    ]
    assert locking == [Path("base/locks.py")]


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("link", errno.EPERM),
        ("link", errno.EOPNOTSUPP),
        ("lock", errno.ENOLCK),
        ("lock", errno.EOPNOTSUPP),
    ],
)
def test_a_file_system_without_links_or_locks_is_named(tmp_path, monkeypatch, call, number):
    def lacks(*names, **_):
        raise OSError(
            number, os.strerror(number), *([names[0], None, names[1]] if call == "link" else [])
        )

    store = DirectoryStore(tmp_path)
    if call == "lock":
        store.create("page", b"old", content_type=TEXT)
    monkeypatch.setattr(*(("os.link", lacks) if call == "link" else (directory, "lock", lacks)))
    with pytest.raises(InfrastructureError) as caught:
        store.replace(
            "page", b"new", store.get("page").etag if call == "lock" else None, content_type=TEXT
        )
    assert "hard links and locks" in caught.value.hint
