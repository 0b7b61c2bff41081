"""The machine that this runs on: raw, bounded text of its files and programs, and its sizes."""

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from farm.plan.variant import dotted_python
from farm.smoke.environment import find_python, running_free

MAX_TEXT = 1 << 20
"""Characters read of one file or one program's output; /proc/cpuinfo of 512 threads is 0.8 MB."""
TIMEOUT_S = 30


class NoReadingError(Exception):
    """A reading cannot be had; the text is the reason."""


class Answer(NamedTuple):
    """A program's output, standard output and errors together, and its exit code."""

    code: int
    text: str


class Uname(NamedTuple):
    """`platform.uname()`: system is Linux, Windows or Darwin."""

    system: str
    release: str
    version: str
    machine: str


class NvmlDevice(NamedTuple):
    name: str
    capability: str | None
    memory_mb: int | None


class Nvml(NamedTuple):
    driver: str
    devices: tuple[NvmlDevice, ...]


class CpuId(NamedTuple):
    """The CPU's microarchitecture, and the features of CPUID in the words of Linux, by archspec."""

    microarchitecture: str
    features: tuple[str, ...]


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX: sizes are 64-bit numbers of bytes. psutil asks performance counters, which
    can be off.
    """

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


class Machine:
    """The machine that this runs on. Every method may raise NoReadingError."""

    def uname(self) -> Uname:
        names = platform.uname()
        return Uname(names.system, names.release, names.version, names.machine)

    def libc(self) -> str:
        """`glibc 2.36`."""
        try:
            version = os.confstr("CS_GNU_LIBC_VERSION")
        except (AttributeError, ValueError, OSError):
            version = None
        if not version:
            raise NoReadingError("the C library is not glibc")
        return version

    def read(self, path: str) -> str:
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(MAX_TEXT)
        except OSError as error:
            raise NoReadingError(f"{path}: {error.strerror}") from error

    def run(self, *command: str) -> Answer:
        program = shutil.which(command[0])
        if program is None:
            raise NoReadingError(f"{command[0]} is not on the PATH")
        # Into a file: a program that prints without end fills the disk slowly and no memory, and
        # the timeout holds.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    [program, *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # What the program prints is parsed: in English.
                    env={**os.environ, "LC_ALL": "C"},
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except OSError as error:
                raise NoReadingError(f"{command[0]} cannot be run: {error.strerror}") from error
            except subprocess.TimeoutExpired as error:
                raise NoReadingError(f"{command[0]} did not answer in {TIMEOUT_S} s") from error
            output.seek(0)
            return Answer(done.returncode, output.read(MAX_TEXT).decode("utf-8", "replace"))

    def nvml(self) -> Nvml:
        import pynvml  # noqa: PLC0415  slow to import; loads nothing of the driver before nvmlInit

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoReadingError(str(error)) from error
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return Nvml(driver, tuple(map(_device, handles)))
        except pynvml.NVMLError as error:
            raise NoReadingError(str(error)) from error
        finally:
            pynvml.nvmlShutdown()

    def cpuid(self) -> CpuId:
        from archspec.cpu import host  # noqa: PLC0415  reads its database
        from archspec.cpu.detect import detected_info  # noqa: PLC0415  (as above)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                name = str(host().name)
                features = tuple(sorted(detected_info().features))
            except Exception as error:
                raise NoReadingError(f"archspec: {type(error).__name__}: {error}") from error
        if caught:
            raise NoReadingError(f"archspec: {caught[0].message}")
        return CpuId(name, features)

    def python(self, name: str) -> str:
        """The interpreter for `py311`."""
        interpreter = find_python(name)
        if interpreter is None:
            raise NoReadingError(f"python{dotted_python(name)} is not on the PATH")
        return str(interpreter)

    def running_python(self) -> str:
        major, minor, _ = platform.python_version_tuple()
        return f"py{major}{minor}" + "t" * running_free()

    def pci(self) -> tuple[str, ...]:
        """Every PCI device as `vendor:device class`, in hexadecimal: `10de:1024 030000`."""
        folder = Path("/sys/bus/pci/devices")
        if not folder.is_dir():
            raise NoReadingError(f"{folder} is not there")
        devices = []
        for device in sorted(folder.iterdir())[:4096]:
            vendor = self._pci_word(device / "vendor")
            model = self._pci_word(device / "device")
            devices.append(f"{vendor}:{model} {self._pci_word(device / 'class')}")
        return tuple(devices)

    def _pci_word(self, path: Path) -> str:
        return self.read(str(path)).strip().removeprefix("0x")

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def which(self, name: str) -> str | None:
        return shutil.which(name)

    def memory(self) -> tuple[int, int]:
        """Physical memory and the commit limit (memory and page file or swap together), in
        bytes.
        """
        if sys.platform == "win32":
            # Windows tells by the length which version of the structure it is given.
            status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
            if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
                raise NoReadingError("GlobalMemoryStatusEx failed")
            return int(status.total), int(status.commit_total)
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # macOS makes swap files as it needs them. The kB of /proc/meminfo are 1024 bytes.
        if sys.platform != "linux":
            return total, total
        swap = re.search(r"SwapTotal:\s+(\d+)", self.read("/proc/meminfo"))
        if swap is None:
            return total, total
        return total, total + (int(swap[1]) << 10)

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


def _device(handle: object) -> NvmlDevice:
    import pynvml  # noqa: PLC0415  (only where there is a GPU)

    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = f"{int(major)}.{int(minor)}"
    except pynvml.NVMLError:
        capability = None
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    except pynvml.NVMLError:  # GPUs that share the machine's memory have none to tell of
        memory = None
    return NvmlDevice(pynvml.nvmlDeviceGetName(handle), capability, memory)
