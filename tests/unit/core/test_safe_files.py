"""Files of other users: opened once, never through a link, and only a checked copy is used.

Another user who swaps files while they are read is played by a hook that sees each open of a path
(sys.addaudithook) and swaps right before it: at the moments that a thread would have to hit.
"""

import contextlib
import hashlib
import json
import os
import queue
import struct
import sys
import tarfile
import threading
from io import BytesIO
from pathlib import Path, PurePath

import pytest

from farm.base import safe_files
from farm.base.errors import InfrastructureError, UsageError
from farm.base.hashes import tree_digest
from farm.base.safe_files import (
    UnsafeFolderError,
    create_new,
    make_folder,
    open_plain,
    plain_files,
    read_small,
    replacing,
)
from farm.cli.main import main
from farm.cli.package_kind import MAX_FILE
from farm.cli.recipe import _beginning_of
from farm.index.signatures import load_signer
from farm.run import sources
from farm.run.offline_bundle import STAND_IN, join_pieces, stand_ins
from farm.run.standalone import bundle as standalone
from tests.plans import plan_of

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX users and modes")

_watchers = []


def _audit(event, arguments):
    if event == "open" and _watchers:
        for watcher in list(_watchers):
            watcher(arguments[0])


sys.addaudithook(_audit)


@contextlib.contextmanager
def watching_opens(of_path):
    _watchers.append(of_path)
    try:
        yield
    finally:
        _watchers.remove(of_path)


class OtherUser:
    """Counts the opens of files of a folder, and before each open after the first swaps the
    file.
    """

    def __init__(self, folder, swap):
        self.folder = str(folder)
        self.swap = swap
        self.opens = {}

    def __call__(self, path):
        if not isinstance(path, str | os.PathLike) or not str(path).startswith(self.folder):
            return
        path = str(path)
        self.opens[path] = self.opens.get(path, 0) + 1
        if self.opens[path] > 1:
            self.swap(Path(path))


def tar_of(files):
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, BytesIO(content))
    return packed.getvalue()


def parts_in(folder, files):
    """A bundle's parts in a folder of another user, and their manifest."""
    root = BytesIO()
    with tarfile.open(fileobj=root, mode="w:xz") as tree:
        info = tarfile.TarInfo("usr/bin/tool")
        info.size = 4
        tree.addfile(info, BytesIO(b"tool"))
    whole = tar_of({"tree.tar.xz": root.getvalue(), **files})
    half = len(whole) // 2
    parts = []
    for number, data in enumerate((whole[:half], whole[half:])):
        (folder / f"part-{number:02d}").write_bytes(data)
        parts.append(
            {
                "name": f"part-{number:02d}",
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    return {"parts": parts, "job": {"inputs": {"/farm/job": "job"}}}


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


@pytest.fixture
def state(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_parts_are_opened_once_so_later_swaps_are_not_read(shared, state):
    manifest = parts_in(shared, {"job/build.sh": b"true\n"})

    def swap(path):
        path.write_bytes(tar_of({"job/build.sh": b"evil\n"}))

    with watching_opens(other := OtherUser(shared, swap)):
        standalone.unpack(manifest, [shared], state)
    assert set(other.opens.values()) == {1}
    assert (state / "job/build.sh").read_bytes() == b"true\n"


def test_a_part_that_changes_while_it_is_read_is_never_unpacked(shared, state, capsys, monkeypatch):
    """The owner of a part writes into the very file that is open."""
    manifest = parts_in(shared, {"job/build.sh": b"true\n"})
    ordinary = safe_files.copy_to

    def changed(stream, out, limit):
        with (shared / "part-00").open("r+b") as part:
            part.write(b"evil")
        return ordinary(stream, out, limit)

    monkeypatch.setattr(safe_files, "copy_to", changed)
    with pytest.raises(SystemExit) as ended:
        standalone.unpack(manifest, [shared], state)
    assert ended.value.code == 2
    assert "part-00 is damaged" in capsys.readouterr().out
    assert not (state / "unpacked").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_part_that_is_no_plain_file_is_not_read(shared, state, kind, tmp_path):
    manifest = parts_in(shared, {"job/build.sh": b"true\n"})
    part = shared / "part-00"
    content = part.read_bytes()
    part.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        part.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(part)
    copy = safe_files.checked_copy(part, state, sha256="0" * 64, size=len(content))
    with pytest.raises(OSError, match=r"symbolic links|pipe"), copy:
        pass
    assert not list(state.iterdir())
    assert manifest


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "job/../../evil", "other/x"])
def test_the_parts_hold_inputs_of_the_build_alone(shared, state, name, capsys):
    manifest = parts_in(shared, {name: b"evil"})
    with pytest.raises(SystemExit) as ended:
        standalone.unpack(manifest, [shared], state)
    assert ended.value.code == 2
    assert "no input of this build" in capsys.readouterr().out


def test_pieces_are_opened_once_and_only_the_copy_is_unpacked(shared, tmp_path):
    plan = plan_of("cpu-avx-py311", "canary")
    wheel = "canary-0.1.0-py3-none-any.whl"
    whole = tar_of({f"built/wheel/{wheel}": b"good"})
    (shared / "piece-00").write_bytes(whole)
    result = {
        "plan": plan.digest,
        "size": len(whole),
        "sha256": hashlib.sha256(whole).hexdigest(),
        "pieces": 1,
    }
    (shared / "result.json").write_text(json.dumps(result))

    def swap(path):
        path.write_bytes(whole.replace(b"good", b"evil"))

    with watching_opens(other := OtherUser(shared, swap)):
        built = join_pieces(plan, shared, tmp_path / "built")
    assert set(other.opens.values()) == {1}
    assert built.read_bytes() == b"good"


def test_pieces_behind_a_link_are_refused(shared, tmp_path):
    plan = plan_of("cpu-avx-py311", "canary")
    result = {"plan": plan.digest, "size": 4, "sha256": "0" * 64, "pieces": 1}
    (shared / "result.json").write_text(json.dumps(result))
    (tmp_path / "secret").write_text("1234")
    (shared / "piece-00").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="piece-00"):
        join_pieces(plan, shared, tmp_path / "built")


def test_a_fetched_source_that_is_swapped_after_the_look_at_it_is_not_packed(tmp_path):
    cache = tmp_path / "sources"
    cache.mkdir()
    good = b"good source"
    cached = cache / f"{hashlib.sha256(good).hexdigest()}.tar"
    cached.write_bytes(b"evil source")
    with pytest.raises(InfrastructureError, match="was changed while it was read"):
        sources._copy_from_cache(cached, tmp_path / "copy")
    cached.write_bytes(good)
    sources._copy_from_cache(cached, tmp_path / "copy-2")
    assert (tmp_path / "copy-2").read_bytes() == good


def test_what_is_packed_of_a_folder_is_what_its_digest_says(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "setup.py").write_text("good")
    (source / "link").symlink_to("setup.py")
    (source / "folder").mkdir()
    (source / "to-folder").symlink_to("folder")
    digest = tree_digest(source)
    assert sources._pack(source, tmp_path / "00.tar", print) == digest
    (source / "setup.py").write_text("evil")
    assert sources._pack(source, tmp_path / "01.tar", print) != digest


# --- what is written


def test_a_link_that_others_put_there_is_replaced_and_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "build.log.xz").symlink_to(precious)
    with safe_files.open_folder(out) as folder, replacing(folder, "build.log.xz") as stream:
        stream.write(b"log")
    assert precious.read_text() == "mine"
    assert not (out / "build.log.xz").is_symlink()
    assert (out / "build.log.xz").read_bytes() == b"log"
    assert [path.name for path in out.iterdir()] == ["build.log.xz"]


def test_partially_written_files_are_not_visible(tmp_path):
    (tmp_path / "file").write_text("old")

    def fail():
        with safe_files.open_folder(tmp_path) as folder, replacing(folder, "file") as stream:
            stream.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_a_new_file_replaces_nothing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        create_new(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_the_result_holds_no_file_that_the_build_only_points_to(state, tmp_path):
    """A build can write its output folder: links there lead out of its root file system."""
    (tmp_path / "secret").write_text("secret")
    output = state / "root/farm/out"
    (output / "wheel").mkdir(parents=True)
    (output / "wheel/x-1-py3-none-any.whl").write_text("wheel")
    (output / "lib").mkdir()
    (output / "lib/secret.so").symlink_to(tmp_path / "secret")
    (output / "built.tar").symlink_to(tmp_path / "overwritten")
    out = tmp_path / "out"
    out.mkdir()
    standalone.write_pieces({"plan": "0" * 64, "job": {"output": "/farm/out"}}, state, out)
    with tarfile.open(out / "piece-00") as archive:
        assert archive.getnames() == ["built/wheel/x-1-py3-none-any.whl"]
    assert not (tmp_path / "overwritten").exists()


@pytest.mark.parametrize("replaced", ["farm/out", "farm/out/wheel"])
def test_an_output_folder_that_is_a_link_is_no_output(state, tmp_path, replaced, capsys):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "wheel").mkdir(parents=True)
    (elsewhere / "wheel/x-1-py3-none-any.whl").write_text("not the build's")
    (elsewhere / "x-1-py3-none-any.whl").write_text("not the build's")
    link = state / "root" / replaced
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(SystemExit) as ended:
        standalone.write_pieces({"plan": "", "job": {"output": "/farm/out"}}, state, tmp_path / "o")
    assert ended.value.code == 5
    assert "left 0 wheels" in capsys.readouterr().out


# --- folders


def acl_with_a_named_user(permissions):
    """The bytes of acl(5) as Linux keeps them: version 2; tag, permissions and id of each entry."""
    undefined = 0xFFFFFFFF
    entries = [
        (0x01, 7, undefined),
        (0x02, permissions, 4321),
        (0x04, 5, undefined),
        (0x10, 7, undefined),
        (0x20, 5, undefined),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_a_folder_that_an_acl_opens_is_not_the_users_alone(tmp_path):
    place = tmp_path / "open"
    place.mkdir(mode=0o755)
    assert safe_files.weakness(place) is None
    try:
        os.setxattr(place, safe_files.ACL, acl_with_a_named_user(7))
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")
    assert safe_files.weakness(place) == f"others may write to {place}"
    with pytest.raises(UnsafeFolderError, match="others may write to"):
        make_folder(place / "state")
    assert not (place / "state").exists()


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_results_are_not_written_where_others_may_write(tmp_path, mode):
    place = tmp_path / "out"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(UnsafeFolderError, match="others may write to"):
        make_folder(place, readable=True)
    place.chmod(0o755)
    assert make_folder(place, readable=True) == place


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give away"
)
def test_results_are_not_written_where_a_group_may_write(tmp_path):
    place = tmp_path / "out"
    place.mkdir()
    os.chown(place, 0, 4321)
    place.chmod(0o2775)
    with pytest.raises(UnsafeFolderError, match="others may write to"):
        make_folder(place, readable=True)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give away"
)
def test_a_folder_of_another_user_is_refused(tmp_path):
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 4321, 4321)
    with pytest.raises(UnsafeFolderError, match="belongs to user 4321"):
        make_folder(place, readable=True)
    with pytest.raises(UnsafeFolderError, match="belongs to user 4321"):
        make_folder(place / "below")


def test_a_folder_is_not_opened_as_a_file(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_plain(tmp_path)


# --- the output of a job, which it may still be changing


class Swapper(threading.Thread):
    """A thread that, at each open below a folder, swaps every file there with a link to a
    secret, and back at the next open.
    """

    def __init__(self, folder, secret):
        super().__init__(daemon=True)
        self.folder = folder
        self.files = [path for path in folder.rglob("*") if path.is_file()]
        self.secret = secret
        self.wanted = queue.SimpleQueue()
        self.done = queue.SimpleQueue()
        self.opens = 0

    def run(self):
        while self.wanted.get():
            for path in self.files:
                kept = path.with_name(f".kept-{path.name}")
                if path.is_symlink():
                    kept.replace(path)
                else:
                    path.replace(kept)
                    path.symlink_to(self.secret)
            self.done.put(True)

    def __call__(self, path):
        if threading.current_thread() is self:
            return
        names = {str(file) for file in self.files} | {file.name for file in self.files}
        if isinstance(path, str | os.PathLike) and str(path) in names:
            self.opens += 1
            self.wanted.put(True)
            self.done.get(timeout=60)


@pytest.fixture
def output(tmp_path):
    """A root folder with what a job wrote below farm/out."""
    folder = tmp_path / "root/farm/out"
    for name in ("wheel/x-1-py3-none-any.whl", "lib/a.so", "lib/b.so"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the build's")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.mark.parametrize("first", [0, 1], ids=["links at odd opens", "links at even opens"])
def test_no_file_that_a_thread_swaps_for_a_link_at_each_open_is_taken(tmp_path, output, first):
    swapper = Swapper(output, tmp_path / "secret")
    swapper.start()
    taken = {}
    with watching_opens(swapper):
        if first:
            swapper(output / "lib/a.so")
        for path, stream in plain_files(PurePath("farm/out"), below=tmp_path / "root"):
            taken[str(path)] = stream and stream.read()
    swapper.wanted.put(False)
    swapper.join()
    assert swapper.opens >= 3
    assert None in taken.values()
    assert set(taken.values()) <= {None, b"the build's"}


def test_each_file_of_an_output_is_opened_once(tmp_path, output):
    opened = []
    with watching_opens(lambda path: opened.append(str(path))):
        taken = list(plain_files(PurePath("farm/out"), below=tmp_path / "root"))
    assert len(taken) == 3
    assert [opened.count(name) for name in ("x-1-py3-none-any.whl", "a.so", "b.so")] == [1, 1, 1]


@pytest.mark.parametrize("replaced", ["farm", "farm/out", "farm/out/lib"])
def test_an_output_behind_a_link_is_not_read(tmp_path, output, replaced):
    folder = tmp_path / "root" / replaced
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    taken = []
    with contextlib.suppress(OSError):
        taken += plain_files(PurePath("farm/out"), below=tmp_path / "root")
    assert "lib/a.so" not in [str(path) for path, _ in taken]


# --- files that are read whole


def larger_than_memory(path):
    """A file of a terabyte that takes no room: to read it whole fails."""
    with path.open("wb") as stream:
        stream.truncate(1 << 40)
    return path


def test_a_file_is_measured_before_it_is_read(tmp_path):
    (tmp_path / "small").write_bytes(b"12345")
    assert read_small(tmp_path / "small", 5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 MiB"):
        read_small(larger_than_memory(tmp_path / "large"), 4 << 20)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        read_small(tmp_path / "pipe", 5)


def test_a_manifest_of_a_bundle_is_measured(tmp_path, capsys):
    larger_than_memory(tmp_path / "manifest.json")
    with pytest.raises(SystemExit) as ended:
        standalone.read_manifest(tmp_path)
    assert ended.value.code == standalone.DAMAGED
    assert "larger than 16 MiB" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[" * 100_000, "", "3", '{"name": 1}'])
def test_a_manifest_of_nonsense_is_damaged(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(SystemExit) as ended:
        standalone.read_manifest(tmp_path)
    assert ended.value.code == standalone.DAMAGED


def test_keys_and_trusted_roots_are_measured(tmp_path, capsys):
    large = larger_than_memory(tmp_path / "large")
    with pytest.raises(UsageError, match="larger than 64 KiB"):
        load_signer(str(large))
    assert main(["index", "verify", str(tmp_path), "--root", str(large)]) == 2
    assert "larger than 4 MiB" in capsys.readouterr().err


def test_libraries_of_a_bundle_are_searched_whatever_their_size(tmp_path):
    (tmp_path / "stand-in.so").write_bytes(b"ELF" + STAND_IN)
    (tmp_path / "empty.so").touch()
    with (tmp_path / "large.so").open("wb") as stream:
        stream.truncate(1 << 26)
    assert stand_ins(tmp_path) == ["stand-in.so"]


def test_a_source_is_read_to_its_limit(tmp_path):
    larger_than_memory(tmp_path / "setup.py")
    assert len(_beginning_of(tmp_path / "setup.py")) == MAX_FILE
