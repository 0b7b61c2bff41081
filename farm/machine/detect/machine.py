"""Where readings come from: this machine; tests have recorded ones in its place.

Everything here is raw, bounded text; `farm.machine.detect.readings` makes sense of it.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

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


class Machine:
    """The machine that this runs on. Every method may raise NoReadingError."""

    def uname(self) -> Uname:
        found = platform.uname()
        return Uname(found.system, found.release, found.version, found.machine)

    def libc(self) -> str:
        """`glibc 2.36`."""
        try:
            found = os.confstr("CS_GNU_LIBC_VERSION")
        except (AttributeError, ValueError, OSError):
            found = None
        if not found:
            raise NoReadingError("the C library is not glibc")
        return found

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
        # Into a file: a program that prints without end fills the disk slowly and no memory, and the timeout holds.
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
        _require_driver()
        import pynvml  # noqa: PLC0415  loads nothing of the driver before nvmlInit

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NoReadingError(str(error)) from error
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            return Nvml(_text(pynvml.nvmlSystemGetDriverVersion()), tuple(map(_device, handles)))
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
                name, features = str(host().name), tuple(sorted(detected_info().features))
            except Exception as error:
                raise NoReadingError(f"archspec: {type(error).__name__}: {error}") from error
        if caught:
            raise NoReadingError(f"archspec: {caught[0].message}")
        return CpuId(name, features)

    def python(self, name: str) -> str:
        """The interpreter for `py311`."""
        found = find_python(name)
        if found is None:
            raise NoReadingError(f"python{name[2]}.{name[3:]} is not on the PATH")
        return str(found)

    def running_python(self) -> str:
        major, minor, _ = platform.python_version_tuple()
        return f"py{major}{minor}" + "t" * running_free()

    def pci(self) -> tuple[str, ...]:
        """Every PCI device as `vendor:device class`, in hexadecimal: `10de:1024 030000`."""
        folder = Path("/sys/bus/pci/devices")
        if not folder.is_dir():
            raise NoReadingError(f"{folder} is not there")
        found = []
        for device in sorted(folder.iterdir())[:4096]:
            words = [self.read(str(device / name)).strip().removeprefix("0x") for name in ("vendor", "device", "class")]
            found.append(f"{words[0]}:{words[1]} {words[2]}")
        return tuple(found)


def _require_driver() -> None:
    """A check for NVML without pynvml: importing that takes long, and most machines without a GPU have no driver."""
    if os.name != "posix":
        return
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NoReadingError("NVML Shared Library Not Found") from error


def _device(handle: object) -> NvmlDevice:
    import pynvml  # noqa: PLC0415  (only where there is a GPU)

    text = _text(pynvml.nvmlDeviceGetName(handle))
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = f"{int(major)}.{int(minor)}"
    except pynvml.NVMLError:
        capability = None
    try:
        memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    except pynvml.NVMLError:  # GPUs that share the machine's memory have none to tell of
        memory = None
    return NvmlDevice(text, capability, memory)


def _text(data: bytes | str) -> str:
    """Bytes until nvidia-ml-py 12, text from then on."""
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
