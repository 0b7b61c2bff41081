import random
import zipfile

import pytest

from farm.base.errors import VerificationFailedError
from farm.wheel import partial as module
from farm.wheel.archive import Archive
from farm.wheel.partial import PartialMember, TooFarInsideError, _with_start

SIZE = 6 << 20


@pytest.fixture(scope="module")
def content():
    """Code-like bytes: words that recur at all distances, some noise (stored blocks), some zeros."""
    picker = random.Random(3)
    words = [picker.randbytes(picker.randint(3, 9)) for _ in range(3000)]
    parts = []
    while sum(map(len, parts)) < SIZE:
        kind = picker.random()
        if kind < 0.05:
            parts.append(picker.randbytes(50_000))
        elif kind < 0.1:
            parts.append(bytes(20_000))
        parts.append(b"".join(picker.choices(words, k=20_000)))
    return b"".join(parts)[:SIZE]


@pytest.fixture(scope="module", params=[1, 6, 9])
def packed(request, tmp_path_factory, content):
    """The archive's path; each level of zlib once."""
    path = tmp_path_factory.mktemp("packed") / "a.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("lib.so", content, zipfile.ZIP_DEFLATED, request.param)
        file.writestr("stored.so", content, zipfile.ZIP_STORED)
        file.writestr("small", content[:5000], zipfile.ZIP_DEFLATED)
    return path


@pytest.fixture
def archive(packed, monkeypatch):
    monkeypatch.setattr(module, "_WHOLE", 1 << 20)
    with Archive(packed) as opened:
        yield opened


@pytest.fixture
def look(archive):
    opened = []

    def make(name):
        opened.append(PartialMember(archive, archive.entry(name)))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize("back", [1, 1000, 700_000, 1_500_000])
def test_the_end_without_the_beginning(look, content, back):
    seen = look("lib.so")
    assert seen[SIZE - back : SIZE - back + 999] == content[SIZE - back :][:999]
    assert seen[SIZE - back] == content[SIZE - back]
    assert seen[SIZE - 1 : SIZE + 99] == content[-1:]
    assert not seen._head  # nothing was unpacked from the beginning
    assert seen._tail_from > SIZE // 8
    assert (
        seen._tail.read(0, SIZE) == content[seen._tail_from :]
    )  # all that is kept is right, not only what was asked for


def test_the_beginning_without_the_end(look, content):
    seen = look("lib.so")
    assert seen[:4] == content[:4]
    assert seen[1_500_000:1_500_100] == content[1_500_000:1_500_100]
    assert seen._tail is None
    assert len(seen._head) < SIZE // 2
    assert seen.find(content[2000:2010], 1990, 2100) == content.find(content[2000:2010], 1990, 2100)
    assert seen.find(b"not in there, this", 0, 5000) == -1
    assert len(seen) == SIZE


@pytest.mark.parametrize("name", ["stored.so", "small"])
def test_members_that_need_no_trick(look, archive, content, name):
    seen = look(name)
    size = archive.entry(name).size
    for start in (0, size // 2, size - 10):
        assert seen[start : start + 10] == content[start : min(start + 10, size)]


def test_out_of_sight(look, monkeypatch, content):
    monkeypatch.setattr(module, "_HEAD", 1 << 20)
    monkeypatch.setattr(module, "_TAIL", 1 << 20)
    seen = look("lib.so")
    assert seen[SIZE - 1000 :] == content[-1000:]
    for at in (2 << 20, 4 << 20):
        with pytest.raises(TooFarInsideError):
            seen[at : at + 10]


def test_a_lie_about_the_length_gives_no_wrong_bytes(tmp_path, content, archive, monkeypatch):
    """The end of the stream must be the end of the member."""
    entry = archive.entry("lib.so")
    for wrong in (entry._replace(compressed=entry.compressed - 10), entry._replace(compressed=entry.compressed + 1)):
        seen = PartialMember(archive, wrong)
        with pytest.raises(TooFarInsideError):
            seen[SIZE - 1000 :]
    shorter = PartialMember(archive, entry._replace(compressed=entry.compressed // 8))
    with pytest.raises((VerificationFailedError, TooFarInsideError)):
        shorter[SIZE // 3 : SIZE // 3 + 10]


@pytest.mark.parametrize("shift", range(8))
def test_a_stream_may_begin_at_any_bit(shift):
    """The bits of an empty last block (1, 10, 0000000), from bit `shift` on."""
    import zlib

    later = (0b0000000_01_1 << shift).to_bytes(3, "little")
    inflater = zlib.decompressobj(-15)
    output = inflater.decompress(_with_start(later[0] | (1 << shift) - 1, shift, 0b111111111) + later[1:])
    assert inflater.eof
    assert output == b"\xff" * ((shift - 2) % 8)
