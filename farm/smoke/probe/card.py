"""The NVIDIA driver, asked without the module under test; the code that the card runs; its
speed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

from .package import arch_list, python_command
from .products import MATMULS, exactly, free_memory
from .recorder import MAX_TEXT, FailedError, NotRunError, Warned

if TYPE_CHECKING:
    from collections.abc import Callable


def find_driver() -> tuple[int, str]:
    """Asks the NVIDIA driver itself, not the module: (number of GPUs, description)."""
    driver, count = start_driver()
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    # 12080 stands for 12.8.
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    # The driver itself tells only the CUDA version that it knows; its own number comes from NVML.
    number = driver_version()
    return count, "driver {}for CUDA {}, {} GPU(s)".format(
        f"{number} " if number else "", cuda, count
    )


def start_driver() -> tuple[Any, int]:
    """The driver's library, started, and the number of GPUs that it sees; raises as `find_driver`
    does.
    """
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        # Right on Windows too: 64-bit Windows has one calling convention.
        driver = ctypes.CDLL(name)
    except OSError:
        raise NotRunError("no NVIDIA driver") from None
    status = driver.cuInit(0)
    # CUresult values, CUDA Driver API reference: 34 CUDA_ERROR_STUB_LIBRARY, 100
    # CUDA_ERROR_NO_DEVICE.
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
        if nvml.nvmlSystemGetDriverVersion(text, 80) == 0:
            version = text.value.decode("ascii", "replace")
        else:
            version = ""
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return ""
    return version


def card_numbers() -> dict[str, int]:
    """The driver's properties of the first card: multiprocessors, clocks in kHz, width of the
    memory bus in bits.

    The numbers of the attributes: CUDA Driver API reference, CUdevice_attribute.
    """
    driver, _ = start_driver()
    device = ctypes.c_int(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    numbers = {}
    attributes = {"multiprocessors": 16, "clock_khz": 13, "memory_clock_khz": 36, "bus_bits": 37}
    for name, attribute in attributes.items():
        value = ctypes.c_int(0)
        status = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        numbers[name] = value.value if status == 0 else 0
    return numbers


# CUDA C++ Programming Guide, "CUDA Environment Variables". Without the cache, so that the first
# call is a first call.
WAYS = {
    "ordinary": {},
    "without JIT": {"CUDA_DISABLE_PTX_JIT": "1"},
    "JIT only": {"CUDA_FORCE_PTX_JIT": "1"},
}
PTX_AS_WELL_S = 60.0


def first_kernel(module: Any) -> dict[str, Any]:
    """Runs the first kernel of the module's own in this process: seconds, and what came of it."""
    outcome: dict[str, Any] = {"ok": False, "error": None, "first_s": None, "second_s": None}
    is_torch = hasattr(module, "nn")
    try:
        if is_torch:  # torch's own kernel; its products are those of cuBLAS
            x = module.full((17, 17), 3.0).cuda()
        else:
            x = module.tensor([[1.0] * 17 for _ in range(17)], dtype=module.float32, device="cuda")
        right = 7.0 if is_torch else 17.0
        for name in ("first_s", "second_s"):
            started = time.perf_counter()
            rows = (x * 2 + 1 if is_torch else x @ x).cpu().tolist()
            outcome[name] = time.perf_counter() - started
            if any(value != right for row in rows for value in row):
                outcome["error"] = "wrong numbers"
                return outcome
        outcome["ok"] = True
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"[:MAX_TEXT]
    return outcome


def run_first_kernel(module_name: str, way: dict[str, str], limit_s: float) -> dict[str, Any]:
    """`first_kernel` in a process of its own, with the driver set to find code that way."""
    environ = {**os.environ, "CUDA_CACHE_DISABLE": "1", **way}
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "found.json")
        # The program that runs: the packed file, or the package's folder.
        command = [*python_command(), os.path.abspath(sys.argv[0])]
        command += [f"--module={module_name}", f"--json={file}", "--first-kernel"]
        try:
            child = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environ, timeout=limit_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"did not finish in {limit_s:.3g} s"}
        try:
            with open(file, encoding="utf-8") as stream:
                return dict(json.load(stream))
        except (OSError, ValueError):
            printed = child.stdout.decode("utf-8", "replace")[-500:]
            return {"ok": False, "error": f"ended with {child.returncode}: {printed}"}


def try_ways(
    run: Callable[[str, float], dict[str, Any]], limit_s: float
) -> dict[str, dict[str, Any]]:
    """One result for each way that is needed; `run(way, seconds)` gives it.

    Each way may compile every kernel of the module anew, which takes minutes. So none is tried
    whose answer follows from another: code that runs without JIT also runs in the ordinary way, and
    where it does not, the ordinary way is JIT. Whether the PTX of a wheel with machine code serves
    as well is worth a minute, not more.
    """
    results = {"without JIT": run("without JIT", limit_s)}
    if results["without JIT"]["ok"]:
        results["JIT only"] = run("JIT only", min(limit_s, PTX_AS_WELL_S))
    else:
        results["ordinary"] = run("ordinary", limit_s)
    return results


def judge_code(found: dict[str, dict[str, Any]], archs: list[str], sm: str) -> tuple[str, str]:
    """The kind of code that serves the card: (`native` or `jit`, text), from the results of
    `try_ways`.
    """
    holds = " ".join(archs) or "nothing"
    plain = found["without JIT"]
    if plain["ok"]:
        forced = found["JIT only"]
        ptx_text = "no PTX that serves"
        if forced["ok"]:
            ptx_text = "has PTX as well ({:.3f} s with it)".format(forced["first_s"])
        elif "did not finish" in str(forced["error"]):
            ptx_text = "its PTX {}".format(forced["error"])
        return "native", f"its own SASS serves {sm}: {times(plain)}; {ptx_text}"
    ordinary = found["ordinary"]
    if ordinary["ok"]:
        text = (
            f"no SASS for {sm} in the wheel ({holds}): the driver compiled its PTX at the "
            f"first use: {times(ordinary)}"
        )
        why = (
            "every first run compiles PTX, which takes minutes with a whole torch; later ones "
            "find it in the driver's "
            "cache (set CUDA_CACHE_MAXSIZE=4294967296 to hold it all). A wheel with SASS for "
            f"{sm} needs none of this, "
            "and PTX of a newer toolkit than the driver's cannot be compiled at all"
        )
        return "jit", Warned(text, why)
    error = str(ordinary["error"])
    if re.search("no kernel image|NoKernelImage", error):
        raise FailedError(
            f"no kernel image for {sm}: the wheel holds {holds} ({error})", f"code for {sm}"
        )
    if re.search("unsupported toolchain|UnsupportedPtxVersion", error):
        text = f"the wheel has no SASS for {sm}, and its PTX is newer than the driver can compile"
        raise FailedError(
            f"{text}; it holds {holds} ({error})", f"SASS for {sm}, or a newer driver"
        )
    raise FailedError(error, "a kernel that runs")


def times(result: dict[str, Any]) -> str:
    return "first kernel {first_s:.3f} s, then {second_s:.4f} s".format(**result)


def check_code(module: Any, facts: dict[str, str], module_name: str, limit_s: float) -> str:
    """Is it the wheel's own machine code that the card runs, or PTX that the driver compiled?

    `limit_s`: for each process that is started, seconds.
    """
    facts["code"] = "none"
    results = try_ways(
        lambda way, seconds: run_first_kernel(module_name, WAYS[way], seconds), limit_s
    )
    for way, result in results.items():
        facts[f"first kernel, {way}"] = json.dumps(result)[:MAX_TEXT]
    capability = tuple(module.cuda.get_device_capability(0))
    facts["code"], text = judge_code(results, arch_list(module), "sm_{}{}".format(*capability))
    return text


@functools.lru_cache(maxsize=None)
def throughput() -> dict[str, Any]:
    """`throughput.json`: what each SM can do, with its sources; its keys are texts."""
    # `pkgutil`, since the packed probe is a zip: there is no file to open.
    return dict(json.loads(pkgutil.get_data(__package__, "throughput.json") or b""))


def units_of(name: str, sm: int, *, geforce: bool = False) -> int:
    """Fused multiply-adds a clock and multiprocessor; 0 where it is not known."""
    figures = throughput()
    units = figures["units"][name].get(str(sm), 0)
    if geforce and name == "float64":
        units = figures["geforce_float64"].get(str(sm), units)
    return int(units)


def share_of_peak(what: str, rate: float, peak: float, unit: str, limit: float, why: str) -> str:
    """`3.1 TFLOP/s, 72 % of 4.3`; with a warning below `limit`. `rate` and `peak` in the same
    unit.
    """
    if not peak > 0:
        return f"{rate:.3g} {unit}; what the card can do is not known"
    share = rate / peak
    text = f"{rate:.3g} {unit}, {100 * share:.0f} % of the card's {peak:.3g}"
    if share < limit:
        return Warned(text, f"{what} below {100 * limit:.0f} % of what the card can do: {why}")
    return text


def measure(torch: Any, run: Callable[[], Any], seconds: float = 0.5) -> float:
    """Seconds of one call, the best of five series on the card's own clock."""
    begun = torch.cuda.Event(enable_timing=True)
    ended = torch.cuda.Event(enable_timing=True)

    def series(calls: int) -> float:
        begun.record()
        for _ in range(calls):
            run()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1000 / calls

    # The first calls load the kernel and choose an algorithm: they are not measured.
    series(2)
    calls = max(1, min(1000, int(seconds / 5 / max(series(1), 1e-6))))
    # The best: whatever else runs can only make it slower.
    return min(series(calls) for _ in range(5))


def rows_that_fit(most: int, item: int, free: int) -> int:
    """Rows of square matrices of `item` bytes an element, of which four fit into `free` bytes (0:
    not known).

    At most `most`, and at least 512. A GeForce GT 710 has 1 GB: there a product of 8192 rows runs
    out of memory.
    """
    rows = most
    while rows > 512 and 0 < free < 4 * item * rows**2:
        rows //= 2
    return rows


def check_matmul_speed(torch: Any, name: str) -> str:
    """TFLOP/s of a square product on random numbers, as a share of 2 x units x multiprocessors x
    clock.
    """
    dtype, _, _, _, lowest = MATMULS[name]
    capability = tuple(torch.cuda.get_device_capability(0))
    if capability < lowest:
        raise NotRunError("sm_{}{} has no {}".format(*capability, name))
    card = card_numbers()
    sm = capability[0] * 10 + capability[1]
    units = units_of(name, sm, geforce="GeForce" in torch.cuda.get_device_name(0))
    free = free_memory(torch)
    # Both are made in float32, whatever they are then.
    if name == "float64":
        size = rows_that_fit(4096, 8, free)
    else:
        size = rows_that_fit(8192, 4, free)
    # A multiplication and an addition a unit and clock: 2.
    peak = 2e-9 * units * card["multiprocessors"] * card["clock_khz"]
    x = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    y = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    with exactly(torch, tf32=name == "tf32"):
        took = measure(torch, lambda: torch.mm(x, y))
    clock = "{} multiprocessors at {:.0f} MHz".format(
        card["multiprocessors"], card["clock_khz"] / 1000
    )
    limit = throughput()["warn_below"]["matmul"]
    why = "a debug build, code for another SM, a power cap, or another program on the card"
    return share_of_peak(
        f"{name} product ({clock})", 2e-12 * size**3 / took, peak, "TFLOP/s", limit, why
    )


def check_copy_speed(torch: Any) -> str:
    """GB/s of a copy on the card, bytes read and written, as a share of bus width x 2 x memory
    clock.
    """
    card = card_numbers()
    count = min(1 << 31, max(free_memory(torch), 1 << 30) // 4)
    x = torch.empty(count, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    took = measure(torch, lambda: y.copy_(x))
    peak = 2e-6 * card["memory_clock_khz"] * card["bus_bits"] / 8
    why = "ECC costs up to a fifth on GDDR; else a low memory clock, or another program on the card"
    return share_of_peak(
        "copy", 2e-9 * count / took, peak, "GB/s", throughput()["warn_below"]["copy"], why
    )
