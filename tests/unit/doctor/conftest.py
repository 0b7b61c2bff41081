"""Machines to check: what their tools say (none of it was captured on Windows)."""

from pathlib import Path

import pytest

from farm.base.errors import NoRunnerError
from farm.machine.doctor import run_checks
from farm.machine.host import Answer, CpuId, NoReadingError, Nvml, NvmlDevice, Uname
from farm.machine.readings import collect
from tests.plans import plan_of

ROOT = Path(__file__).parents[3]
BUILD_TOOLS = r"C:\Program Files (x86)\Microsoft Visual Studio\2019\BuildTools"
VC = BUILD_TOOLS + r"\VC"
CL = VC + r"\Tools\MSVC\14.29.30133\bin\Hostx64\x64"
SDK = r"C:\Program Files (x86)\Windows Kits\10\Include"


class Machine:
    """A machine by its answers; a test changes them before it asks."""

    def __init__(self, system, *, gpu=("Tesla K40c", "3.5", 11441), driver="472.50"):
        self.system, self.gpu, self.driver = system, gpu, driver
        self.commands = {"git --version": (0, "git version 2.45.2.windows.1\r\n")}
        self.paths, self.programs, self.packages, self.variables = set(), {}, {}, {}
        self.docker = NoRunnerError("no Docker engine answers", hint="set DOCKER_HOST")
        self.total, self.commit, self.disk, self.count = 33_378_976 << 10, 64 << 30, 901 * 10**9, 32

    def uname(self):
        return {
            "windows": Uname("Windows", "10", "10.0.17763", "AMD64"),
            "linux": Uname("Linux", "6.1.0", "#1", "x86_64"),
            "macos": Uname("Darwin", "23.5.0", "Darwin Kernel", "arm64"),
        }[self.system]

    def run(self, *command):
        line = " ".join(command)
        if line in self.commands:
            return Answer(*self.commands[line])
        raise NoReadingError(f"{command[0]} is not on the PATH")

    def nvml(self):
        if self.gpu is None:
            raise NoReadingError("NVML Shared Library Not Found")
        return Nvml(self.driver, (NvmlDevice(*self.gpu),))

    def read(self, path):
        raise NoReadingError(f"{path}: No such file")

    def libc(self):
        raise NoReadingError("none")

    def cpuid(self):
        return CpuId("sandybridge", ("avx", "sse4_1", "sse4_2", "ssse3", "sse2", "sse"))

    def python(self, name):
        if name == "py311":
            return r"C:\Users\Jörg\python.exe"
        raise NoReadingError(f"no {name}")

    def running_python(self):
        return "py311"

    def pci(self):
        raise NoReadingError("no PCI")

    def exists(self, path):
        return path in self.paths

    def which(self, name):
        return self.programs.get(name)

    def memory(self):
        return self.total, self.commit

    def free(self, path):  # noqa: ARG002 one disk
        return self.disk

    def cores(self):
        return self.count

    def variable(self, name):
        return self.variables.get(name)

    def package(self, name):
        return self.packages.get(name)

    def engine(self):
        if isinstance(self.docker, Exception):
            raise self.docker
        return self.docker


@pytest.fixture
def k40():
    """A Windows machine that is fit for the Kepler channel in every way."""
    machine = Machine("windows")
    machine.commands["git config --get core.longpaths"] = (0, "true\n")
    machine.paths |= {rf"{CL}\cl.exe", rf"{CL}\1033\clui.dll"}
    machine.programs["cl.exe"] = rf"{CL}\cl.exe"
    machine.variables |= {"INCLUDE": rf"{SDK}\10.0.19041.0\um", "LIB": rf"{VC}\lib"}
    return machine


@pytest.fixture(scope="session")
def plan():
    return plan_of("sm35-avx-py311", channel="kepler-2.0.1", platform="windows")


@pytest.fixture
def machine():
    return Machine


@pytest.fixture
def findings(plan):
    """Findings by check: (state, seen, todo); of several with one name the worst."""

    def ask(site, build=plan):
        order = ["ok", "warning", "not read", "missing"]
        found = {}
        for item in sorted(
            run_checks(site, collect(site), build), key=lambda item: order.index(item.state)
        ):
            found[item.check] = (item.state, item.seen, item.todo)
            assert bool(item.todo) == (item.state != "ok"), "what is not well says what to do"
        return found

    return ask
