"""Tar streams to and from containers."""

import errno
import io
import os
import random
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from farm.base.errors import InfrastructureError
from farm.engines import transfer
from farm.engines.transfer import (
    MAX_HEADER,
    MAX_MEMBERS,
    LocalDiskError,
    RefusedOutputError,
    unpack,
    unpack_zip,
)

LIMIT = 1 << 20


def tar(*members, end=True):
    """A tar of (name, content or TarInfo changes); without `end`, the stream stops after the last
    member.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                for key, value in content.items():
                    setattr(info, key, value)
                archive.addfile(info)
        size = buffer.tell()
    return buffer.getvalue() if end else buffer.getvalue()[:size]


def chunked(data, size=1000):
    return (data[i : i + size] for i in range(0, len(data), size))


def tree(folder):
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


# --- pack ---


def source(folder):
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"junk")
    (folder / "sub" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (folder / "sub" / "run.sh").chmod(0o700)
    (folder / "a.txt").write_bytes(b"a" * 1000)
    (folder / "link").symlink_to("sub/run.sh")
    (folder / "folder-link").symlink_to("sub")
    os.link(folder / "a.txt", folder / "z.txt")
    return folder


def pack(folders):
    stream = io.BytesIO()
    transfer.pack(folders, stream)
    return stream.getvalue()


def test_a_packed_folder_holds_what_the_container_needs(tmp_path):
    data = pack({"/farm/src": source(tmp_path / "one")})
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {m.name: m for m in archive}
        assert archive.extractfile("farm/src/z.txt").read() == b"a" * 1000
    assert list(members) == [
        "farm/src/a.txt",
        "farm/src/folder-link",
        "farm/src/link",
        "farm/src/sub",
        "farm/src/sub/empty",
        "farm/src/sub/run.sh",
        "farm/src/z.txt",
    ]
    assert {(m.uid, m.gid, m.uname, m.mtime) for m in members.values()} == {(0, 0, "root", 0)}
    assert [oct(members[f"farm/src/{n}"].mode) for n in ("a.txt", "sub", "sub/run.sh")] == [
        "0o644",
        "0o755",
        "0o755",
    ]
    assert (members["farm/src/link"].linkname, members["farm/src/folder-link"].linkname) == (
        "sub/run.sh",
        "sub",
    )


def test_the_same_files_give_the_same_bytes(tmp_path):
    one, two = source(tmp_path / "one"), source(tmp_path / "two")
    (two / "z.txt").unlink()
    (two / "z.txt").write_bytes(b"a" * 1000)  # no hard link here
    os.utime(two / "a.txt", (1, 1))
    (two / "a.txt").chmod(0o604)
    assert pack({"/x": one}) == pack({"/x": two})
    (two / "a.txt").write_bytes(b"b" * 1000)
    assert pack({"/x": one}) != pack({"/x": two})


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-zé]{1,120}\Z"), st.binary(max_size=2000), min_size=1, max_size=5
    )
)
def test_packing_and_unpacking_are_inverse(tmp_path_factory, files):
    here = tmp_path_factory.mktemp("round")
    (here / "in").mkdir()
    for name, content in files.items():
        (here / "in" / name).write_bytes(content)
    written = unpack(chunked(pack({"out": here / "in"}), 700), here / "out", LIMIT)
    assert tree(here / "out") == files
    assert sorted(p.name for p in written) == sorted(files)


# --- unpack ---


def refusal(data, dest, limit=LIMIT):
    with pytest.raises((InfrastructureError, RefusedOutputError)) as caught:
        unpack(chunked(data), dest, limit)
    return str(caught.value)


def test_an_output_folder_is_unpacked_without_its_name(tmp_path):
    data = tar(
        ("out/", {"type": tarfile.DIRTYPE}),
        ("out/wheel/a.whl", b"wheel"),
        ("./out/lib/b.so", b"lib"),
    )
    unpack(chunked(data), tmp_path / "dest", LIMIT)
    assert tree(tmp_path / "dest") == {"wheel/a.whl": b"wheel", "lib/b.so": b"lib"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out/../../evil", b"x"),
        ("../evil", b"x"),
        ("/evil", b"x"),
        ("/etc/evil", b"x"),
        ("out/a/../../../evil", b"x"),
        ("evil", b"x"),
        ("out/link", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        ("out/link", {"type": tarfile.LNKTYPE, "linkname": "out/x"}),
        ("out/null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}),
        ("out/disk", {"type": tarfile.BLKTYPE}),
        ("out/pipe", {"type": tarfile.FIFOTYPE}),
    ],
)
def test_special_files_are_refused(tmp_path, name, content):
    text = refusal(tar(("out/x", b"1"), (name, content)), tmp_path / "dest")
    assert repr(name) in text
    assert tree(tmp_path) == {"dest/x": b"1"}


def test_a_sparse_file_is_refused(tmp_path):
    """A few bytes of stream would become any number of bytes on disk."""
    info = tarfile.TarInfo("out/huge")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(8 << 20),
    }
    info.size = 512
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(b"0\n".ljust(512, b"\0")))
    assert "not a plain file" in refusal(buffer.getvalue(), tmp_path / "dest")
    assert tree(tmp_path) == {}


def test_too_many_members_are_refused(tmp_path, monkeypatch):
    assert MAX_MEMBERS == 10_000
    monkeypatch.setattr(transfer, "MAX_MEMBERS", 3)
    members = [(f"out/{n}", b"") for n in range(4)]
    assert len(unpack(chunked(tar(*members[:3])), tmp_path / "fits", LIMIT)) == 3
    assert "more than 3 files" in refusal(tar(*members), tmp_path / "dest")


def test_too_many_bytes_are_refused(tmp_path):
    data = tar(("out/big", bytes(5 << 20)))
    assert "'out/big' has 0.01 GB, and its runner may leave 0.00 GB" in refusal(
        data, tmp_path / "dest", 1000
    )
    taken = []

    def endless():
        yield data[: 1 << 20]
        while True:
            taken.append(1 << 20)
            yield bytes(1 << 20)

    with pytest.raises(RefusedOutputError, match="larger than allowed"):
        unpack(endless(), tmp_path / "other", 3 << 20)
    assert sum(taken) <= 6 << 20


def test_a_file_of_a_terabyte_is_refused_by_its_header(tmp_path):
    """As a sparse file comes: an engine sends zeros for hours."""
    info, sent = tarfile.TarInfo("out/wheel/sparse"), []
    info.size = 1 << 40

    def stream():
        yield info.tobuf()
        while True:
            sent.append(1 << 20)
            yield bytes(1 << 20)

    with pytest.raises(
        RefusedOutputError,
        match=r"'out/wheel/sparse' has 1099\.51 GB, and its runner may leave 17\.18",
    ):
        unpack(stream(), tmp_path, 16 << 30)
    assert sum(sent) <= 2 << 20


def test_a_huge_header_is_not_held_in_memory(tmp_path):
    data = tar(("out/" + "x" * (MAX_HEADER + 1), b"1"))
    assert "a header of" in refusal(data, tmp_path / "dest", 1 << 30)


def test_chained_tar_headers_are_refused(tmp_path):
    one = tarfile.TarInfo("././@LongLink")
    one.type, one.size = tarfile.GNUTYPE_LONGNAME, 4
    block = one.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(512, b"\0")
    assert "not a tar stream" in refusal(block * 3000 + bytes(1024), tmp_path / "dest", 1 << 30)


@pytest.mark.parametrize(
    "members", [(("out/a", b"1"), ("out/a", b"2")), (("out/a", b"1"), ("out/a/b", b"2"))]
)
def test_two_members_with_one_path_are_refused(tmp_path, members):
    assert "exists" in refusal(tar(*members), tmp_path / "dest") or os.name == "nt"
    assert tree(tmp_path / "dest") == {"a": b"1"}


def test_an_impossible_file_name_is_refused(tmp_path):
    assert "File name too long" in refusal(tar(("out/" + "x" * 300, b"1")), tmp_path / "dest")
    assert "cannot be printed" in refusal(
        tar(("out/x", {"pax_headers": {"path": "out/a\0b"}})), tmp_path / "dest"
    )


GOOD = tar(("out/a", b"a" * 700), ("out/b", b"b" * 600))


@pytest.mark.parametrize("length", [0, 100, 512, 1000, 1536, 2048, 2560, 3071, len(GOOD) - 1])
def test_a_stream_that_ends_too_early(tmp_path, length):
    cut = GOOD[:length] if length < len(GOOD) - 1 else tar(("out/a", b"a" * 700), end=False)
    assert refusal(cut, tmp_path / "dest").startswith(
        ("the job's output ends too early", "the job's output is not a tar")
    )


@pytest.mark.parametrize(
    "data", [b"", b"x" * 600, b"\x1f\x8b" + bytes(600), bytes(range(256)) * 40]
)
def test_a_stream_that_is_not_a_tar_is_refused(tmp_path, data):
    assert "tar stream" in refusal(data, tmp_path / "dest") or "too early" in refusal(
        data, tmp_path / "dest2"
    )
    assert tree(tmp_path) == {}


HEADERS = tar(
    ("out/" + "long" * 40, b"1" * 50),
    ("out/b", {"pax_headers": {"GNU.sparse.map": "0,1", "size": "5"}}),
    ("out/c/../d", b"2"),
    ("out/e", b"3"),
)


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 6),
    base=st.sampled_from([GOOD, HEADERS]),
    cut=st.integers(0, 3),
)
def test_a_mutated_tar_never_writes_outside(tmp_path_factory, seed, count, base, cut):
    """Bytes are changed where headers are, with their checksums corrected, so that the changes are
    believed.
    """
    chance = random.Random(seed)
    data = bytearray(base)
    for _ in range(count):
        block = chance.randrange(len(base) // 512) * 512
        place = block + chance.choice(
            [0, 1, 4, 100, 124, 135, 156, 157, 257, 345, chance.randrange(512)]
        )
        data[place] = chance.choice(
            [0, 46, 47, 48, 49, 50, 53, 76, 120, 128, 255, chance.randrange(256)]
        )
        head = bytes(data[block : block + 512])
        if head[257:262] == b"ustar":
            checksum = sum(head[:148]) + 256 + sum(head[156:])
            data[block + 148 : block + 156] = b"%06o\0 " % checksum
    here = tmp_path_factory.mktemp("mutated")
    dest = here / "deep" / "dest"
    stream = bytes(data[: len(data) - cut * 512])
    try:
        written = unpack(chunked(stream, 333), dest, LIMIT)
    except (InfrastructureError, RefusedOutputError):
        pass
    else:
        assert all(p.is_relative_to(dest) and ".." not in p.parts for p in written)
    assert {p for p in here.rglob("*") if not p.is_dir()} == {
        p for p in dest.rglob("*") if not p.is_dir()
    }
    assert all(p.is_file() and not p.is_symlink() for p in dest.rglob("*") if not p.is_dir())


def zipped(method=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name in ("wheel/a.whl", "lib/b.so"):
            archive.writestr(name, bytes(range(256)) * 9)
    return bytearray(made.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_by_a_method_that_github_does_not_use_is_refused(tmp_path, method):
    """Damaged, their decoders raise errors of their own; bzip2's are those of a disk, which the
    farm would wait for.
    """
    data = zipped(method)
    data[60:80] = bytes(20)
    (tmp_path / "out.zip").write_bytes(data)
    with pytest.raises(RefusedOutputError, match="is not a plain file"):
        unpack_zip(tmp_path / "out.zip", tmp_path / "dest", LIMIT)


@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), method=st.sampled_from([0, 8]))
@example(seed=4303, count=1, method=8)  # a member without a name
def test_a_mutated_zip_never_writes_outside_and_is_never_the_disks_fault(
    tmp_path_factory, seed, count, method
):
    chance, data = random.Random(seed), zipped(method)
    for _ in range(count):
        data[chance.randrange(len(data))] = chance.choice(
            [0, 1, 8, 9, 12, 14, 46, 47, 80, 255, chance.randrange(256)]
        )
    here = tmp_path_factory.mktemp("mutated")
    (here / "out.zip").write_bytes(data[: len(data) - chance.choice([0, 0, 1, 30])])
    dest = here / "deep" / "dest"
    try:
        unpack_zip(here / "out.zip", dest, LIMIT)
    except LocalDiskError as error:
        raise AssertionError(error) from error
    except (InfrastructureError, RefusedOutputError):
        pass
    assert [p.name for p in here.rglob("*") if p.is_file() and not p.is_relative_to(dest)] == [
        "out.zip"
    ]
    assert all(p.is_file() and not p.is_symlink() for p in dest.rglob("*") if not p.is_dir())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EDQUOT])
def test_a_disk_that_takes_no_more_is_this_machines_fault_and_the_stream_is_left(
    tmp_path, monkeypatch, number
):
    """Not a refusal of the output, and no end of the stream is waited for: a build's 16 GiB might
    follow.
    """
    sent = []

    def chunks():
        for piece in chunked(tar(("out/x.whl", b"x" * (3 << 20))), 1 << 16):
            sent.append(len(piece))
            yield piece

    def fails(*_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fails)
    with pytest.raises(LocalDiskError, match=os.strerror(number)) as caught:
        unpack(chunks(), tmp_path / "dest", 8 << 20)
    assert sum(sent) < 2 << 20
    assert "free disk space" in caught.value.hint
