"""Matrix products in plain Python, with Higham's bound for each element, and torch's in every
format of a card.
"""

from __future__ import annotations

import contextlib
import math
import random
from operator import mul
from typing import TYPE_CHECKING, Any

from .recorder import FailedError, NotRunError

if TYPE_CHECKING:
    from collections.abc import Iterator


# (rows of a, columns of a = rows of b, columns of b). Edges of tiles and vectors: below, at and
# above them.
CPU_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (3, 257, 5))
CUDA_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (33, 129, 65))


# name -> (unit roundoff u of IEEE 754, bits of the inputs). The inputs have so few bits that a
# product of two is exact in a double, yet more than the next smaller format holds, so that a
# product in that one is found out.
FORMATS = {"float32": (2.0**-24, 24), "float64": (2.0**-53, 26)}
INTEGER_BITS = 11  # sums of 257 products of two such numbers stay far inside 32 bits


def make_matrix(rows: int, cols: int, bits: int, random_source: random.Random) -> list[list[float]]:
    """Numbers from -1 to 1 with at most `bits` significant bits."""
    half = 1 << (bits - 1)
    return [
        [(random_source.getrandbits(bits) - half) / half for _ in range(cols)] for _ in range(rows)
    ]


def worst_error(
    a: list[list[float]], b: list[list[float]], c: list[list[float]], roundoff: float
) -> tuple[float, str]:
    """The largest error of c = a b, as a share of what rounding can explain, and where it is.

    The bound for one element is gamma_n sum_k |a_ik| |b_kj| with gamma_n = n u / (1 - n u), n the
    inner size, u the unit roundoff; it holds for any order of summation, with and without fused
    multiply-add (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.5).
    The reference is math.fsum over products that are exact, so it is off by its own last rounding
    only, which is added.
    """
    inner = len(b)
    gamma = inner * roundoff / (1 - inner * roundoff)
    columns = list(zip(*b))
    worst = 0.0
    where = "no element"
    for i, row in enumerate(a):
        for j, column in enumerate(columns):
            products = list(map(mul, row, column))
            exact = math.fsum(products)
            bound = gamma * math.fsum(map(abs, products)) + 2.0**-53 * abs(exact)
            error = abs(c[i][j] - exact)
            if bound:
                share = error / bound
            elif error == 0:
                share = 0.0
            else:
                share = math.inf
            # Written so that a NaN counts as worst.
            if not share <= worst:
                worst = share
                where = f"[{i}][{j}]: {c[i][j]!r}, exact {exact!r}"
                if math.isnan(share):
                    return math.inf, where
    return worst, where


def check_matmul(
    module: Any, name: str, device: str, sizes: tuple[tuple[int, int, int], ...]
) -> str:
    """Multiplies matrices of all sizes on the device and compares every element with its bound."""
    roundoff, bits = FORMATS[name]
    dtype = getattr(module, name)
    source = random.Random(1)  # noqa: S311  the same numbers in every run
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


def check_matmul_int(module: Any, sizes: tuple[tuple[int, int, int], ...]) -> str:
    """Products of 32-bit integers, which must be exact. Integer vectors are other instructions than
    float ones.
    """
    source = random.Random(1)  # noqa: S311 test data, no secret
    half = 1 << (INTEGER_BITS - 1)
    for rows, inner, cols in sizes:
        a = [
            [int(value * half) for value in row]
            for row in make_matrix(rows, inner, INTEGER_BITS, source)
        ]
        b = [
            [int(value * half) for value in row]
            for row in make_matrix(inner, cols, INTEGER_BITS, source)
        ]
        columns = list(zip(*b))
        exact = [[sum(map(mul, row, column)) for column in columns] for row in a]
        product = (
            module.tensor(a, dtype=module.int32) @ module.tensor(b, dtype=module.int32)
        ).tolist()
        if product != exact:
            raise FailedError(
                f"{rows}x{inner} @ {inner}x{cols}: other numbers", "the exact product"
            )
    return f"{len(sizes)} sizes, exact"


LARGE_SIZES = (*CUDA_SIZES, (511, 513, 257), (256, 4096, 512))

# What a card's matrix units multiply: name -> (dtype, bits of the inputs, roundoff of the sums,
# roundoff of the result, lowest compute capability). Tensor cores cut off where IEEE 754 rounds,
# and align products before they add (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA
# tensor cores, 2021), hence 2**-23 for their sums.
MATMULS = {
    "float64": ("float64", 53, 2.0**-53, 2.0**-53, (0, 0)),
    "float32": ("float32", 24, 2.0**-24, 2.0**-24, (0, 0)),
    "tf32": ("float32", 11, 2.0**-23, 2.0**-24, (8, 0)),
    "float16": ("float16", 11, 2.0**-23, 2.0**-11, (0, 0)),
    "bfloat16": ("bfloat16", 8, 2.0**-23, 2.0**-8, (8, 0)),
    "complex64": ("complex64", 24, 2.0**-24, 2.0**-24, (0, 0)),
    "complex128": ("complex128", 53, 2.0**-53, 2.0**-53, (0, 0)),
}


def largest_share(torch: Any, got: Any, exact: Any, bound: Any) -> float:
    """The largest |got - exact| / bound; where the bound is 0, got must be exact. NaN counts as
    infinite.
    """
    error = (got.to("cpu").to(exact.dtype) - exact).abs()
    share = torch.where(error == 0, torch.zeros_like(error), error / bound)
    worst = float(share.max()) if share.numel() else 0.0
    return math.inf if math.isnan(worst) else worst


def within(label: str, share: float, what: str) -> float:
    if not share <= 1.0:
        raise FailedError(f"{label}: error {share:.3g} times its bound", what)
    return share


def random_matrix(torch: Any, shape: tuple[int, ...], dtype: str, bits: int, generator: Any) -> Any:
    """Numbers from -1 to 1 of at most `bits` bits, on the CPU, in float64 or complex128."""

    def part() -> Any:
        wide = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (wide * 2.0 ** (bits - 1)).round() / 2.0 ** (bits - 1)

    if dtype.startswith("complex"):
        return torch.complex(part(), part())
    return part()


def product_share(
    torch: Any, label: str, a: Any, b: Any, got: Any, sums: float, result: float
) -> float:
    """Compares a product with the one in float64 on the CPU; see `worst_error` for the bound."""
    inner = a.shape[-1]
    exact = a @ b
    size = a.abs() @ b.abs()
    # A complex product is 2 real ones a part, and the parts add up: a factor of 4 covers it
    # (Higham, section 3.6).
    if a.is_complex():
        terms, factor = (2 * inner + 2, 4.0)
    else:
        terms, factor = (inner, 1.0)
    # The reference is a float64 sum as well, so it has its own share; 2**-24 is half the last place
    # of float16 at 0.
    bound = factor * (gamma(terms, sums) + gamma(terms, 2.0**-53)) * size + result * exact.abs()
    if result == 2.0**-11:
        bound = bound + 2.0**-24
    if tuple(got.shape) != tuple(exact.shape):
        raise FailedError(f"{label}: shape {tuple(got.shape)}", f"shape {tuple(exact.shape)}")
    return within(
        label,
        largest_share(torch, got, exact, bound),
        f"|error| <= gamma_{inner} sum |a||b| + u |c|",
    )


def gamma(terms: int, roundoff: float) -> float:
    return terms * roundoff / (1 - terms * roundoff)


@contextlib.contextmanager
def exactly(torch: Any, *, tf32: bool = False) -> Iterator[None]:
    """Without the short cuts that torch allows itself in products, but TF32 where it is wanted."""
    expectations = [
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ]
    before = []
    for place, name, value in expectations:
        with contextlib.suppress(
            AttributeError, AssertionError
        ):  # older releases do not have all of them
            before.append((place, name, getattr(place, name)))
            setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            with contextlib.suppress(AttributeError, AssertionError):
                setattr(place, name, value)


def capability_of(torch: Any, device: str) -> tuple[int, int]:
    """Of the card; the CPU, on which tests run these checks, counts as one that has everything."""
    if device == "cuda":
        return tuple(torch.cuda.get_device_capability(0))
    return (99, 9)


def free_memory(torch: Any) -> int:
    """Bytes; 0 where this torch does not report it (before 1.11)."""
    if hasattr(torch.cuda, "mem_get_info"):
        return int(torch.cuda.mem_get_info()[0])
    return 0


def check_wide_matmul(torch: Any, name: str, device: str) -> str:
    """Products of all sizes in one format of the card."""
    dtype, bits, sums, result, lowest = MATMULS[name]
    capability = capability_of(torch, device)
    if capability < lowest:
        raise NotRunError("sm_{}{} has no {}".format(*capability, name))
    generator = torch.Generator().manual_seed(1)
    overall = 0.0
    with exactly(torch, tf32=name == "tf32"):
        for rows, inner, cols in LARGE_SIZES:
            a = random_matrix(torch, (rows, inner), dtype, bits, generator)
            b = random_matrix(torch, (inner, cols), dtype, bits, generator)
            first = a.to(getattr(torch, dtype)).to(device)
            second = b.to(getattr(torch, dtype)).to(device)
            label = f"{rows}x{inner} @ {inner}x{cols}"
            share = product_share(torch, label, a, b, first @ second, sums, result)
            overall = max(overall, share)
    return f"{len(LARGE_SIZES)} sizes, largest error {overall:.2g} of its bound"


def check_int8_matmul(torch: Any, device: str) -> str:
    capability = capability_of(torch, device)
    if capability < (7, 5):
        raise NotRunError("sm_{}{} has no int8 matrix units".format(*capability))
    if not hasattr(torch, "_int_mm"):
        raise NotRunError("this torch has no int8 product")
    generator = torch.Generator().manual_seed(1)
    # torch._int_mm takes more than 16 rows, and multiples of 8.
    for rows, inner, cols in ((32, 16, 8), (64, 64, 64), (128, 1024, 256)):
        a = torch.randint(-128, 128, (rows, inner), generator=generator, dtype=torch.int8)
        b = torch.randint(-128, 128, (inner, cols), generator=generator, dtype=torch.int8)
        got = torch._int_mm(a.to(device), b.to(device)).cpu()
        if not torch.equal(got.double(), a.double() @ b.double()):  # far below 2**53: exact
            raise FailedError(
                f"{rows}x{inner} @ {inner}x{cols}: other numbers", "the exact product"
            )
    return "3 sizes, exact"


def check_float8_matmul(torch: Any, device: str) -> str:
    capability = capability_of(torch, device)
    if capability < (8, 9):
        raise NotRunError("sm_{}{} has no float8".format(*capability))
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        raise NotRunError("this torch has no float8 product")
    generator = torch.Generator().manual_seed(1)
    scale = torch.ones((), dtype=torch.float32, device=device)
    overall = 0.0
    # torch._scaled_mm takes multiples of 16, and its second matrix column by column: hence `.t()`
    # below.
    for rows, inner, cols in ((32, 16, 16), (64, 64, 64), (128, 1024, 256)):
        a = torch.randint(-8, 9, (rows, inner), generator=generator).double() / 8
        b = torch.randint(-8, 9, (cols, inner), generator=generator).double() / 8
        a_float8 = a.to(torch.float8_e4m3fn).to(device)
        right = b.to(torch.float8_e4m3fn).to(device).t()
        got = torch._scaled_mm(
            a_float8, right, scale_a=scale, scale_b=scale, out_dtype=torch.float32
        )
        # Hopper's units keep about 14 bits of a float8 sum (DeepSeek-V3 technical report, section
        # 3.5.2).
        label = f"{rows}x{inner} @ {inner}x{cols}"
        overall = max(overall, product_share(torch, label, a, b.t(), got, 2.0**-13, 2.0**-24))
    return f"3 sizes, largest error {overall:.2g} of its bound"
