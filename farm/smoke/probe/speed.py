"""How fast the card multiplies and copies, as a share of what it can do."""

from __future__ import annotations

import functools
import json
import pkgutil
from typing import TYPE_CHECKING, Any

from .driver import card_numbers
from .matmul import MATMULS, exactly, free_memory
from .outcome import NotRunError, Warned

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.lru_cache(maxsize=None)
def throughput() -> dict[str, Any]:
    """`throughput.json`: what each SM can do, with its sources; its keys are texts."""
    # `pkgutil`, since the packed probe is a zip: there is no file to open.
    return dict(json.loads(pkgutil.get_data(__package__, "throughput.json") or b""))


def units_of(name: str, sm: int, *, geforce: bool = False) -> int:
    """Fused multiply-adds a clock and multiprocessor; 0 where it is not known."""
    known = throughput()
    units = known["units"][name].get(str(sm), 0)
    if geforce and name == "float64":
        units = known["geforce_float64"].get(str(sm), units)
    return int(units)


def share_of_peak(what: str, rate: float, peak: float, unit: str, limit: float, why: str) -> str:
    """`3.1 TFLOP/s, 72 % of 4.3`; with a warning below `limit`. `rate` and `peak` in the same unit."""
    if not peak > 0:
        return f"{rate:.3g} {unit}; what the card can do is not known"
    share = rate / peak
    text = f"{rate:.3g} {unit}, {100 * share:.0f} % of the card's {peak:.3g}"
    if share < limit:
        return Warned(text, f"{what} below {100 * limit:.0f} % of what the card can do: {why}")
    return text


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

    # The first calls load the kernel and choose an algorithm: they are not measured.
    series(2)
    calls = max(1, min(1000, int(seconds / 5 / max(series(1), 1e-6))))
    # The best: whatever else runs can only make it slower.
    return min(series(calls) for _ in range(5))


def rows_that_fit(most: int, item: int, free: int) -> int:
    """Rows of square matrices of `item` bytes an element, of which four fit into `free` bytes (0: not known).

    At most `most`, and at least 512. A GeForce GT 710 has 1 GB: there a product of 8192 rows runs out of memory.
    """
    rows = most
    while rows > 512 and 0 < free < 4 * item * rows**2:
        rows //= 2
    return rows


def check_matmul_speed(torch: Any, name: str) -> str:
    """TFLOP/s of a square product on random numbers, as a share of 2 x units x multiprocessors x clock."""
    dtype, _, _, _, lowest = MATMULS[name]
    capability = tuple(torch.cuda.get_device_capability(0))
    if capability < lowest:
        raise NotRunError("sm_{}{} has no {}".format(*capability, name))
    card = card_numbers()
    sm = capability[0] * 10 + capability[1]
    units = units_of(name, sm, geforce="GeForce" in torch.cuda.get_device_name(0))
    free = free_memory(torch)
    # Both are made in float32, whatever they are then.
    size = rows_that_fit(4096, 8, free) if name == "float64" else rows_that_fit(8192, 4, free)
    # A multiplication and an addition a unit and clock: 2.
    peak = 2e-9 * units * card["multiprocessors"] * card["clock_khz"]
    x = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    y = torch.randn(size, size, device="cuda").to(getattr(torch, dtype))
    with exactly(torch, tf32=name == "tf32"):
        took = measure(torch, lambda: torch.mm(x, y))
    clock = "{} multiprocessors at {:.0f} MHz".format(card["multiprocessors"], card["clock_khz"] / 1000)
    limit = throughput()["warn_below"]["matmul"]
    why = "a debug build, code for another SM, a power cap, or another program on the card"
    return share_of_peak(f"{name} product ({clock})", 2e-12 * size**3 / took, peak, "TFLOP/s", limit, why)


def check_copy_speed(torch: Any) -> str:
    """GB/s of a copy on the card, bytes read and written, as a share of bus width x 2 x memory clock."""
    card = card_numbers()
    count = min(1 << 31, max(free_memory(torch), 1 << 30) // 4)
    x = torch.empty(count, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    took = measure(torch, lambda: y.copy_(x))
    peak = 2e-6 * card["memory_clock_khz"] * card["bus_bits"] / 8
    why = "ECC costs up to a fifth on GDDR; else a low memory clock, or another program on the card"
    return share_of_peak("copy", 2e-9 * count / took, peak, "GB/s", throughput()["warn_below"]["copy"], why)
