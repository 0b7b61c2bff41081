"""Does an installed torch, or a module that speaks its interface, work on this machine?

One file, standard library and the module under test only, Python 3.7 or newer, Windows and Linux:

    python probe.py --module torch --json report.json --junit report.xml --expect-cuda 11.8 --expect-arch sm_35

Every check ends as passed, failed (with what was seen and what was expected) or not run (with the reason). The
JSON file is written before and after every check, so a crash loses nothing, and names the check that is running.
A check that takes longer than its limit ends the probe, with the place where it hung on stderr.
Exit code: 0 no check failed, 1 at least one failed or took too long, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import functools
import importlib
import json
import math
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = 1
PASSED, FAILED, NOT_RUN = "passed", "failed", "not_run"
MAX_TEXT = 4000  # characters kept of a text that comes from the module

# (rows of a, columns of a = rows of b, columns of b). Edges of tiles and vectors: below, at and above them.
CPU_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (3, 257, 5))
CUDA_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (33, 129, 65))
LARGE_SIZES = (*CUDA_SIZES, (511, 513, 257), (256, 4096, 512))

# name -> (unit roundoff u of IEEE 754, bits of the inputs). The inputs have so few bits that a product of two is
# exact in a double, yet more than the next smaller format holds, so that a product in that one is found out.
FORMATS = {"float32": (2.0**-24, 24), "float64": (2.0**-53, 26)}
INTEGER_BITS = 11  # sums of 257 products of two such numbers stay far inside 32 bits

# What a card's matrix units multiply: name -> (dtype, bits of the inputs, roundoff of the sums, roundoff of the
# result, lowest compute capability). Tensor cores cut off where IEEE 754 rounds, and align products before they add
# (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, 2021), hence 2**-23 for their sums.
MATMULS = {
    "float64": ("float64", 53, 2.0**-53, 2.0**-53, (0, 0)),
    "float32": ("float32", 24, 2.0**-24, 2.0**-24, (0, 0)),
    "tf32": ("float32", 11, 2.0**-23, 2.0**-24, (8, 0)),
    "float16": ("float16", 11, 2.0**-23, 2.0**-11, (0, 0)),
    "bfloat16": ("bfloat16", 8, 2.0**-23, 2.0**-8, (8, 0)),
    "complex64": ("complex64", 24, 2.0**-24, 2.0**-24, (0, 0)),
    "complex128": ("complex128", 53, 2.0**-53, 2.0**-53, (0, 0)),
}

# Fused multiply-adds a clock and multiprocessor, by SM: what a card can do is 2 x this x multiprocessors x clock.
# A copy of farm/catalog/throughput.yaml, which has the sources; a test compares the two.
UNITS = {
    "float32": {35: 192, 37: 192, 50: 128, 52: 128, 53: 128, 60: 64, 61: 128, 62: 128, 70: 64, 72: 64, 75: 64,
                80: 64, 86: 128, 87: 128, 89: 128, 90: 128, 100: 128, 120: 128},
    "float64": {35: 64, 37: 64, 50: 4, 52: 4, 53: 4, 60: 32, 61: 4, 62: 4, 70: 32, 72: 32, 75: 2,
                80: 64, 86: 2, 87: 2, 89: 2, 90: 128, 100: 64, 120: 2},
    "float16": {70: 512, 72: 512, 75: 256, 80: 1024, 86: 256, 87: 512, 89: 256, 90: 2048, 100: 4096, 120: 256},
    "bfloat16": {80: 1024, 86: 256, 87: 512, 89: 256, 90: 2048, 100: 4096, 120: 256},
    "tf32": {80: 512, 86: 128, 87: 256, 89: 128, 90: 1024, 100: 2048, 120: 128},
}  # fmt: skip
GEFORCE_FLOAT64 = {35: 8}  # where GeForce cards have fewer units than the others of their SM
WARN_MATMUL, WARN_COPY = 0.4, 0.6  # shares below these are told


class NotRunError(Exception):
    """This check cannot be made here; the text is the reason."""


class FailedError(Exception):
    """The module did something else than it should."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.expected = expected


class Warned(str):
    """What a check saw that passed and yet needs a word: `warning` is that word."""

    warning: str

    def __new__(cls, seen: str, warning: str) -> Warned:
        text = super().__new__(cls, seen)
        text.warning = warning
        return text


class Probe:
    """Runs checks one after the other and keeps the JSON file up to date.

    `limit_s` is the time that one check may take, seconds; 0: no limit.
    """

    def __init__(self, path: str, document: dict[str, Any], limit_s: float = 0) -> None:
        self.path = path
        self.document = document
        self.limit_s = limit_s
        self.checks: list[dict[str, Any]] = []
        document.update(complete=False, running=None, limit_s=limit_s, checks=self.checks)

    def run(self, group: str, name: str, check: Callable[[], str], limit_s: float | None = None) -> str:
        """Runs one check, which returns what it saw, and returns its status."""
        limit_s = limit_s if limit_s is not None and self.limit_s else self.limit_s
        self.document.update(running=name, limit_s=limit_s)
        self.write()
        if limit_s:
            # A thread of its own without Python code: it ends the process also where the module holds the GIL.
            faulthandler.dump_traceback_later(limit_s, exit=True)
        entry: dict[str, Any] = {
            "group": group,
            "name": name,
            "status": PASSED,
            "seen": None,
            "expected": None,
            "reason": None,
            "warning": None,
        }
        started = time.perf_counter()
        try:
            entry["seen"] = check()
            entry["warning"] = getattr(entry["seen"], "warning", None)
        except NotRunError as error:
            entry.update(status=NOT_RUN, reason=str(error))
        except FailedError as error:
            entry.update(status=FAILED, seen=error.seen, expected=error.expected)
        except (Exception, SystemExit) as error:
            seen = f"{type(error).__name__}: {error}"
            entry.update(status=FAILED, seen=seen, expected="no error")
        if limit_s:
            faulthandler.cancel_dump_traceback_later()
        for key in ("seen", "expected", "reason", "warning"):
            if entry[key] is not None:
                entry[key] = entry[key][:MAX_TEXT]
        entry["seconds"] = round(time.perf_counter() - started, 6)
        self.checks.append(entry)
        self.document["running"] = None
        self.write()
        return str(entry["status"])

    def write(self) -> None:
        """Replaces the file in one step: a reader never finds half of it."""
        temporary = self.path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(self.document, file, indent=1)
        for patience in range(250):
            try:
                os.replace(temporary, self.path)  # noqa: PTH105
            except PermissionError:  # Windows: for as long as somebody reads it
                if os.name != "nt" or patience == 249:
                    raise
                time.sleep(0.02)
            else:
                return


# --- what the machine has -------------------------------------------------------------------------------------


def find_driver() -> tuple[int, str]:
    """Asks the NVIDIA driver itself, not the module: (number of GPUs, description).

    Raises:
        NotRunError: There is no driver, or it sees no GPU.
        FailedError: There is a driver and it does not work.
    """
    driver, count = start_driver()
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    number = driver_version()
    return count, "driver {}for CUDA {}, {} GPU(s)".format(f"{number} " if number else "", cuda, count)


def start_driver() -> tuple[Any, int]:
    """The driver's library, started, and the number of GPUs that it sees; raises as `find_driver` does."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        # Right on Windows too: 64-bit Windows has one calling convention.
        driver = ctypes.CDLL(name)
    except OSError:
        raise NotRunError("no NVIDIA driver") from None
    status = driver.cuInit(0)
    # CUresult values, CUDA Driver API reference: 34 CUDA_ERROR_STUB_LIBRARY, 100 CUDA_ERROR_NO_DEVICE.
    if status == 34:
        raise NotRunError(f"no NVIDIA driver ({name} is the toolkit's stub)")
    if status == 100:
        raise NotRunError("the NVIDIA driver sees no GPU")
    if status != 0:
        raise FailedError(f"cuInit gave CUresult {status}", "an NVIDIA driver that starts")
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    if count.value < 1:
        raise NotRunError("the NVIDIA driver sees no GPU")
    return driver, count.value


def driver_version() -> str:
    """`470.256.02`, from NVML; empty where NVML is not there."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() != 0:
            return ""
        found = text.value.decode("ascii", "replace") if nvml.nvmlSystemGetDriverVersion(text, 80) == 0 else ""
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return found


def card_numbers() -> dict[str, int]:
    """What the driver says of the first card: multiprocessors, clocks in kHz, width of the memory bus in bits.

    The numbers of the attributes: CUDA Driver API reference, CUdevice_attribute.
    """
    driver, _ = start_driver()
    device = ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    found = {}
    wanted = {"multiprocessors": 16, "clock_khz": 13, "memory_clock_khz": 36, "bus_bits": 37}
    for name, attribute in wanted.items():
        value = ctypes.c_int(0)
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        found[name] = value.value if status == 0 else 0
    return found


def code_for(capability: tuple[int, int], archs: list[str]) -> str:
    """Which of the wheel's code a device of this compute capability runs.

    A cubin for X.y runs on X.z where z >= y, PTX for X.y can be compiled for any newer device (CUDA C++
    Programming Guide, "Binary Compatibility" and "PTX Compatibility"). `a` code runs on that one device only,
    `f` code on its family: the same major version, from that minor version on.

    Raises:
        FailedError: Nothing in the wheel can run there.
    """
    major, minor = capability
    native: list[tuple[tuple[int, int], str]] = []
    compiled: list[tuple[tuple[int, int], str]] = []
    for arch in archs:
        match = re.match(r"(sm|compute)_(\d+)(\d)([af]?)$", arch)
        if match is None:
            continue
        kind, suffix = match.group(1), match.group(4)
        of = (int(match.group(2)), int(match.group(3)))
        same_major = of[0] == major and of[1] <= minor
        if suffix == "a":
            fits = of == capability
        elif kind == "sm" or suffix == "f":
            fits = same_major
        else:
            fits = of <= capability
        if fits:
            (native if kind == "sm" else compiled).append((of, arch))
    if native:
        return f"its own SASS ({max(native)[1]})"
    if compiled:
        return f"PTX ({max(compiled)[1]}): the driver compiles it at the first use"
    raise FailedError("code for {} only".format(" ".join(archs) or "nothing"), f"code that runs on sm_{major}{minor}")


# --- matrix products ------------------------------------------------------------------------------------------


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
    columns = list(zip(*b))  # noqa: B905  strict= came with Python 3.10
    worst, where = 0.0, "no element"
    for i, row in enumerate(a):
        for j, column in enumerate(columns):
            products = [x * y for x, y in zip(row, column)]  # noqa: B905
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
    """The same for 32-bit integers, which must be exact. Integer vectors are other instructions than float ones."""
    source = random.Random(seed)  # noqa: S311
    half = 1 << (INTEGER_BITS - 1)
    for rows, inner, cols in sizes:
        a = [[int(value * half) for value in row] for row in make_matrix(rows, inner, INTEGER_BITS, source)]
        b = [[int(value * half) for value in row] for row in make_matrix(inner, cols, INTEGER_BITS, source)]
        columns = list(zip(*b))  # noqa: B905
        exact = [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]  # noqa: B905
        product = (module.tensor(a, dtype=module.int32) @ module.tensor(b, dtype=module.int32)).tolist()
        if product != exact:
            raise FailedError(f"{rows}x{inner} @ {inner}x{cols}: other numbers", "the exact product")
    return f"{len(sizes)} sizes, exact"


# --- the checks -----------------------------------------------------------------------------------------------


def arch_list(module: Any) -> list[str]:
    """The architectures in the wheel.

    torch answers [] without a GPU. What it asks itself knows them still (torch.cuda.get_arch_list, 1.13.1), and with
    some builds its configuration text.
    """
    archs = [str(arch) for arch in module.cuda.get_arch_list()]
    if not archs:
        flags = getattr(getattr(module, "_C", None), "_cuda_getArchFlags", None)
        archs = str((flags() if flags else None) or "").split()
    return archs or re.findall(r"\bcode=((?:sm|compute)_\d+[af]?)\b", module.__config__.show())


def check_version(module: Any, expected: str | None) -> str:
    seen = str(module.__version__)
    if expected is not None and seen != expected:
        raise FailedError(seen, expected)
    return seen


def check_cuda_version(module: Any, expected: str | None) -> str:
    seen = "none" if module.version.cuda is None else str(module.version.cuda)
    if expected is not None and seen != expected:
        raise FailedError(seen, expected)
    return seen


def check_config(module: Any) -> str:
    text = module.__config__.show()
    if not isinstance(text, str) or not text.strip():
        raise FailedError(repr(text), "a text")
    return text.strip()


def check_archs(module: Any, expected: list[str]) -> str:
    archs = arch_list(module)
    missing = [arch for arch in expected if arch not in archs]
    if missing:
        raise FailedError(" ".join(archs) or "none", "also {}".format(" ".join(missing)))
    if module.version.cuda is None:
        raise NotRunError("built without CUDA")
    return " ".join(archs)


def check_available(module: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = module.cuda.is_available()
    if not available:
        why = "; ".join(str(warning.message) for warning in caught)
        raise FailedError("False" + (": " + why if why else ""), "True: there is a driver and a GPU")
    return f"True, {module.cuda.device_count()} device(s)"


def check_devices(module: Any) -> str:
    devices = []
    for index in range(module.cuda.device_count()):
        capability = tuple(module.cuda.get_device_capability(index))
        text = "{}: {} (sm_{}{})".format(index, module.cuda.get_device_name(index), *capability)
        if hasattr(module.cuda, "get_device_properties"):
            memory = module.cuda.get_device_properties(index).total_memory
            text += f", {memory / 2**30:.1f} GiB"
        devices.append(text)
    if not devices:
        raise FailedError("no device", "a device")
    return "; ".join(devices)


# --- torch itself: what a module that only multiplies matrices does not have -----------------------------------


def largest_share(torch: Any, got: Any, exact: Any, bound: Any) -> float:
    """The largest |got - exact| / bound; where the bound is 0, got must be exact. NaN counts as infinite."""
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

    return torch.complex(part(), part()) if dtype.startswith("complex") else part()


def product_share(torch: Any, label: str, a: Any, b: Any, got: Any, sums: float, result: float) -> float:
    """Compares a product with the one in float64 on the CPU; see `worst_error` for the bound."""
    inner = a.shape[-1]
    exact, size = a @ b, a.abs() @ b.abs()
    # A complex product is 2 real ones a part, and the parts add up: a factor of 4 covers it (Higham, section 3.6).
    terms, factor = (2 * inner + 2, 4.0) if a.is_complex() else (inner, 1.0)
    # The reference is a float64 sum as well, so it has its own share; 2**-24 is half the last place of float16 at 0.
    bound = factor * (gamma(terms, sums) + gamma(terms, 2.0**-53)) * size + result * exact.abs()
    if result == 2.0**-11:
        bound = bound + 2.0**-24
    if tuple(got.shape) != tuple(exact.shape):
        raise FailedError(f"{label}: shape {tuple(got.shape)}", f"shape {tuple(exact.shape)}")
    return within(label, largest_share(torch, got, exact, bound), f"|error| <= gamma_{inner} sum |a||b| + u |c|")


def gamma(terms: int, roundoff: float) -> float:
    return terms * roundoff / (1 - terms * roundoff)


@contextlib.contextmanager
def exactly(torch: Any, *, tf32: bool = False) -> Iterator[None]:
    """Without the short cuts that torch allows itself in products, but TF32 where it is wanted."""
    wanted = [
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    ]
    before = []
    for place, name, value in wanted:
        with contextlib.suppress(AttributeError, AssertionError):  # older releases do not have all of them
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
    return tuple(torch.cuda.get_device_capability(0)) if device == "cuda" else (99, 9)


def free_memory(torch: Any) -> int:
    """Bytes; 0 where this torch does not tell (before 1.11)."""
    return int(torch.cuda.mem_get_info()[0]) if hasattr(torch.cuda, "mem_get_info") else 0


def check_wide_matmul(torch: Any, name: str, seed: int, device: str) -> str:
    """Products of all sizes in one format of the card."""
    dtype, bits, sums, result, lowest = MATMULS[name]
    capability = capability_of(torch, device)
    if capability < lowest:
        raise NotRunError("sm_{}{} has no {}".format(*capability, name))
    generator = torch.Generator().manual_seed(seed)
    overall = 0.0
    with exactly(torch, tf32=name == "tf32"):
        for rows, inner, cols in LARGE_SIZES:
            a = random_matrix(torch, (rows, inner), dtype, bits, generator)
            b = random_matrix(torch, (inner, cols), dtype, bits, generator)
            got = a.to(getattr(torch, dtype)).to(device) @ b.to(getattr(torch, dtype)).to(device)
            label = f"{rows}x{inner} @ {inner}x{cols}"
            overall = max(overall, product_share(torch, label, a, b, got, sums, result))
    return f"{len(LARGE_SIZES)} sizes, largest error {overall:.2g} of its bound"


def check_int8_matmul(torch: Any, device: str) -> str:
    capability = capability_of(torch, device)
    if capability < (7, 5):
        raise NotRunError("sm_{}{} has no int8 matrix units".format(*capability))
    if not hasattr(torch, "_int_mm"):
        raise NotRunError("this torch has no int8 product")
    generator = torch.Generator().manual_seed(1)
    for rows, inner, cols in ((32, 16, 8), (64, 64, 64), (128, 1024, 256)):
        a = torch.randint(-128, 128, (rows, inner), generator=generator, dtype=torch.int8)
        b = torch.randint(-128, 128, (inner, cols), generator=generator, dtype=torch.int8)
        got = torch._int_mm(a.to(device), b.to(device)).cpu()
        if not torch.equal(got.double(), a.double() @ b.double()):  # far below 2**53: exact
            raise FailedError(f"{rows}x{inner} @ {inner}x{cols}: other numbers", "the exact product")
    return "3 sizes, exact"


def check_float8_matmul(torch: Any, device: str) -> str:
    capability = capability_of(torch, device)
    if capability < (8, 9):
        raise NotRunError("sm_{}{} has no float8".format(*capability))
    if not hasattr(torch, "_scaled_mm") or not hasattr(torch, "float8_e4m3fn"):
        raise NotRunError("this torch has no float8 product")
    generator = torch.Generator().manual_seed(1)
    one = torch.ones((), dtype=torch.float32, device=device)
    overall = 0.0
    for rows, inner, cols in ((32, 16, 16), (64, 64, 64), (128, 1024, 256)):
        a = torch.randint(-8, 9, (rows, inner), generator=generator).double() / 8
        b = torch.randint(-8, 9, (cols, inner), generator=generator).double() / 8
        left, right = a.to(torch.float8_e4m3fn).to(device), b.to(torch.float8_e4m3fn).to(device).t()
        got = torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.float32)
        # Hopper's units keep about 14 bits of a float8 sum (DeepSeek-V3 technical report, section 3.5.2).
        label = f"{rows}x{inner} @ {inner}x{cols}"
        overall = max(overall, product_share(torch, label, a, b.t(), got, 2.0**-13, 2.0**-24))
    return f"3 sizes, largest error {overall:.2g} of its bound"


def check_strided(torch: Any, device: str) -> str:
    """Transposed, sliced and expanded operands, and a result written into a slice."""
    generator = torch.Generator().manual_seed(1)
    wide = random_matrix(torch, (96, 130), "float32", 24, generator).float()
    on_card = wide.to(device)
    pairs = {
        "transposed": (wide.t(), wide, on_card.t(), on_card),
        "every second column": (wide[:, ::2], wide[:65, 1:40], on_card[:, ::2], on_card[:65, 1:40]),
        "expanded": (wide[:1, :].expand(7, 130), wide.t(), on_card[:1, :].expand(7, 130), on_card.t()),
    }
    overall = 0.0
    with exactly(torch):
        for label, (a, b, left, right) in pairs.items():
            got = left @ right
            overall = max(overall, product_share(torch, label, a.double(), b.double(), got, 2.0**-24, 2.0**-24))
        target = torch.zeros(40, 200, device=device)
        torch.mm(on_card[:20, :], on_card.t()[:, :96], out=target[:20, 3:99])
    outside = float(target[20:].abs().sum() + target[:, :3].abs().sum() + target[:, 99:].abs().sum())
    if outside != 0:
        raise FailedError(f"a slice was written: {outside} outside of it", "0 outside of it")
    share = product_share(torch, "slice", wide[:20].double(), wide.t().double(), target[:20, 3:99], 2.0**-24, 2.0**-24)
    return f"{len(pairs) + 1} layouts, largest error {max(overall, share):.2g} of its bound"


def check_batched(torch: Any, device: str) -> str:
    generator = torch.Generator().manual_seed(1)
    a = random_matrix(torch, (5, 33, 65), "float32", 24, generator)
    b = random_matrix(torch, (5, 65, 17), "float32", 24, generator)
    with exactly(torch):
        got = torch.bmm(a.float().to(device), b.float().to(device))
        share = product_share(torch, "5 of 33x65 @ 65x17", a, b, got, 2.0**-24, 2.0**-24)
        got = a.float().to(device) @ b[:1].float().to(device)
        share = max(share, product_share(torch, "broadcast", a, b[:1], got, 2.0**-24, 2.0**-24))
    return f"2 shapes, largest error {share:.2g} of its bound"


def check_empty(torch: Any, device: str) -> str:
    """Sizes of 0: no elements, and sums of no products, which are 0."""
    for rows, inner, cols in ((0, 5, 3), (5, 3, 0), (0, 0, 0), (4, 0, 6)):
        got = torch.ones(rows, inner, device=device) @ torch.ones(inner, cols, device=device)
        if tuple(got.shape) != (rows, cols) or float(got.abs().sum()) != 0:
            raise FailedError(f"{rows}x{inner} @ {inner}x{cols}: {got.cpu()!r}", f"zeros of shape {(rows, cols)}")
    return "4 shapes"


def check_large(torch: Any, device: str) -> str:
    """More than 2**31 elements: an index of 32 bits would go wrong."""
    count = 2**31 + 12345
    free = free_memory(torch) if device == "cuda" else 0
    if free < 5 * 2**30:
        raise NotRunError(f"{free / 2**30:.1f} GiB of the card's memory are free, it needs 5")
    x = torch.zeros(count, dtype=torch.uint8, device=device)
    places = [0, 2**31 - 1, 2**31, count - 1]
    for number, place in enumerate(places):
        x[place] = number + 1
    y = x * 2
    del x
    seen = [int(y[place]) for place in places]
    total = int(y.sum(dtype=torch.int64))
    del y
    torch.cuda.empty_cache()
    if seen != [2, 4, 6, 8] or total != 20:
        raise FailedError(f"elements {seen}, sum {total}", "elements [2, 4, 6, 8], sum 20")
    return f"{count} elements"


def check_convolution(torch: Any, device: str) -> str:
    """A convolution and its gradients against float64 on the CPU.

    The algorithm may be Winograd's or an FFT, which have no bound by element; the bound is by norms: gamma_n n
    max|x| max|w| with n the products of an element, which is far above their errors and far below those of TF32.
    """
    if device == "cuda":
        if not torch.backends.cudnn.is_available():
            raise NotRunError("this torch was built without cuDNN, or cuDNN does not load")
        if not torch.backends.cudnn.enabled:
            raise NotRunError("cuDNN is turned off")
    generator = torch.Generator().manual_seed(1)
    overall = 0.0
    for channels, size, kernel, stride in ((3, 17, 3, 1), (8, 32, 5, 2), (16, 14, 1, 1)):
        x = random_matrix(torch, (2, channels, size, size), "float32", 12, generator)
        w = random_matrix(torch, (8, channels, kernel, kernel), "float32", 12, generator)
        results = []
        for dtype, place in ((torch.float64, "cpu"), (torch.float32, device)):
            images = x.to(dtype).to(place).clone().requires_grad_()
            weights = w.to(dtype).to(place).clone().requires_grad_()
            with exactly(torch):
                out = torch.nn.functional.conv2d(images, weights, stride=stride, padding=kernel // 2)
                out.sum().backward()
            results.append((out.detach(), images.grad, weights.grad))
        terms = (channels * kernel * kernel, 8 * kernel * kernel, 2 * out.shape[2] * out.shape[3])
        for what, n, exact, got in zip(("output", "gradient of x", "gradient of w"), terms, *results):  # noqa: B905
            bound = torch.full_like(exact, gamma(n + 1, 2.0**-24) * n)
            label = f"{what} of {channels} channels, kernel {kernel}"
            overall = max(overall, within(label, largest_share(torch, got, exact, bound), "|error| <= n gamma_n"))
    version = f"cuDNN {torch.backends.cudnn.version()}, " if device == "cuda" else ""
    return f"{version}3 shapes with gradients, largest error {overall:.2g} of its bound"


def check_reduction(torch: Any, device: str) -> str:
    generator = torch.Generator().manual_seed(1)
    x = random_matrix(torch, (300, 1001), "float32", 24, generator)
    on_card = x.float().to(device)
    for dim in (0, 1):
        bound = gamma(x.shape[dim], 2.0**-24) * x.abs().sum(dim) + 2.0**-24 * x.sum(dim).abs()
        within(f"sum over {dim}", largest_share(torch, on_card.sum(dim), x.sum(dim), bound), "gamma_n sum |x|")
        for name in ("amax", "amin", "argmax"):
            if not torch.equal(getattr(on_card, name)(dim).cpu(), getattr(x.float(), name)(dim)):
                raise FailedError(f"{name} over {dim}: other than on the CPU", "the same")
    total = int((on_card > 0).sum())
    if total != int((x > 0).sum()):
        raise FailedError(f"{total} positive numbers", f"{int((x > 0).sum())}")
    return "sum, amax, amin, argmax, count"


def check_sort(torch: Any, device: str) -> str:
    generator = torch.Generator().manual_seed(1)
    for count in (1, 31, 1025, 300_000):
        x = torch.randint(-1000, 1000, (count,), generator=generator)
        values, order = torch.sort(x.to(device), stable=True)
        here, order_here = torch.sort(x, stable=True)
        if not torch.equal(values.cpu(), here) or not torch.equal(order.cpu(), order_here):
            raise FailedError(f"{count} numbers: another order than on the CPU", "the same, and stable")
    return "4 sizes, exact and stable"


def check_fft(torch: Any, device: str) -> str:
    """Against float64 on the CPU: the error by norms is below log2(n) times a few roundoffs (Higham, chapter 24)."""
    generator = torch.Generator().manual_seed(1)
    overall = 0.0
    for count in (8, 1024, 1000, 4099):
        x = random_matrix(torch, (3, count), "complex64", 24, generator)
        exact = torch.fft.fft(x)
        got = torch.fft.fft(x.to(torch.complex64).to(device))
        # 4099 is a prime: Bluestein's way does three transforms of more than twice the length.
        bound = 32 * math.log2(2 * count) * 2.0**-24 * float(exact.abs().pow(2).sum().sqrt())
        error = float((got.cpu().to(torch.complex128) - exact).abs().pow(2).sum().sqrt())
        overall = max(overall, within(f"{count} points", error / bound, "|error| <= 32 log2(2n) u |X|"))
        back = torch.fft.ifft(got).cpu().to(torch.complex128)
        norm = float(x.abs().pow(2).sum().sqrt()) * 64 * math.log2(2 * count) * 2.0**-24
        within(f"{count} points and back", float((back - x).abs().pow(2).sum().sqrt()) / norm, "the input")
    return f"4 sizes and back, largest error {overall:.2g} of its bound"


def check_indexing(torch: Any, device: str) -> str:
    """Whole numbers, so that every order of additions gives the same."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-50, 50, (257, 33), generator=generator)
    rows = torch.randint(0, 257, (1000,), generator=generator)
    values = torch.randint(-9, 9, (1000, 33), generator=generator)

    def use(place: str) -> dict[str, Any]:
        a, i, v = x.to(place), rows.to(place), values.to(place)
        return {
            "gather by rows": a[i],
            "mask": a[a > 10],
            "add at repeated rows": a.index_put((i,), v, accumulate=True),
            "scatter": torch.zeros_like(a).scatter_add(0, i[:, None].expand(-1, 33) % 257, v),
            "where": torch.where(a > 0, a, -a),
            "nonzero": a.nonzero(),
            "cumsum": a.cumsum(0),
        }

    here, there = use("cpu"), use(device)
    for name, exact in here.items():
        if not torch.equal(there[name].cpu(), exact):
            raise FailedError(f"{name}: other numbers than on the CPU", "the same")
    return ", ".join(here)


def check_training(torch: Any, device: str) -> str:
    """Thirty steps of gradient descent on a small net must lower its loss to less than half."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(256, 8, generator=generator) * 2 - 1
    y = torch.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    first = torch.rand(8, 64, generator=generator) - 0.5
    second = (torch.rand(64, 1, generator=generator) - 0.5) / 4
    x, y = x.to(device), y.to(device)
    weights = [first.to(device).requires_grad_(), second.to(device).requires_grad_()]
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.mse_loss(torch.relu(x @ weights[0]) @ weights[1], y)
        losses.append(loss.item())
        slopes = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes):  # noqa: B905
                weight.sub_(0.1 * slope)
    if not losses[-1] < 0.5 * losses[0]:
        raise FailedError(f"loss {losses[0]:.4f}, after 30 steps {losses[-1]:.4f}", "less than half")
    return f"loss {losses[0]:.4f}, after 30 steps {losses[-1]:.4f}"


def check_streams(torch: Any) -> str:
    """Two streams that wait for each other by events; the result shows an order that was not kept."""
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    begun, filled = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(one):
        begun.record()
        for _ in range(50):
            x += 1
        filled.record()
    with torch.cuda.stream(two):
        two.wait_event(filled)
        y = x * 2
    two.synchronize()
    seen = (float(y.min()), float(y.max()))
    if seen != (100.0, 100.0):
        raise FailedError(f"from {seen[0]} to {seen[1]}", "100 everywhere")
    took = begun.elapsed_time(filled)
    if not took > 0:
        raise FailedError(f"50 additions took {took} ms", "more than 0")
    return f"in order; 50 additions took {took:.3f} ms"


def check_out_of_memory(torch: Any) -> str:
    """An allocation that cannot be had must be an error that one can go on after."""
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(4 * total, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:  # OutOfMemoryError is one
        if "out of memory" not in str(error).lower():
            raise
    else:
        raise FailedError(f"{4 * total} bytes were given", "out of memory")
    x = torch.ones(64, 64, device="cuda")
    if float((x @ x).sum()) != 64.0**3:
        raise FailedError("after the error products are wrong", "64 everywhere")
    return f"refused {4 * total / 2**30:.0f} GiB, and went on"


def cpu_capability(torch: Any) -> str:
    """`AVX2`: the level that torch chose for this CPU; DEFAULT where it has nothing above the build's own flags."""
    if hasattr(torch.backends, "cpu") and hasattr(torch.backends.cpu, "get_cpu_capability"):
        return str(torch.backends.cpu.get_cpu_capability())
    match = re.search(r"CPU capability usage: (\S+)", torch.__config__.show())
    if match is None:
        raise NotRunError("this torch does not tell")
    return match.group(1)


def check_numpy(torch: Any) -> str:
    """The bridge shares memory in both directions."""
    try:
        numpy = importlib.import_module("numpy")
    except ImportError as error:
        raise NotRunError(f"numpy is not installed ({error})") from None
    array = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    tensor = torch.from_numpy(array)
    tensor[1, 2] = 99
    back = torch.ones(2, 2).numpy()
    if array[1, 2] != 99 or back.shape != (2, 2) or float(back.sum()) != 4:
        raise FailedError("a copy, or other numbers", "one memory, the same numbers")
    return f"numpy {numpy.__version__}"


def check_quantized(torch: Any, expected: str | None) -> str:
    """A quantized linear layer: whole-number products, rounded once."""
    engines = [str(engine) for engine in torch.backends.quantized.supported_engines if str(engine) != "none"]
    if expected is not None and expected not in engines:
        raise FailedError(" ".join(engines) or "no engine", f"the engine {expected}")
    if not engines:
        raise NotRunError("this build has no quantized engine, or none for this CPU")
    generator = torch.Generator().manual_seed(1)
    # Activations of 7 bits: fbgemm's AVX2 kernels may saturate with 8 (PyTorch documentation, reduce_range).
    x = torch.randint(0, 128, (5, 64), generator=generator)
    w = torch.randint(-64, 64, (9, 64), generator=generator)
    exact = ((x - 60) @ w.t()).double() * 0.125
    scale = float(exact.abs().max()) / 120
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 2.13 announces the end of these functions
        activations = torch.quantize_per_tensor((x - 60) * 0.5, 0.5, 60, torch.quint8)
        weights = torch.quantize_per_tensor(w * 0.25, 0.25, 0, torch.qint8)
        for engine in engines:
            torch.backends.quantized.engine = engine
            packed = torch.ops.quantized.linear_prepack(weights, None)
            got = torch.ops.quantized.linear(activations, packed, scale, 128).dequantize().double()
            worst = float((got - exact).abs().max()) / scale
            if not worst <= 0.51:  # half a step of rounding, and float32 in the scale
                raise FailedError(f"{engine}: {worst:.3g} steps away", "half a step")
    return "{}: at most half a step away".format(" ".join(engines))


# --- how fast ---------------------------------------------------------------------------------------------------


def share_of_peak(what: str, rate: float, peak: float, unit: str, limit: float, why: str) -> str:
    """`3.1 TFLOP/s, 72 % of 4.3`; with a warning below `limit`. `rate` and `peak` in the same unit."""
    if not peak > 0:
        return f"{rate:.3g} {unit}; what the card can do is not known"
    share = rate / peak
    seen = f"{rate:.3g} {unit}, {100 * share:.0f} % of the card's {peak:.3g}"
    if share < limit:
        return Warned(seen, f"{what} below {100 * limit:.0f} % of what the card can do: {why}")
    return seen


def measure(torch: Any, run: Callable[[], Any], seconds: float = 0.5) -> float:
    """Seconds of one call, the best of five series on the card's own clock."""
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def series(calls: int) -> float:
        begun.record()
        for _ in range(calls):
            run()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000 / calls

    series(2)
    calls = max(1, min(1000, int(seconds / 5 / max(series(1), 1e-6))))
    return min(series(calls) for _ in range(5))


def check_matmul_speed(torch: Any, name: str, size: int = 8192) -> str:
    """TFLOP/s of a square product on random numbers, as a share of 2 x units x multiprocessors x clock."""
    dtype, _, _, _, lowest = MATMULS[name]
    capability = tuple(torch.cuda.get_device_capability(0))
    if capability < lowest:
        raise NotRunError("sm_{}{} has no {}".format(*capability, name))
    card = card_numbers()
    sm = capability[0] * 10 + capability[1]
    units = UNITS[name].get(sm, 0)
    if name == "float64":
        is_geforce = "GeForce" in torch.cuda.get_device_name(0)
        units, size = GEFORCE_FLOAT64.get(sm, units) if is_geforce else units, 4096
    peak = 2e-9 * units * card["multiprocessors"] * card["clock_khz"]
    x = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    y = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    with exactly(torch, tf32=name == "tf32"):
        took = measure(torch, lambda: torch.mm(x, y))
    clock = "{} multiprocessors at {:.0f} MHz".format(card["multiprocessors"], card["clock_khz"] / 1000)
    why = "a debug build, code for another SM, a power cap, or another program on the card"
    return share_of_peak(f"{name} product ({clock})", 2e-12 * size**3 / took, peak, "TFLOP/s", WARN_MATMUL, why)


def check_copy_speed(torch: Any) -> str:
    """GB/s of a copy on the card, bytes read and written, as a share of bus width x 2 x memory clock."""
    card = card_numbers()
    count = min(1 << 31, max(free_memory(torch), 1 << 30) // 4)
    x = torch.empty(count, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    took = measure(torch, lambda: y.copy_(x))
    peak = 2e-6 * card["memory_clock_khz"] * card["bus_bits"] / 8
    why = "ECC costs up to a fifth on GDDR; else a low memory clock, or another program on the card"
    return share_of_peak("copy", 2e-9 * count / took, peak, "GB/s", WARN_COPY, why)


# --- native or JIT ----------------------------------------------------------------------------------------------

# CUDA C++ Programming Guide, "CUDA Environment Variables". Without the cache, so that the first call is a first call.
WAYS = {
    "ordinary": {},
    "without JIT": {"CUDA_DISABLE_PTX_JIT": "1"},
    "JIT only": {"CUDA_FORCE_PTX_JIT": "1"},
}


def first_kernel(module: Any) -> dict[str, Any]:
    """Runs the first kernel of the module's own in this process: seconds, and what came of it."""
    found: dict[str, Any] = {"ok": False, "error": None, "first_s": None, "second_s": None}
    whole = hasattr(module, "nn")
    try:
        if whole:  # torch's own kernel; its products are those of cuBLAS
            x = module.full((17, 17), 3.0).cuda()
        else:
            x = module.tensor([[1.0] * 17 for _ in range(17)], dtype=module.float32, device="cuda")
        right = 7.0 if whole else 17.0
        for name in ("first_s", "second_s"):
            started = time.perf_counter()
            rows = (x * 2 + 1 if whole else x @ x).cpu().tolist()
            found[name] = time.perf_counter() - started
            if any(value != right for row in rows for value in row):
                found["error"] = "wrong numbers"
                return found
        found["ok"] = True
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
    return found


def run_first_kernel(module_name: str, way: dict[str, str], limit_s: float) -> dict[str, Any]:
    """`first_kernel` in a process of its own, with the driver told how to find code."""
    environ = {**os.environ, "CUDA_CACHE_DISABLE": "1", **way}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "found.json")  # noqa: PTH118
        command = [sys.executable, "-I", os.path.abspath(__file__)]  # noqa: PTH100
        command += [f"--module={module_name}", f"--json={file}", "--first-kernel"]
        try:
            child = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environ, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"did not finish in {limit_s:g} s"}
        try:
            with open(file, encoding="utf-8") as stream:  # noqa: PTH123
                return dict(json.load(stream))
        except (OSError, ValueError):
            said = child.stdout.decode("utf-8", "replace")[-500:]
            return {"ok": False, "error": f"ended with {child.returncode}: {said}"}


def judge_code(found: dict[str, dict[str, Any]], archs: list[str], sm: str) -> tuple[str, str]:
    """What serves the card: (`native` or `jit`, text), from one result for each of WAYS.

    Raises:
        FailedError: Nothing does.
    """
    ordinary, plain, forced = (found[way] for way in WAYS)
    holds = " ".join(archs) or "nothing"
    if not ordinary["ok"]:
        error = str(ordinary["error"])
        if re.search("no kernel image|NoKernelImage", error):
            raise FailedError(f"no kernel image for {sm}: the wheel holds {holds} ({error})", f"code for {sm}")
        if re.search("unsupported toolchain|UnsupportedPtxVersion", error):
            text = f"the wheel has no SASS for {sm}, and its PTX is newer than the driver can compile"
            raise FailedError(f"{text}; it holds {holds} ({error})", f"SASS for {sm}, or a newer driver")
        raise FailedError(error, "a kernel that runs")
    times = "first kernel {first_s:.3f} s, then {second_s:.4f} s".format(**ordinary)
    if plain["ok"]:
        more = "has PTX as well ({:.3f} s with it)".format(forced["first_s"]) if forced["ok"] else "no PTX that serves"
        return "native", f"its own SASS serves {sm}: {times}; {more}"
    if forced["ok"]:
        text = f"no SASS for {sm} in the wheel ({holds}): the driver compiled its PTX at the first use: {times}"
        why = (
            "every first run compiles PTX, which takes minutes with a whole torch; later ones find it in the driver's "
            f"cache (set CUDA_CACHE_MAXSIZE=4294967296 to hold it all). A wheel with SASS for {sm} needs none of this, "
            "and PTX of a newer toolkit than the driver's cannot be compiled at all"
        )
        return "jit", Warned(text, why)
    raise FailedError(
        "it runs, yet neither without JIT ({}) nor with JIT alone ({})".format(plain["error"], forced["error"]),
        "one of the two",
    )


def check_code(module: Any, facts: dict[str, str], module_name: str, limit_s: float) -> str:
    """Is it the wheel's own machine code that the card runs, or PTX that the driver compiled?"""
    facts["code"] = "none"
    found = {way: run_first_kernel(module_name, variables, limit_s) for way, variables in WAYS.items()}
    for way, result in found.items():
        facts[f"first kernel, {way}"] = json.dumps(result)[:MAX_TEXT]
    capability = tuple(module.cuda.get_device_capability(0))
    facts["code"], text = judge_code(found, arch_list(module), "sm_{}{}".format(*capability))
    return text


def check_cuda(probe: Probe, module: Any, seed: int, cpu_only: bool, code: Callable[[], str] | None = None) -> None:
    """The GPU part. Where there is nothing to run it on, its checks say so and none passes.

    Args:
        probe: Where the results go.
        module: The module under test.
        seed: Of the test data.
        cpu_only: Leave the GPU alone.
        code: The check for native code or JIT, which starts processes; None leaves it out.
    """
    reason = None

    def driver() -> str:
        if cpu_only:
            raise NotRunError("only the CPU part was asked for")
        if module.version.cuda is None:
            raise NotRunError("built without CUDA")
        return find_driver()[1]

    if probe.run("cuda", "driver", driver) != PASSED:
        last = probe.checks[-1]
        reason = last["reason"] or "the NVIDIA driver does not start"

    def needs(check: Callable[[], str]) -> Callable[[], str]:
        def guarded() -> str:
            if reason is not None:
                raise NotRunError(reason)
            return check()

        return guarded

    if probe.run("cuda", "is_available", needs(lambda: check_available(module))) == FAILED:
        reason = "cuda.is_available() is not True"
    probe.run("cuda", "devices", needs(lambda: check_devices(module)))
    probe.run(
        "cuda",
        "code for the device",
        needs(lambda: code_for(tuple(module.cuda.get_device_capability(0)), arch_list(module))),
    )
    if code is not None:
        probe.run("cuda", "native or JIT", needs(code), 3.2 * probe.limit_s)
    whole = hasattr(module, "nn")
    for name in MATMULS if whole else FORMATS:
        check = (
            functools.partial(check_wide_matmul, module, name, seed, "cuda")
            if whole
            else functools.partial(check_matmul, module, name, "cuda", CUDA_SIZES, seed)
        )
        probe.run("cuda", "matmul " + name + " on cuda", needs(check))
    if not whole:
        return
    checks: dict[str, Callable[[Any, str], str]] = {
        "matmul int8 on cuda": check_int8_matmul,
        "matmul float8 on cuda": check_float8_matmul,
        "strided matmul": check_strided,
        "batched matmul": check_batched,
        "empty matmul": check_empty,
        "2**31 elements": check_large,
        "convolution through cuDNN": check_convolution,
        "reduction": check_reduction,
        "sort": check_sort,
        "FFT": check_fft,
        "indexing": check_indexing,
        "training step on cuda": check_training,
    }
    for name, one in checks.items():
        probe.run("cuda", name, needs(functools.partial(one, module, "cuda")))
    probe.run("cuda", "streams and events", needs(lambda: check_streams(module)))
    probe.run("cuda", "out of memory survived", needs(lambda: check_out_of_memory(module)))
    for name in UNITS:
        probe.run("speed", f"{name} product speed", needs(functools.partial(check_matmul_speed, module, name)))
    probe.run("speed", "copy speed", needs(functools.partial(check_copy_speed, module)))


def check_cpu(probe: Probe, module: Any, options: argparse.Namespace) -> None:
    """The CPU part."""
    for name in FORMATS:
        probe.run(
            "cpu",
            "matmul " + name + " on cpu",
            functools.partial(check_matmul, module, name, "cpu", CPU_SIZES, options.seed),
        )
    probe.run("cpu", "matmul int32 on cpu", lambda: check_matmul_int(module, CPU_SIZES, options.seed))
    if not hasattr(module, "nn"):
        return
    probe.run("cpu", "CPU capability", lambda: cpu_capability(module))
    probe.run("cpu", "convolution on cpu", lambda: check_convolution(module, "cpu"))
    probe.run("cpu", "training step on cpu", lambda: check_training(module, "cpu"))
    probe.run("cpu", "quantized linear", lambda: check_quantized(module, options.expect_quantized))
    probe.run("cpu", "numpy bridge", lambda: check_numpy(module))


def run_checks(probe: Probe, options: argparse.Namespace) -> None:
    """All checks, in order. Without the module there is only one."""
    loaded: list[Any] = []

    def load() -> str:
        loaded.append(importlib.import_module(options.module))
        file = str(getattr(loaded[0], "__file__", None))
        # Reports are kept where others read them: the place inside of the environment, not that of the environment.
        inside = file.startswith(sys.prefix + os.sep)
        return file[len(sys.prefix) + 1 :] if inside else os.path.basename(file)  # noqa: PTH119

    if probe.run("package", "import", load) != PASSED:
        return
    module = loaded[0]
    probe.run("package", "version", lambda: check_version(module, options.expect_version))
    probe.run("package", "CUDA version", lambda: check_cuda_version(module, options.expect_cuda))
    probe.run("package", "build configuration", lambda: check_config(module))
    probe.run("package", "architectures", lambda: check_archs(module, options.expect_arch))
    if not options.gpu_only:
        check_cpu(probe, module, options)
    code = functools.partial(check_code, module, probe.document["facts"], options.module, probe.limit_s or 900)
    check_cuda(probe, module, options.seed, options.cpu_only, code)


def junit(suite: str, rows: list[tuple[str, str, str, float, str, str]]) -> str:
    """JUnit's XML, as CI systems read it. A row is (group, name, status, seconds, headline, text)."""
    counts = {status: sum(1 for row in rows if row[2] == status) for status in (FAILED, NOT_RUN)}
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(
        "<testsuite name={} tests={} failures={} errors={} skipped={} time={}>".format(
            *(
                quoteattr(xml_text(str(value)))
                for value in (
                    suite, len(rows), counts[FAILED], 0, counts[NOT_RUN], round(sum(row[3] for row in rows), 3),
                )
            )
        )
    )  # fmt: skip
    for group, name, status, seconds, headline, text in rows:
        attributes = "classname={} name={} time={}".format(
            quoteattr(xml_text(f"{suite}.{group}")), quoteattr(xml_text(name)), quoteattr(str(round(seconds, 3)))
        )
        tag = {PASSED: "system-out", FAILED: "failure", NOT_RUN: "skipped"}[status]
        message = "" if status == PASSED else f" message={quoteattr(xml_text(headline))}"
        body = escape(xml_text(text))
        lines.append(f" <testcase {attributes}><{tag}{message}>{body}</{tag}></testcase>")
    return "\n".join([*lines, "</testsuite>", ""])


def xml_text(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def junit_rows(checks: list[dict[str, Any]]) -> list[tuple[str, str, str, float, str, str]]:
    return [
        (
            check["group"],
            check["name"],
            check["status"],
            check["seconds"],
            check["reason"] or check["seen"] or "",
            "\n".join(
                f"{key}: {check[key]}"
                for key in ("seen", "expected", "reason", "warning")
                if check.get(key) is not None
            ),
        )
        for check in checks
    ]


def print_table(checks: list[dict[str, Any]]) -> None:
    """One line a check, in ASCII: the console's encoding is unknown."""
    for check in checks:
        detail = check["reason"] or check["seen"] or ""
        status = check["status"].replace("_", " ")
        if check["status"] == FAILED:
            detail = "{} (expected: {})".format(detail, check["expected"])
        elif check.get("warning"):
            status, detail = "warning", "{} ({})".format(detail, check["warning"])
        line = "{:<8} {:<26} {:>8.2f} s  {}".format(
            status, check["name"], check.get("seconds", 0.0), " ".join(detail.split())[:300]
        )
        print(line.encode("ascii", "backslashreplace").decode())
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Does an installed torch work on this machine?")
    parser.add_argument("--module", default="torch", help="the module to test (default: torch)")
    parser.add_argument("--json", required=True, help="where to write the report")
    parser.add_argument("--junit", help="where to write it as JUnit's XML")
    parser.add_argument("--expect-version", help="the version that must be installed")
    parser.add_argument("--expect-cuda", help="the CUDA version it must be built with, or none")
    parser.add_argument("--expect-arch", nargs="+", default=[], help="what it must hold: sm_35, compute_35")
    parser.add_argument("--expect-quantized", metavar="ENGINE", help="the quantized engine it must have: fbgemm")
    parser.add_argument("--cpu-only", action="store_true", help="leave the GPU alone")
    parser.add_argument("--gpu-only", action="store_true", help="leave out the CPU part")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one check; 0: none (default: 900)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the test data (default: 1)")
    parser.add_argument("--first-kernel", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.first_kernel:
        found = first_kernel(importlib.import_module(options.module))
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(found, file)
        return 0
    document = {
        "schema": SCHEMA,
        "module": options.module,
        "facts": {
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "system": platform.platform(),
            "machine": platform.machine(),
        },
    }
    probe = Probe(options.json, document, options.limit)
    run_checks(probe, options)
    document["complete"] = True
    probe.write()
    print_table(probe.checks)
    if options.junit:
        with open(options.junit, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(junit(options.module, junit_rows(probe.checks)))
    return 1 if any(check["status"] == FAILED for check in probe.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
