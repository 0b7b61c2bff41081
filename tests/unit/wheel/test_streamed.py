"""Large libraries read while they are unpacked: the same facts as from a file, or none."""

import random

import pytest

from farm.base.errors import VerificationFailedError
from farm.wheel import archive as archive_module
from farm.wheel import contents, streamed
from farm.wheel.archive import Archive
from farm.wheel.inspect import inspect
from farm.wheel.library import read_library
from farm.wheel.partial import TooFarInsideError
from farm.wheel.streamed import Streamed, read_streamed


def in_chunks(content, seed):
    picker = random.Random(seed)
    at = 0
    while at < len(content):
        size = picker.randint(1, 40)
        yield content[at : at + size]
        at += size


@pytest.mark.parametrize("seed", range(20))
def test_slices_and_searches_are_those_of_the_bytes(seed):
    picker = random.Random(seed)
    content = picker.choices(b"ab\0", k=900)
    content = bytes(content)
    data = Streamed(in_chunks(content, seed), len(content))
    for start in sorted(picker.choices(range(900), k=40)):
        stop = start + picker.randint(0, 120)
        what = bytes(picker.choices(b"ab\0", k=picker.randint(1, 6)))
        assert data[start:stop] == content[start:stop], f"seed {seed}"
        assert data.find(what, start, stop) == content.find(what, start, stop), f"seed {seed}"
        assert data[start] == content[start]


def test_what_is_kept_can_be_read_at_the_end(monkeypatch):
    monkeypatch.setattr(streamed, "_WINDOW", 50)
    monkeypatch.setattr(streamed, "_HEAD", 100)
    content = random.Random(1).randbytes(5000)
    data = Streamed(in_chunks(content, 1), len(content))
    data.keep([(2000, 2100)])
    data.finish()
    assert (data[0:100], data[2000:2100], data[4990:]) == (content[:100], content[2000:2100], content[4990:])
    for start, stop in ((1000, 1001), (2050, 2500)):
        with pytest.raises(TooFarInsideError):
            data[start:stop]


@pytest.fixture
def both(tmp_path, make_wheel):
    """(facts while it is unpacked, facts from its bytes) of a library."""

    def read(content):
        name = "canary/libk.so"
        with Archive(make_wheel(tmp_path, {name: content}), lenient=True) as opened:
            found = read_streamed(opened, name)
            with opened.content(name, (b"\x7fELF",)) as (sha256, data):
                return found, read_library(name, sha256, data, None)

    return read


def test_the_facts_are_those_of_the_file(both, make_elf, make_container, make_entry):
    fatbin = make_container(make_entry("sass", 35), make_entry("ptx", 50)) + make_container(make_entry("sass", 50))
    for content in (make_elf(needed=["libc.so.6"]), make_elf(needed=["libcuda.so.1"], fatbin=fatbin)):
        found, expected = both(content)
        assert found == expected
    assert sum(group.containers for group in expected.fatbins) == 2


def test_hidden_device_code_is_found(both, make_elf, make_container, make_entry):
    hidden = make_container(make_entry("sass", 75))
    found, expected = both(make_elf(fatbin=make_container(make_entry("sass", 35))) + bytes(40) + hidden)
    assert found == expected
    assert {group.sass for group in found.fatbins} == {(35,), (75,)}


@pytest.mark.parametrize("between", [b"\1" * 8, b"\0" * 8 + b"\1" * 8])
def test_what_linkers_do_not_make_is_left_to_the_file(both, make_elf, make_container, make_entry, between):
    fatbin = make_container(make_entry("sass", 35))
    found, expected = both(make_elf(fatbin=fatbin + between + fatbin))
    assert found is None
    assert "no container begins here" in expected.error


def test_inspect_tells_the_same_both_ways(tmp_path, monkeypatch, make_wheel, make_elf, make_container, make_entry):
    code = make_elf(fatbin=make_container(make_entry("sass", 35)))
    path = make_wheel(tmp_path, {"canary/libk.so": code, "canary/other/libk.so": code})
    from_memory = inspect(path, decoded=0)
    monkeypatch.setattr(contents, "_WORTH_COMPARING", 100)
    calls = []
    real = streamed.read_streamed
    monkeypatch.setattr(archive_module, "_IN_MEMORY", 100)
    monkeypatch.setattr(streamed, "read_streamed", lambda *each: calls.append(each[1]) or real(*each))
    assert inspect(path, decoded=0) == from_memory
    assert calls == ["canary/libk.so"], "and not again where its bytes are those of another"


def test_damage_is_reported(tmp_path, monkeypatch, make_wheel, make_elf):
    path = make_wheel(tmp_path, {"canary/libk.so": make_elf() + bytes(70_000)}, level=0)
    monkeypatch.setattr(archive_module, "_IN_MEMORY", 100)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"\x7fELF") + 60_000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(VerificationFailedError, match="CRC"):
        inspect(path, decoded=0)
