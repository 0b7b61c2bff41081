import io
import os
import stat
import struct
import zipfile
import zlib
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from farm.base.errors import UsageError, VerificationFailedError
from farm.wheel.archive import (
    DOS_EPOCH,
    MADE_BY_UNIX,
    STORED,
    Archive,
    Entry,
    Limits,
    central_header,
    end_records,
    local_header,
)
from tests.examples import examples

HIDDEN = Entry("b", STORED, *DOS_EPOCH, zlib.crc32(b"xy"), 2, 2, 0, MADE_BY_UNIX, 0)


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


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "a/../../evil.py",
        "/etc/passwd",
        "a\\..\\evil.py",
        "C:evil.py",
        "a//b",
        "./a",
        "con",
        "lib/NUL.txt",
        "lib/com1",
        "lib/aux .h",
        "a./b",
        "trailing ",
        "bell\x07",
        "n" * 1025,
        "d/" * 65 + "f",
    ],
)
def test_refuses_unsafe_names(tmp_path, name):
    path = write_zip(tmp_path / "w.whl", [("good", b""), (name, b"")])
    with pytest.raises(VerificationFailedError, match=r"w\.whl: member") as caught:
        Archive(path)
    assert repr(name)[1:20] in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("a/Readme", "a/README", "case"),
        ("stra\u00dfe", "STRASSE", "case"),
        ("caf\u00e9", "cafe\u0301", "normal form"),
        ("a", "a/b", "is below"),
        ("A", "a/b", "is below"),
    ],
)
def test_refuses_names_that_collide(tmp_path, first, second, why):
    with pytest.raises(VerificationFailedError, match=why):
        Archive(write_zip(tmp_path / "w.whl", [(first, b""), (second, b"")]))


def test_refuses_duplicates(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate"):
        path = write_zip(tmp_path / "w.whl", [("a", b"1"), ("a", b"2")])
    with pytest.raises(VerificationFailedError, match="'a': occurs twice"):
        Archive(path)


def write_link(path, name, target, kind=stat.S_IFLNK):
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(entry, target)
    return path


@pytest.mark.parametrize("target", ["../x", "/etc/passwd", "..", "x/../../../y", ".", "c:\\x", b"\xff"])
def test_refuses_links_out_of_the_wheel(tmp_path, target):
    with pytest.raises(VerificationFailedError, match="'link': a symbolic link"):
        Archive(write_link(tmp_path / "w.whl", "link", target))


def test_accepts_links_inside_and_refuses_devices(tmp_path):
    with Archive(write_link(tmp_path / "w.whl", "a/b/link", "../c.so")) as archive:
        assert stat.S_ISLNK(archive.members["a/b/link"].mode)
    # nodejs-bin's npm, which pip, installer and auditwheel write as an empty file.
    with Archive(write_link(tmp_path / "w.whl", "nodejs/bin/npm", "")) as archive:
        assert archive.read("nodejs/bin/npm") == b""
    with pytest.raises(VerificationFailedError, match="neither a file"):
        Archive(write_link(tmp_path / "w.whl", "fifo", "", stat.S_IFIFO))


def assemble(parts, entries):
    """A ZIP file from local parts and directory entries, right or wrong."""
    data = b"".join(parts)
    directory = b"".join(map(central_header, entries))
    return data + directory + end_records(len(entries), len(data), len(directory))


def hidden_in(name, content):
    """A stored member whose content is itself a whole member `b`."""
    entry = Entry(name, STORED, *DOS_EPOCH, zlib.crc32(content), len(content), len(content), 0, MADE_BY_UNIX, 0)
    return entry, [local_header(entry, wide=False), content]


def test_refuses_overlapping_members(tmp_path):
    outer, parts = hidden_in("a", local_header(HIDDEN, wide=False) + b"xy")
    inner = Entry("b", STORED, *DOS_EPOCH, HIDDEN.crc, 2, 2, 0, MADE_BY_UNIX, len(parts[0]))
    path = tmp_path / "w.whl"
    path.write_bytes(assemble(parts, [outer]))
    assert read_all(path) == {"a": parts[1]}
    path.write_bytes(assemble(parts, [outer, inner]))
    with pytest.raises(VerificationFailedError, match="'b': overlaps"):
        Archive(path)


def test_refuses_bytes_that_belong_to_no_member(tmp_path):
    path = tmp_path / "w.whl"
    content = assemble([local_header(HIDDEN, wide=False), b"xy"], [HIDDEN])
    for bad in (b"#!/bin/sh\n" + content, content + b"\0", content[:-1], content[: len(content) // 2], b"", b"PK"):
        path.write_bytes(bad)
        with pytest.raises(VerificationFailedError):
            Archive(path)
    path.write_bytes(assemble([local_header(HIDDEN, wide=False), b"xy", b"hidden"], [HIDDEN]))
    with pytest.raises(VerificationFailedError, match="belong to no member"):
        Archive(path)


def test_refuses_bytes_between_members(tmp_path):
    header = local_header(HIDDEN, wide=False)
    other = Entry("c", STORED, *DOS_EPOCH, HIDDEN.crc, 2, 2, 0, MADE_BY_UNIX, len(header) + 2)
    second = local_header(other, wide=False)
    path = tmp_path / "w.whl"
    path.write_bytes(assemble([header, b"xy", second, b"xy"], [HIDDEN, other]))
    assert read_all(path) == {"b": b"xy", "c": b"xy"}
    moved = Entry("c", STORED, *DOS_EPOCH, HIDDEN.crc, 2, 2, 0, MADE_BY_UNIX, len(header) + 2 + 6)
    path.write_bytes(assemble([header, b"xy", b"hidden", second, b"xy"], [HIDDEN, moved]))
    with pytest.raises(VerificationFailedError, match="'c': 6 bytes before it belong to no member"):
        Archive(path)


@pytest.mark.parametrize("field", [14, 18, 22])  # CRC, packed size, size in the local header
def test_refuses_other_numbers_in_the_local_header(tmp_path, field):
    path = write_zip(tmp_path / "w.whl", [("good", b"1" * 100)])
    raw = bytearray(path.read_bytes())
    raw[field] ^= 1
    path.write_bytes(raw)
    with pytest.raises(VerificationFailedError, match="'good': its local header contradicts"):
        Archive(path)


def test_refuses_a_local_header_that_contradicts_the_directory(tmp_path):
    path = write_zip(tmp_path / "w.whl", [("good", b"1")])
    path.write_bytes(path.read_bytes().replace(b"good", b"evil", 1))
    with pytest.raises(VerificationFailedError, match="'good': its local header names another"):
        Archive(path)


@pytest.mark.parametrize(("flags", "method"), [(1, 8), (0x40, 8), (0, 12), (0, 99)])
def test_refuses_encryption_and_other_methods(tmp_path, flags, method):
    path = write_zip(tmp_path / "w.whl", [("a", b"1")])
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\1\2")
    struct.pack_into("<HH", raw, at + 8, flags, method)
    struct.pack_into("<HH", raw, 6, flags, method)
    path.write_bytes(raw)
    with pytest.raises(VerificationFailedError, match="'a'"):
        Archive(path)


@pytest.mark.parametrize("declared", [0, 1, 999, 1001, 4_000_000_000])
def test_refuses_lying_sizes(tmp_path, declared):
    path = write_zip(tmp_path / "w.whl", [("a", b"A" * 1000)])
    raw = bytearray(path.read_bytes())
    struct.pack_into("<I", raw, raw.index(b"PK\1\2") + 24, declared)
    struct.pack_into("<I", raw, 22, declared)
    path.write_bytes(raw)
    with pytest.raises(VerificationFailedError), Archive(path) as archive:
        for _ in archive.chunks("a"):
            pass


def test_refuses_damaged_content(tmp_path):
    path = tmp_path / "w.whl"
    parts = [local_header(HIDDEN, wide=False), b"xz"]
    path.write_bytes(assemble(parts, [HIDDEN]))
    with pytest.raises(VerificationFailedError, match="'b': its CRC"):
        read_all(path)


def test_refuses_bombs(tmp_path):
    path = write_zip(tmp_path / "w.whl", [("zeros", bytes(70 << 20))])
    with pytest.raises(VerificationFailedError, match="bomb"):
        Archive(path)
    with Archive(path, Limits(ratio=1100)) as archive:
        assert archive.members["zeros"].size == 70 << 20
        with archive.content("zeros", (b"\0\0\0\0",)) as (_, data):
            assert len(data) == 70 << 20  # above what is kept in memory


@pytest.mark.parametrize("limits", [Limits(members=1), Limits(member_bytes=5), Limits(total_bytes=9)])
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
    entry = Entry("a.so", 8, *DOS_EPOCH, zlib.crc32(content), len(packed), len(content), 0, MADE_BY_UNIX, 0)
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
    good = assemble([local_header(HIDDEN, wide=False), b"xy"], [HIDDEN])
    path = tmp_path / "w.whl"
    path.write_bytes(raw + good[cut + 1 :])
    with pytest.raises(VerificationFailedError):
        read_all(path)
