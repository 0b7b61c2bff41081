"""Readings of a machine beyond what `farm detect` takes: files, memory, disk, cores, variables, Python packages."""

import importlib.metadata
import os
import shutil
from pathlib import Path

from farm.machine.detect.machine import Machine, NoReadingError
from farm.platforms.facts import here


class Site(Machine):
    """The machine that this runs on, as the doctor looks at it. Every method may raise NoReadingError."""

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def which(self, name: str) -> str | None:
        return shutil.which(name)

    def memory(self) -> tuple[int, int]:
        """Physical memory and the commit limit (memory and page file or swap together), in bytes."""
        platform = here()
        if platform is None or platform.hardware_from == "proc":
            lines = (line.split() for line in self.read("/proc/meminfo").splitlines())
            size = {words[0]: int(words[1]) << 10 for words in lines if words[-1] == "kB"}
            return size["MemTotal:"], size["MemTotal:"] + size["SwapTotal:"]
        import psutil  # noqa: PLC0415 there alone

        total = int(psutil.virtual_memory().total)
        return total, total + int(psutil.swap_memory().total)

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
