"""What repair looks at, and what it spares itself."""

import zlib

import pytest

from farm.wheel import contents
from farm.wheel.archive import Archive
from farm.wheel.contents import read_needs

_TABLE = [zlib.crc32(bytes([byte])) ^ zlib.crc32(b"\0") for byte in range(256)]
_BY_TOP = {word >> 24: index for index, word in enumerate(_TABLE)}


def forged(content: bytes, crc: int) -> bytes:
    """`content` and four bytes that give it this CRC."""
    wanted, indices = crc ^ 0xFFFFFFFF, []
    for _ in range(4):
        indices.append(_BY_TOP[wanted >> 24])
        wanted = (wanted ^ _TABLE[indices[-1]]) << 8 & 0xFFFFFFFF
    register, tail = zlib.crc32(content) ^ 0xFFFFFFFF, []
    for index in reversed(indices):
        tail.append((register ^ index) & 0xFF)
        register = register >> 8 ^ _TABLE[index]
    return content + bytes(tail)


@pytest.fixture
def looked(monkeypatch):
    """The members that were unpacked to be looked into."""
    names = []
    real = contents._read_partly
    monkeypatch.setattr(
        contents, "_read_partly", lambda archive, name, sha256: names.append(name) or real(archive, name, sha256)
    )
    return names


def needed(path):
    with Archive(path) as archive:
        return {library.path: (library.needed, library.sha256) for library in read_needs(archive, {}).libraries}


def test_a_dll_in_two_folders_is_looked_into_once(tmp_path, make_pe, make_wheel, looked):
    dll, other = make_pe(needed=["c10.dll"]), make_pe(needed=["c11.dll"])
    names = ["torch/bin/a.dll", "torch/lib/a.dll", "torch/lib/b.dll", "torch/x/a.dll"]
    found = needed(make_wheel(tmp_path, dict(zip(names, [dll, dll, dll, other], strict=True))))
    assert {name: each[0] for name, each in found.items()} == dict(
        zip(names, [("c10.dll",), ("c10.dll",), ("c10.dll",), ("c11.dll",)], strict=True)
    )
    assert found["torch/bin/a.dll"][1] == found["torch/lib/a.dll"][1] != found["torch/x/a.dll"][1]
    assert looked == ["torch/bin/a.dll", "torch/lib/b.dll", "torch/x/a.dll"]


def test_a_dll_that_only_has_the_length_and_crc_of_another_is_looked_into(tmp_path, make_pe, make_wheel, looked):
    dll = make_pe(needed=["c10.dll"]) + bytes(4)
    other = forged(make_pe(needed=["c11.dll"]), zlib.crc32(dll))
    assert (len(other), zlib.crc32(other)) == (len(dll), zlib.crc32(dll))
    found = needed(make_wheel(tmp_path, {"torch/bin/a.dll": dll, "torch/lib/a.dll": other}, level=0))
    assert [each[0] for each in found.values()] == [("c10.dll",), ("c11.dll",)]
    assert len(looked) == 2
