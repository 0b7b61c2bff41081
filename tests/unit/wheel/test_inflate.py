"""What vouches for a wheel takes and refuses the same streams as zlib, whichever package is installed."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.wheel.inflate import InflateErrors, inflater
from tests.examples import examples


def unpacked(unpacker, errors, packed, most):
    """(what comes out, in pieces of `most`; what is left behind the end), or the refusal."""
    try:
        content = unpacker.decompress(packed, most)
        while not unpacker.eof and (more := unpacker.decompress(unpacker.unconsumed_tail, most)):
            content += more
    except errors:
        return "refused"
    return content, unpacker.eof, unpacker.unused_data


@examples(500)
@given(
    content=st.binary(max_size=400) | st.text("abc", max_size=3000).map(str.encode),
    level=st.sampled_from([0, 1, 6, 9]),
    strategy=st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_FIXED]),
    flips=st.lists(st.integers(0, 1 << 20), max_size=3),
    cut=st.integers(0, 40),
    most=st.sampled_from([1 << 16, 500]),
)
def test_damaged_streams_mean_the_same_as_to_zlib(content, level, strategy, flips, cut, most):
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, strategy=strategy)
    packed = bytearray(packer.compress(content) + packer.flush())
    for flip in flips:
        packed[flip // 8 % len(packed)] ^= 1 << flip % 8
    packed = bytes(packed[: max(len(packed) - cut, 0)])
    expected = unpacked(zlib.decompressobj(-15), zlib.error, packed, most)
    assert unpacked(inflater(lenient=False), InflateErrors, packed, most) == expected


def test_random_bytes_mean_the_same_as_to_zlib():
    source = random.Random(4)
    taken = 0
    for _ in range(5000):
        packed = source.randbytes(source.randint(1, 60))
        expected = unpacked(zlib.decompressobj(-15), zlib.error, packed, 1 << 16)
        assert unpacked(inflater(lenient=False), InflateErrors, packed, 1 << 16) == expected
        taken += expected != "refused"
    assert taken > 100  # not all were refused at once


@pytest.mark.parametrize("lenient", [True, False])
def test_a_dictionary_stands_before_the_stream(lenient):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=b"kernels for old hardware")
    packed = packer.compress(b"old hardware") + packer.flush()
    assert inflater(b"kernels for old hardware", lenient=lenient).decompress(packed) == b"old hardware"
