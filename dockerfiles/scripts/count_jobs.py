"""Prints how many compilers fit this machine: as many as it has cores, and no more than its memory
holds.

Usage: count_jobs.py GB_PER_JOB. Of a container the memory limit is not seen:
there the engine sets FARM_JOBS.
"""

import ctypes
import os
import sys


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API: sizes are 64-bit numbers of bytes."""

    _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in (
            "total",
            "free",
            "page_total",
            "page_free",
            "virtual",
            "virtual_free",
            "extended",
        )
    ]


def memory() -> int:
    """Physical memory in bytes."""
    if sys.platform == "win32":
        status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            raise ctypes.WinError()
        return int(status.total)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def jobs(cores: int, total: int, per_job_gb: float) -> int:
    """At least one. 10**9 bytes are a GB; Python's numbers do not overflow as cmd's 32-bit ones
    do.
    """
    return max(1, min(cores, int(total / (per_job_gb * 1e9))))


if __name__ == "__main__":
    print(jobs(os.cpu_count() or 1, memory(), float(sys.argv[1])))
