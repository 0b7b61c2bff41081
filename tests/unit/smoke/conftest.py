"""Fake modules for the probe to test, each in a fresh environment; and what tests need from the machine."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from farm.smoke.emulation import find_emulator

# A pure-Python module that speaks the interface and computes correctly. Tests append to it to break it.
GOOD = """
import array
import math

__version__ = "1.2.3"
float32, float64, int32 = "float32", "float64", "int32"


class version:
    cuda = None


class __config__:
    @staticmethod
    def show():
        return "fakemod built with nothing"


class cuda:
    @staticmethod
    def is_available():
        return False

    @staticmethod
    def device_count():
        return 0

    @staticmethod
    def get_arch_list():
        return []


def rounded(values, dtype):
    return array.array({float32: "f", float64: "d", int32: "i"}[dtype], values).tolist()


class Tensor:
    def __init__(self, rows, dtype):
        self.rows, self.dtype = [rounded(row, dtype) for row in rows], dtype
        self.shape = (len(rows), len(rows[0]))

    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        return Tensor([[self.dot(row, column) for column in columns] for row in self.rows], self.dtype)

    def dot(self, row, column):
        total = math.fsum(x * y for x, y in zip(row, column))
        return int(total) if self.dtype == int32 else total

    def cpu(self):
        return self

    def tolist(self):
        return self.rows


def tensor(rows, dtype=float32, device="cpu"):
    assert device == "cpu"
    return Tensor(rows, dtype)
"""


@pytest.fixture
def good_source():
    return GOOD


@pytest.fixture
def environment(tmp_path):
    """Gives a function: source of `fakemod` (appended to a good one) -> the environment's interpreter."""

    def make(addition: str = "", *, base: str = GOOD) -> Path:
        folder = tmp_path / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (site,) = folder.rglob("site-packages")
        (site / "fakemod.py").write_text(base + textwrap.dedent(addition), encoding="utf-8")
        return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    return make


@pytest.fixture
def emulator():
    """The qemu program. Without it the test is skipped, or fails where FARM_REQUIRE=all promises everything."""
    found = find_emulator()
    if found.program is None:
        message = f"{found.reason}; {found.hint}"
        if os.environ.get("FARM_REQUIRE") == "all":
            pytest.fail(message)
        pytest.skip(message)
    return found.program
