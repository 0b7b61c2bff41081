"""Archives that are read. What is refused: `hostile_corpus`."""

import io
import os
import stat
import zipfile
import zlib
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import Archive, Limits
from farm.wheel.zipformat import (
    DOS_EPOCH,
    MADE_BY_UNIX,
    STORED,
    Entry,
    central_header,
    end_records,
    local_header,
)
from tests.examples import examples


def write_zip(path, members, **kwargs):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, **kwargs)
    return path


def read_all(path, limits=None):
    with Archive(path, limits) as archive:
        return {name: archive.read(name) for name in archive.members}


def test_reads_what_zipfile_wrote(tmp_path):
    members = [("a/b.py", b"x = 1\n" * 1000), ("a/empty", b""), ("ä.txt", b"\0\1\2"), ("dir/", b"")]
    assert read_all(write_zip(tmp_path / "w.whl", members)) == dict(members)


def test_reads_members_with_data_descriptors(tmp_path):
    class Pipe(io.RawIOBase):
        def __init__(self, file):
            self.file = file

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    path = tmp_path / "w.whl"
    with path.open("wb") as file, zipfile.ZipFile(Pipe(file), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"A" * 5000)
        archive.writestr("b", b"B")
    assert path.read_bytes()[6] & 8  # the flag is really there
    assert read_all(path) == {"a": b"A" * 5000, "b": b"B"}


def write_link(path, name, target):
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, target)
    return path


def test_accepts_links_inside(tmp_path):
    with Archive(write_link(tmp_path / "w.whl", "a/b/link", "../c.so")) as archive:
        assert stat.S_ISLNK(archive.members["a/b/link"].mode)
    # nodejs-bin's npm, which pip, installer and auditwheel write as an empty file.
    with Archive(write_link(tmp_path / "w.whl", "nodejs/bin/npm", "")) as archive:
        assert archive.read("nodejs/bin/npm") == b""


def assemble(parts, entries):
    """A ZIP file from local parts and directory entries, right or wrong."""
    data = b"".join(parts)
    directory = b"".join(map(central_header, entries))
    return data + directory + end_records(len(entries), len(data), len(directory))


def test_refuses_bombs(tmp_path):
    path = write_zip(tmp_path / "w.whl", [("zeros", bytes(70 << 20))])
    with pytest.raises(VerificationFailedError, match="bomb"):
        Archive(path)
    with Archive(path, Limits(ratio=1100)) as archive:
        assert archive.members["zeros"].size == 70 << 20
        with archive.content("zeros", (b"\0\0\0\0",)) as (_, data):
            assert len(data) == 70 << 20  # above what is kept in memory


@pytest.mark.parametrize(
    "limits", [Limits(members=1), Limits(member_bytes=5), Limits(total_bytes=9)]
)
def test_limits_are_kept(tmp_path, limits):
    path = write_zip(tmp_path / "w.whl", [("a", b"AAAA"), ("b", b"BBBBBB")])
    with pytest.raises(VerificationFailedError, match="are refused"):
        Archive(path, limits)


def test_a_folder_is_no_wheel_and_the_error_says_so(tmp_path):
    with pytest.raises(UsageError, match="is a folder, not a wheel"):
        Archive(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "w.whl")
    with pytest.raises(UsageError, match="is a pipe or a device, not a wheel"):
        Archive(tmp_path / "w.whl")


def test_a_missing_file_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        Archive(tmp_path / "none.whl")


def test_magic_is_seen_through_empty_blocks(tmp_path):
    """Deflate may hold blocks without output: a library must not hide behind a megabyte of them."""
    content = b"\x7fELF" + b"rest"
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = b"\x00\x00\x00\xff\xff" * 300_000
    packed += deflater.compress(content[:2]) + deflater.flush(zlib.Z_FULL_FLUSH)
    packed += b"\x00\x00\x00\xff\xff" * 300_000 + deflater.compress(content[2:]) + deflater.flush()
    entry = Entry(
        "a.so", 8, *DOS_EPOCH, zlib.crc32(content), len(packed), len(content), 0, MADE_BY_UNIX, 0
    )
    path = tmp_path / "w.whl"
    path.write_bytes(assemble([local_header(entry, wide=False), packed], [entry]))
    with Archive(path) as archive, archive.content("a.so", (b"\x7fELF",)) as (_, data):
        assert data == content


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_archives_give_one_error_only(tmp_path, data):
    path = write_zip(tmp_path / "w.whl", [("a/b.py", b"x = 1\n" * 20), ("c", b"CC"), ("d/", b"")])
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with suppress(VerificationFailedError):  # any other exception fails the test
        read_all(path)


@examples(100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200), cut=st.integers(0, 120))
def test_random_bytes_are_no_archive(tmp_path, raw, cut):
    entry = Entry("b", STORED, *DOS_EPOCH, zlib.crc32(b"xy"), 2, 2, 0, MADE_BY_UNIX, 0)
    good = assemble([local_header(entry, wide=False), b"xy"], [entry])
    path = tmp_path / "w.whl"
    path.write_bytes(raw + good[cut + 1 :])
    with pytest.raises(VerificationFailedError):
        read_all(path)
