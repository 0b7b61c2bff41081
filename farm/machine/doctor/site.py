"""Readings of a machine beyond what `farm detect` takes: files, memory, disk, cores, variables, Python packages."""

import ctypes
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

from farm.machine.detect.machine import Machine, NoReadingError


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX: sizes are 64-bit numbers of bytes. psutil asks performance counters, which can be off."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("free", ctypes.c_uint64),
        ("commit_total", ctypes.c_uint64),
        ("commit_free", ctypes.c_uint64),
        ("virtual", ctypes.c_uint64),
        ("virtual_free", ctypes.c_uint64),
        ("extended", ctypes.c_uint64),
    )


class Site(Machine):
    """The machine that this runs on, as the doctor looks at it. Every method may raise NoReadingError."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def which(self, name: str) -> str | None:
        return shutil.which(name)

    def memory(self) -> tuple[int, int]:
        """Physical memory and the commit limit (memory and page file or swap together), in bytes."""
        if sys.platform == "win32":
            # Windows tells by the length which version of the structure it is given.
            status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
            if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
                raise NoReadingError("GlobalMemoryStatusEx failed")
            return int(status.total), int(status.commit_total)
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return total, total + self._swap()

    def _swap(self) -> int:
        try:
            lines = self.read("/proc/meminfo").splitlines()
        except NoReadingError:
            return 0  # macOS makes swap files as it needs them
        sizes = [int(line.split()[1]) for line in lines if line.startswith("SwapTotal:")]
        # The kB of /proc/meminfo are 1024 bytes.
        return sizes[0] << 10 if sizes else 0

    def free(self, path: str) -> int:
        """Free bytes on the disk of a path, or of what will hold it."""
        place = Path(path)
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            return shutil.disk_usage(place).free
        except OSError as error:
            raise NoReadingError(f"{path}: {error.strerror}") from error

    def cores(self) -> int:
        return os.cpu_count() or 1

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def package(self, name: str) -> str | None:
        """Version of a Python package beside the running Python."""
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def engine(self) -> tuple[str, str, str]:
        """The Docker engine's system, version and machine.

        Raises:
            NoRunnerError: None answers.
        """
        from farm.engines.docker import describe  # noqa: PLC0415 (docker-py takes long to import)

        return describe()
