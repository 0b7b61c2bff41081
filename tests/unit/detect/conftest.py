"""Machines from recorded readings, in place of this one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farm.machine.detect import Recommendation, choose
from farm.machine.host import Answer, CpuId, NoReadingError, Nvml, NvmlDevice, Uname
from farm.machine.readings import Readings, collect

FOLDER = Path(__file__).parent / "readings"


class RecordedMachine:
    """A machine that answers what a file holds; what the file does not hold is not there."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record

    def _get(self, key: str) -> Any:
        value = self.record[key]
        if isinstance(value, dict) and "error" in value:
            raise NoReadingError(value["error"])
        return value

    def uname(self) -> Uname:
        return Uname(*self._get("uname"))

    def libc(self) -> str:
        return self._get("libc")

    def read(self, path: str) -> str:
        if path not in self.record["files"]:
            raise NoReadingError(f"{path}: No such file or directory")
        return self.record["files"][path]

    def run(self, *command: str) -> Answer:
        line = " ".join(command)
        if line in self.record["commands"]:
            return Answer(*self.record["commands"][line])
        if any(known.startswith(command[0] + " ") for known in self.record["commands"]):
            return Answer(1, "")
        raise NoReadingError(f"{command[0]} is not on the PATH")

    def nvml(self) -> Nvml:
        found = self._get("nvml")
        return Nvml(found["driver"], tuple(NvmlDevice(*device) for device in found["devices"]))

    def cpuid(self) -> CpuId:
        found = self._get("cpuid")
        return CpuId(found["microarchitecture"], tuple(found["features"]))

    def python(self, name: str) -> str:
        if name not in self.record["pythons"]:
            raise NoReadingError(f"python{name[2]}.{name[3:]} is not on the PATH")
        return self.record["pythons"][name]

    def running_python(self) -> str:
        return self.record["running_python"]

    def pci(self) -> tuple[str, ...]:
        return tuple(self._get("pci"))


def _record(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def record() -> Callable[[str], dict[str, Any]]:
    """A recording as plain data, to change before use."""
    return _record


@pytest.fixture
def recorded() -> type[RecordedMachine]:
    return RecordedMachine


@pytest.fixture
def replay() -> Callable[[dict[str, Any]], Readings]:
    return lambda data: collect(RecordedMachine(data))


@pytest.fixture
def readings() -> Callable[[str], Readings]:
    return lambda name: collect(RecordedMachine(_record(name)))


@pytest.fixture
def recommend(readings: Callable[[str], Readings]) -> Callable[..., Recommendation]:
    """The recommendation for a recorded machine."""
    return lambda name, **options: choose(readings(name), **options)
