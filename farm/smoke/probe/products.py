"""Matrix products in plain Python, for any module that multiplies matrices, with Higham's bound for each element."""

from __future__ import annotations

import math
import random
from operator import mul
from typing import Any

from .outcome import FailedError

# (rows of a, columns of a = rows of b, columns of b). Edges of tiles and vectors: below, at and above them.
CPU_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (3, 257, 5))
CUDA_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (33, 129, 65))


# name -> (unit roundoff u of IEEE 754, bits of the inputs). The inputs have so few bits that a product of two is
# exact in a double, yet more than the next smaller format holds, so that a product in that one is found out.
FORMATS = {"float32": (2.0**-24, 24), "float64": (2.0**-53, 26)}
INTEGER_BITS = 11  # sums of 257 products of two such numbers stay far inside 32 bits


def make_matrix(rows: int, cols: int, bits: int, random_source: random.Random) -> list[list[float]]:
    """Numbers from -1 to 1 with at most `bits` significant bits."""
    half = 1 << (bits - 1)
    return [[(random_source.getrandbits(bits) - half) / half for _ in range(cols)] for _ in range(rows)]


def worst_error(a: list[list[float]], b: list[list[float]], c: list[list[float]], roundoff: float) -> tuple[float, str]:
    """The largest error of c = a b, as a share of what rounding can explain, and where it is.

    The bound for one element is gamma_n sum_k |a_ik| |b_kj| with gamma_n = n u / (1 - n u), n the inner size, u the
    unit roundoff; it holds for any order of summation, with and without fused multiply-add (Higham, Accuracy and
    Stability of Numerical Algorithms, 2nd edition, section 3.5). The reference is math.fsum over products that
    are exact, so it is off by its own last rounding only, which is added.
    """
    inner = len(b)
    gamma = inner * roundoff / (1 - inner * roundoff)
    columns = list(zip(*b))
    worst, where = 0.0, "no element"
    for i, row in enumerate(a):
        for j, column in enumerate(columns):
            products = list(map(mul, row, column))
            exact = math.fsum(products)
            bound = gamma * math.fsum(map(abs, products)) + 2.0**-53 * abs(exact)
            error = abs(c[i][j] - exact)
            share = error / bound if bound else (0.0 if error == 0 else math.inf)
            # Written so that a NaN counts as worst.
            if not share <= worst:
                worst, where = share, f"[{i}][{j}]: {c[i][j]!r}, exact {exact!r}"
                if math.isnan(share):
                    return math.inf, where
    return worst, where


def check_matmul(module: Any, name: str, device: str, sizes: tuple[tuple[int, int, int], ...], seed: int) -> str:
    """Multiplies matrices of all sizes on the device and compares every element with its bound."""
    roundoff, bits = FORMATS[name]
    dtype = getattr(module, name)
    source = random.Random(seed)  # noqa: S311  the same numbers in every run
    overall = 0.0
    for rows, inner, cols in sizes:
        label = f"{rows}x{inner} @ {inner}x{cols}"
        a = make_matrix(rows, inner, bits, source)
        b = make_matrix(inner, cols, bits, source)
        x = module.tensor(a, dtype=dtype, device=device)
        y = module.tensor(b, dtype=dtype, device=device)
        product = x @ y
        if tuple(product.shape) != (rows, cols):
            raise FailedError(f"{label}: shape {tuple(product.shape)}", f"shape {(rows, cols)}")
        if product.dtype != dtype:
            raise FailedError(f"{label}: dtype {product.dtype}", str(dtype))
        share, where = worst_error(a, b, product.cpu().tolist(), roundoff)
        if not share <= 1.0:
            raise FailedError(
                f"{label}: error {share:.3g} times its bound at {where}",
                f"|error| <= gamma_{inner} sum |a||b|",
            )
        overall = max(overall, share)
    return f"{len(sizes)} sizes, largest error {overall:.2g} of its bound"


def check_matmul_int(module: Any, sizes: tuple[tuple[int, int, int], ...], seed: int) -> str:
    """Products of 32-bit integers, which must be exact. Integer vectors are other instructions than float ones."""
    source = random.Random(seed)  # noqa: S311 test data, no secret
    half = 1 << (INTEGER_BITS - 1)
    for rows, inner, cols in sizes:
        a = [[int(value * half) for value in row] for row in make_matrix(rows, inner, INTEGER_BITS, source)]
        b = [[int(value * half) for value in row] for row in make_matrix(inner, cols, INTEGER_BITS, source)]
        columns = list(zip(*b))
        exact = [[sum(map(mul, row, column)) for column in columns] for row in a]
        product = (module.tensor(a, dtype=module.int32) @ module.tensor(b, dtype=module.int32)).tolist()
        if product != exact:
            raise FailedError(f"{rows}x{inner} @ {inner}x{cols}: other numbers", "the exact product")
    return f"{len(sizes)} sizes, exact"
