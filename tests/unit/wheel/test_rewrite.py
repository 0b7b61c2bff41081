import stat
import zipfile

import pytest

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel import zipformat
from farm.wheel.archive import Archive
from farm.wheel.metadata import parse_record
from farm.wheel.rewrite import rewrite
from farm.wheel.zipwriter import NewMember

RECORD = "x-1.dist-info/RECORD"


@pytest.fixture
def source(tmp_path):
    """Members that no recompression at another level would give the same bytes for."""
    path = tmp_path / "source.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, mode, level in (
            ("pkg/a.py", 0o100644, 1),
            ("pkg/lib.so", 0o100755, 9),
            ("pkg/link", 0o120777, 6),
        ):
            entry = zipfile.ZipInfo(name, (2020, 2, 2, 2, 2, 2))
            entry.external_attr = mode << 16
            content = b"lib.so" if "link" in name else bytes(range(256)) * 64 + name.encode() * 99
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, level)
        archive.mkdir("pkg/empty")
        archive.writestr(RECORD, b"")
    return path


def hashes(archive):
    import hashlib

    return {
        name: (hashlib.sha256(archive.read(name)).hexdigest(), one.size)
        for name, one in archive.members.items()
    }


def copy(source, dest, **kwargs):
    with Archive(source) as archive:
        return rewrite(
            archive, dest, record=RECORD, hashes=hashes(archive), drop=frozenset({RECORD}), **kwargs
        )


def packed(path, name):
    with Archive(path) as archive:
        return b"".join(archive.raw(archive.members[name]))


def test_unchanged_members_are_copied_as_they_are(tmp_path, source):
    dest = tmp_path / "dest.zip"
    copy(
        source,
        dest,
        rename={"pkg/a.py": "pkg/b.py"},
        new=[NewMember("pkg/new", b"new" * 100, 0o755)],
    )
    assert packed(dest, "pkg/b.py") == packed(source, "pkg/a.py")
    assert packed(dest, "pkg/lib.so") == packed(source, "pkg/lib.so")
    with zipfile.ZipFile(dest) as archive, zipfile.ZipFile(source) as old:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "pkg/b.py",
            "pkg/lib.so",
            "pkg/link",
            "pkg/empty/",
            "pkg/new",
            RECORD,
        ]
        assert archive.getinfo("pkg/lib.so").external_attr >> 16 == 0o100755
        assert stat.S_ISLNK(archive.getinfo("pkg/link").external_attr >> 16)
        assert archive.getinfo("pkg/lib.so").date_time == old.getinfo("pkg/lib.so").date_time
        assert archive.getinfo("pkg/new").date_time == (1980, 1, 1, 0, 0, 0)
        assert archive.getinfo("pkg/new").external_attr >> 16 == 0o100755
        assert archive.read("pkg/new") == b"new" * 100
        rows = parse_record(archive.read(RECORD))
    assert [row.path for row in rows] == ["pkg/b.py", "pkg/lib.so", "pkg/link", "pkg/new", RECORD]
    assert rows[-1].digest is None
    with Archive(dest) as archive:
        true = hashes(archive)
        assert {row.path: (row.digest, row.size) for row in rows[:-1]} == {
            row.path: true[row.path] for row in rows[:-1]
        }


def test_the_result_does_not_depend_on_how_the_bytes_are_copied(tmp_path, source, monkeypatch):
    new = tmp_path / "file"
    new.write_bytes(b"\1" * 3_000_000)
    copy(source, tmp_path / "kernel.zip", new=[NewMember("n", new)])
    monkeypatch.delattr("os.copy_file_range", raising=False)
    copy(source, tmp_path / "loop.zip", new=[NewMember("n", new)])
    assert (tmp_path / "kernel.zip").read_bytes() == (tmp_path / "loop.zip").read_bytes()


def test_members_get_fresh_headers(tmp_path):
    """A descriptor and extra fields are left behind."""
    path = tmp_path / "odd.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"a" * 500, zipfile.ZIP_DEFLATED)
        odd = zipfile.ZipInfo("odd")
        odd.extra = b"\x99\x99\x04\x00abcd"
        archive.writestr(odd, b"o" * 500, zipfile.ZIP_DEFLATED)
        dated = zipfile.ZipInfo("b")
        dated.extra = b"UT\x05\x00\x03\x94\xbfFd"
        archive.writestr(dated, b"b" * 500, zipfile.ZIP_DEFLATED)
        archive.writestr("c", b"c" * 500)
        archive.writestr(RECORD, b"")
    dest = tmp_path / "dest.zip"
    copy(path, dest)
    assert b"\x99\x99\x04\x00abcd" in path.read_bytes()
    assert b"\x99\x99\x04\x00abcd" not in dest.read_bytes()
    assert dest.read_bytes().count(b"UT\x05\x00") == 0
    with Archive(dest) as new:
        assert [new.read(name) for name in ("a", "odd", "b", "c")] == [
            name * 500 for name in (b"a", b"o", b"b", b"c")
        ]
    with zipfile.ZipFile(dest) as archive:
        assert archive.testzip() is None


def test_a_small_wheel_ends_without_zip64(tmp_path, source):
    """APPNOTE 4.3.14: the records of ZIP64 come before the end record only where its fields are too
    small.
    """
    dest = tmp_path / "dest.zip"
    copy(source, dest)
    raw = dest.read_bytes()
    assert raw[-22:-18] == b"PK\5\6"
    assert (raw.count(b"PK\6\6"), raw.count(b"PK\6\7")) == (0, 0)


def test_zip64_where_needed(tmp_path, source, monkeypatch):
    """With the limit lowered, every size and offset above it takes the ZIP64 way; other readers
    must agree.
    """
    monkeypatch.setattr(zipformat, "LIMIT32", 100)
    monkeypatch.setattr(zipformat, "LIMIT16", 3)
    dest = tmp_path / "dest.zip"
    names = {"pkg/a.py": "pkg/b.py", "pkg/lib.so": "pkg/lib2.so"}
    copy(source, dest, rename=names, new=[NewMember("n", b"n" * 5000)])
    monkeypatch.undo()
    raw = dest.read_bytes()
    assert raw.count(b"PK\6\6") == 1
    for name in (
        b"pkg/b.py",
        b"pkg/lib2.so",
    ):  # 32-bit sizes of the local headers: "see the ZIP64 field"
        at = raw.index(name) - 30
        assert raw[at + 18 : at + 26] == b"\xff" * 8
    with zipfile.ZipFile(dest) as archive, zipfile.ZipFile(source) as old:
        assert archive.testzip() is None
        assert archive.read("pkg/lib2.so") == old.read("pkg/lib.so")
        assert archive.getinfo("n").file_size == 5000
    with Archive(dest) as archive:
        assert archive.read("n") == b"n" * 5000


def test_failure_leaves_nothing(tmp_path, source):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "dest.zip").write_bytes(b"what was there before")
    with pytest.raises(UsageError, match="cannot be written"):
        copy(source, folder / "dest.zip", new=[NewMember("n", tmp_path / "not there")])
    for bad in ("../n", "pkg/lib.so"):
        with pytest.raises(VerificationFailedError):
            copy(source, folder / "dest.zip", new=[NewMember(bad, b"")])
    with pytest.raises(UsageError):
        copy(source, tmp_path / "no folder" / "dest.zip")
    assert [path.name for path in folder.iterdir()] == ["dest.zip"]
    assert (folder / "dest.zip").read_bytes() == b"what was there before"
