import os
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.wheel import deflate as module
from farm.wheel.deflate import BLOCK, deflate
from tests.examples import examples


def inflate(packed):
    inflater = zlib.decompressobj(-15)
    data = inflater.decompress(packed)
    assert inflater.eof
    assert not inflater.unused_data
    return data


@pytest.fixture(params=["isal", "zlib"])
def packer(request, monkeypatch):
    if request.param == "zlib":
        monkeypatch.setattr(module, "isal_zlib", None)
    elif module.isal_zlib is None:
        pytest.skip("isal is not installed")
    return deflate


def compressible(size):
    words = [random.Random(0).randbytes(20) for _ in range(500)]
    picker = random.Random(1)
    return b"".join(picker.choice(words) for _ in range(size // 20 + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, BLOCK, 3 * BLOCK + 17])
def test_zlib_reads_it_back(packer, size):
    data = compressible(size)
    chunks = [data[at : at + BLOCK] for at in range(0, size, BLOCK)]
    packed = b"".join(packer(chunks))
    assert inflate(packed) == data
    assert size < BLOCK or len(packed) < size / 3


def test_threads_do_not_change_the_bytes(monkeypatch):
    monkeypatch.setattr(module, "isal_zlib", None)
    data = compressible(5 * BLOCK)
    chunks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    results = set()
    for threads in (1, 2, 7):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        results.add(b"".join(deflate(chunks)))
    assert len(results) == 1


def test_blocks_see_what_stands_before_them(monkeypatch):
    """Random bytes that repeat across the cut: without the dictionary the second block would not shrink at all."""
    monkeypatch.setattr(module, "isal_zlib", None)
    part = random.Random(2).randbytes(30_000)
    packed = b"".join(deflate([part, part]))
    assert inflate(packed) == part + part
    assert len(packed) < 32_000


@examples(50)
@given(chunks=st.lists(st.binary(max_size=300), max_size=6))
def test_any_chunks(chunks):
    assert inflate(b"".join(deflate(chunks))) == b"".join(chunks)
