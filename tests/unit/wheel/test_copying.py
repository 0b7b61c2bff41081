"""Parts of files, copied by the kernel or past the page cache: the same bytes in both ways."""

import errno
import os
from pathlib import Path

import pytest

from farm.wheel import copying
from farm.wheel.copying import copy_range

pytestmark = pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="this system copies by reading and writing")
SIZE = (9 << 20) + 777  # more than a window, and no whole number of blocks


@pytest.mark.parametrize(("start", "at"), [(0, 0), (5, 5), (4096, 0), (0, 4096), (5, 4101), (1, 0), (5000, 904)])
def test_the_bytes_arrive_where_they_should(tmp_path, monkeypatch, start, at):
    direct = []
    real = copying._directly
    monkeypatch.setattr(copying, "_directly", lambda *args: direct.append(args) or real(*args))
    content = os.urandom(SIZE)
    (tmp_path / "a").write_bytes(content)
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb", buffering=0) as target:
        target.write(b"x" * at)
        assert copy_range(source.fileno(), target.fileno(), start, SIZE - 100) == SIZE - 100
        target.write(b"end")
    assert (tmp_path / "b").read_bytes() == b"x" * at + content[start:-100] + b"end"
    assert bool(direct) == ((start - at) % 4096 == 0)


def test_a_source_that_ends_early_is_told(tmp_path):
    (tmp_path / "a").write_bytes(b"y" * SIZE)
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb", buffering=0) as target:
        assert copy_range(source.fileno(), target.fileno(), 0, SIZE + (20 << 20)) == SIZE
    assert (tmp_path / "b").read_bytes() == b"y" * SIZE


@pytest.mark.parametrize("good", [0, 1, 2, 3])
def test_a_system_that_gives_up_halfway(tmp_path, monkeypatch, good):
    """What waits in the pipe when writing fails is written in the other way."""
    calls = []
    real = os.splice

    def splice(*args):
        calls.append(args)
        if len(calls) > good:
            raise OSError(errno.EINVAL, "no")
        return real(*args)

    monkeypatch.setattr(os, "splice", splice)
    content = os.urandom(SIZE)
    (tmp_path / "a").write_bytes(content)
    files = len(list(Path("/proc/self/fd").iterdir()))
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb", buffering=0) as target:
        assert copy_range(source.fileno(), target.fileno(), 0, SIZE) == SIZE
        target.write(b"end")
    assert (tmp_path / "b").read_bytes() == content + b"end"
    assert calls
    assert len(list(Path("/proc/self/fd").iterdir())) == files
