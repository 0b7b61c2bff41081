"""A library above 16 MiB is read in a process of its own: what comes back is what a call gives."""

import os
import shutil

import pytest

from farm.base.errors import InfrastructureError
from farm.wheel.archive import Archive
from farm.wheel.contents import read_contents
from farm.wheel.library import read_library

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no inherited file descriptors: read in place")
RET, VPADDD_YMM = b"\xc3", bytes.fromhex("c5f5fec2")  # the second needs AVX2
FILL = bytes((16 << 20) + 1)
NAMES = ("own/good.so", "own/damaged.so", "own/nvrtc.dll")


@pytest.fixture
def raw(make_elf, make_pe):
    code = VPADDD_YMM + RET + b"\xcc" * 252
    good = make_elf(text=code, symbols={"ctor": 0}, init=[0], needed=["libc.so.6"])
    return dict(
        zip(NAMES, (good + FILL, good[:40] + b"\xff" * 8 + good[48:] + FILL, make_pe(text=code) + FILL), strict=True)
    )


@pytest.fixture
def wheel(make_wheel, raw, tmp_path):
    return make_wheel(tmp_path, raw)


@pytest.mark.parametrize("dispatching", [(), ("own/*",)])
def test_the_same_as_in_this_process(wheel, raw, dispatching):
    with Archive(wheel) as archive:
        libraries = read_contents(archive, lambda _: "avx", dispatching).libraries
    assert {library.path for library in libraries} == set(NAMES)
    for library in libraries:
        content = raw[library.path]
        expected = read_library(library.path, library.sha256, content, "avx", on_load=bool(dispatching))
        assert library == expected
        assert library.size == len(content)
    by_name = {library.path: library for library in libraries}
    assert by_name["own/good.so"].instructions.beyond == {"AVX2": (1, ("ctor+0x0",))}
    assert "damaged" in by_name["own/damaged.so"].error


def test_a_process_that_ends_badly_is_no_answer(wheel, monkeypatch):
    monkeypatch.setattr("farm.wheel.isolated.sys.executable", shutil.which("false"))
    with Archive(wheel) as archive, pytest.raises(InfrastructureError, match=r"own/.*its own process ended with 1"):
        read_contents(archive, lambda _: "avx")


def test_nothing_to_decode_starts_no_process(wheel, monkeypatch):
    monkeypatch.setattr("farm.wheel.isolated.sys.executable", shutil.which("false"))
    with Archive(wheel) as archive:
        libraries = read_contents(archive, lambda _: None).libraries
    assert [library.instructions for library in libraries] == [None, None, None]
