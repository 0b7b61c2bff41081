"""`fakemod`: a module in pure Python that speaks torch's interface, for the probe to test."""

import os
import textwrap
import venv
from pathlib import Path

# A pure-Python module that speaks the interface and computes correctly. Tests append to it to break
# it.
SOURCE = """
import array
import math
from operator import mul

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
        total = math.fsum(map(mul, row, column))
        return int(total) if self.dtype == int32 else total

    def cpu(self):
        return self

    def tolist(self):
        return self.rows


def tensor(rows, dtype=float32, device="cpu"):
    assert device == "cpu"
    return Tensor(rows, dtype)
"""


def install(folder: Path, addition: str = "", *, base: str = SOURCE) -> Path:
    """Makes an environment in `folder` with the module, `addition` at its end; returns its
    interpreter.
    """
    venv.create(folder, symlinks=os.name != "nt")
    (site,) = folder.rglob("site-packages")
    (site / "fakemod.py").write_text(base + textwrap.dedent(addition), encoding="utf-8")
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
