"""The NVIDIA driver itself, asked without the module under test."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .outcome import FailedError, NotRunError


def find_driver() -> tuple[int, str]:
    """Asks the NVIDIA driver itself, not the module: (number of GPUs, description).

    Raises:
        NotRunError: There is no driver, or it sees no GPU.
        FailedError: There is a driver and it does not work.
    """
    driver, count = start_driver()
    version = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    # 12080 stands for 12.8.
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    # The driver itself tells only the CUDA version that it knows; its own number comes from NVML.
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
    """The driver's properties of the first card: multiprocessors, clocks in kHz, width of the memory bus in bits.

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
