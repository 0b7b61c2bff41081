"""Does an installed torch, or a module that speaks its interface, work on this machine?

One file, standard library and the module under test only, Python 3.7 or newer, Windows and Linux:

    python probe.py --module torch --json report.json --expect-cuda 11.8 --expect-arch sm_35

Every check ends as passed, failed (with what was seen and what was expected) or not run (with the reason). The
JSON file is written after every check, so a crash loses nothing, and names the check that is running.
Exit code: 0 no check failed, 1 at least one failed, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import json
import math
import os
import platform
import random
import re
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = 1
PASSED, FAILED, NOT_RUN = "passed", "failed", "not_run"
MAX_TEXT = 4000  # characters kept of a text that comes from the module

# (rows of a, columns of a = rows of b, columns of b). Edges of tiles and vectors: below, at and above them.
CPU_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (3, 257, 5))
CUDA_SIZES = ((1, 1, 1), (17, 17, 17), (64, 64, 64), (100, 37, 50), (33, 129, 65))

# name -> (unit roundoff u of IEEE 754, bits of the inputs). The inputs have so few bits that a product of two is
# exact in a double, yet more than the next smaller format holds, so that a product in that one is found out.
FORMATS = {"float32": (2.0**-24, 24), "float64": (2.0**-53, 26)}
INTEGER_BITS = 11  # sums of 257 products of two such numbers stay far inside 32 bits


class NotRunError(Exception):
    """This check cannot be made here; the text is the reason."""


class FailedError(Exception):
    """The module did something else than it should."""

    def __init__(self, seen: str, expected: str) -> None:
        super().__init__(seen)
        self.seen = seen
        self.expected = expected


class Probe:
    """Runs checks one after the other and keeps the JSON file up to date."""

    def __init__(self, path: str, document: dict[str, Any]) -> None:
        self.path = path
        self.document = document
        self.checks: list[dict[str, Any]] = []
        document.update(complete=False, running=None, checks=self.checks)

    def run(self, group: str, name: str, check: Callable[[], str]) -> str:
        """Runs one check, which returns what it saw, and returns its status."""
        self.document["running"] = name
        self.write()
        entry: dict[str, Any] = {
            "group": group,
            "name": name,
            "status": PASSED,
            "seen": None,
            "expected": None,
            "reason": None,
        }
        started = time.perf_counter()
        try:
            entry["seen"] = check()
        except NotRunError as error:
            entry.update(status=NOT_RUN, reason=str(error))
        except FailedError as error:
            entry.update(status=FAILED, seen=error.seen, expected=error.expected)
        except Exception as error:
            seen = f"{type(error).__name__}: {error}"
            entry.update(status=FAILED, seen=seen, expected="no error")
        for key in ("seen", "expected", "reason"):
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
        os.replace(temporary, self.path)  # noqa: PTH105


# --- what the machine has -------------------------------------------------------------------------------------


def find_driver() -> tuple[int, str]:
    """Asks the NVIDIA driver itself, not the module: (number of GPUs, description).

    Raises:
        NotRunError: There is no driver, or it sees no GPU.
        FailedError: There is a driver and it does not work.
    """
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
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    if count.value < 1:
        raise NotRunError("the NVIDIA driver sees no GPU")
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return count.value, f"driver for CUDA {cuda}, {count.value} GPU(s)"


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
    """The architectures in the wheel. torch answers [] without a GPU; its configuration text knows them still."""
    archs = [str(arch) for arch in module.cuda.get_arch_list()]
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
        devices.append("{}: {} (sm_{}{})".format(index, module.cuda.get_device_name(index), *capability))
    if not devices:
        raise FailedError("no device", "a device")
    return "; ".join(devices)


def check_cuda(probe: Probe, module: Any, seed: int, cpu_only: bool) -> None:
    """The GPU part. Where there is nothing to run it on, its checks say so and none passes."""
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
    for name in FORMATS:
        probe.run(
            "cuda",
            "matmul " + name + " on cuda",
            needs(functools.partial(check_matmul, module, name, "cuda", CUDA_SIZES, seed)),
        )


def run_checks(probe: Probe, options: argparse.Namespace) -> None:
    """All checks, in order. Without the module there is only one."""
    loaded: list[Any] = []

    def load() -> str:
        loaded.append(importlib.import_module(options.module))
        return str(getattr(loaded[0], "__file__", None))

    if probe.run("package", "import", load) != PASSED:
        return
    module = loaded[0]
    probe.run("package", "version", lambda: check_version(module, options.expect_version))
    probe.run("package", "CUDA version", lambda: check_cuda_version(module, options.expect_cuda))
    probe.run("package", "build configuration", lambda: check_config(module))
    probe.run("package", "architectures", lambda: check_archs(module, options.expect_arch))
    for name in FORMATS:
        probe.run(
            "cpu",
            "matmul " + name + " on cpu",
            functools.partial(check_matmul, module, name, "cpu", CPU_SIZES, options.seed),
        )
    probe.run("cpu", "matmul int32 on cpu", lambda: check_matmul_int(module, CPU_SIZES, options.seed))
    check_cuda(probe, module, options.seed, options.cpu_only)


def print_table(checks: list[dict[str, Any]]) -> None:
    """One line a check, in ASCII: the console's encoding is unknown."""
    for check in checks:
        detail = check["reason"] or check["seen"] or ""
        if check["status"] == FAILED:
            detail = "{} (expected: {})".format(detail, check["expected"])
        line = "{:<8} {:<24} {}".format(
            check["status"].replace("_", " "), check["name"], " ".join(detail.split())[:200]
        )
        print(line.encode("ascii", "backslashreplace").decode())
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Does an installed torch work on this machine?")
    parser.add_argument("--module", default="torch", help="the module to test (default: torch)")
    parser.add_argument("--json", required=True, help="where to write the report")
    parser.add_argument("--expect-version", help="the version that must be installed")
    parser.add_argument("--expect-cuda", help="the CUDA version it must be built with, or none")
    parser.add_argument("--expect-arch", nargs="+", default=[], help="what it must hold: sm_35, compute_35")
    parser.add_argument("--cpu-only", action="store_true", help="leave the GPU alone")
    parser.add_argument("--seed", type=int, default=1, help="seed of the test data (default: 1)")
    options = parser.parse_args(arguments)
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
    probe = Probe(options.json, document)
    run_checks(probe, options)
    document["complete"] = True
    probe.write()
    print_table(probe.checks)
    return 1 if any(check["status"] == FAILED for check in probe.checks) else 0


if __name__ == "__main__":
    sys.exit(main())
