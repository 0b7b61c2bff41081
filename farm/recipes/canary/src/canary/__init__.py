"""A small matrix library that speaks the part of torch's interface that a smoke test needs.

Matrices (2-D) of float32 and float64 on the CPU and on a CUDA device, of int32 on the CPU, and one
operation: the matrix product.
"""

from __future__ import annotations

import array
import os
from pathlib import Path
from typing import TYPE_CHECKING

if hasattr(os, "add_dll_directory"):  # Windows
    os.add_dll_directory(str(Path(__file__).parent / "lib"))

from canary import _C, cuda, version
from canary import _config as __config__
from canary.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Tensor",
    "__config__",
    "__version__",
    "cuda",
    "dtype",
    "float32",
    "float64",
    "int32",
    "matmul",
    "show_config",
    "tensor",
    "version",
]


class dtype:  # noqa: N801  torch's name
    """A number format; `typecode` is that of the standard library's `array`, `code` the number in
    C++.
    """

    def __init__(self, name: str, typecode: str, code: int) -> None:
        self.name = name
        self.typecode = typecode
        self.code = code

    def __repr__(self) -> str:
        return "canary." + self.name


float32 = dtype("float32", "f", 0)
float64 = dtype("float64", "d", 1)
int32 = dtype("int32", "i", 2)
_DTYPES = (float32, float64, int32)


class Tensor:
    """A matrix. Made by `tensor()`; never changes."""

    def __init__(self, handle: object) -> None:
        self._handle = handle
        rows, cols, code, self.device = _C.describe(handle)
        self.shape = (rows, cols)
        self.dtype = _DTYPES[code]

    def __matmul__(self, other: Tensor) -> Tensor:
        return matmul(self, other)

    def __repr__(self) -> str:
        return f"canary.Tensor(shape={self.shape}, dtype={self.dtype}, device={self.device!r})"

    def to(self, device: str) -> Tensor:
        """A copy of the matrix on `cpu` or on `cuda` (the current device)."""
        return Tensor(_C.to_device(self._handle, device))

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def cuda(self) -> Tensor:
        return self.to("cuda")

    def tolist(self) -> list[list[float]]:
        numbers: array.array[float] = array.array(self.dtype.typecode, _C.to_bytes(self._handle))
        flat = numbers.tolist()
        rows, cols = self.shape
        matrix = []
        for row in range(rows):
            start = row * cols
            matrix.append(flat[start : start + cols])
        return matrix


def tensor(data: Sequence[Iterable[float]], dtype: dtype = float32, device: str = "cpu") -> Tensor:
    """Makes a matrix from a list of rows of one length.

    Raises:
        ValueError: The rows differ in length.
        RuntimeError: The device cannot be used; the text has CUDA's name for the error.
    """
    rows = list(map(list, data))
    cols = 0
    if rows:
        cols = len(rows[0])
    flat: array.array[float] = array.array(dtype.typecode)
    for row in rows:
        if len(row) != cols:
            raise ValueError("the rows of a matrix must have one length")
        flat.extend(row)
    handle = _C.from_bytes(flat.tobytes(), len(rows), cols, dtype.code)
    return Tensor(handle).to(device)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product, computed where both operands are.

    Raises:
        ValueError: The operands differ in dtype or device, or their shapes do not fit.
        RuntimeError: The device failed; the text has CUDA's name for the error.
    """
    return Tensor(_C.matmul(a._handle, b._handle))


def show_config() -> str:
    """How this build was made: compiler, flags, CUDA version, architectures."""
    return __config__.show()
