"""Readings of a machine: GPUs, driver, CPU, operating system, Pythons; and a reason for each that
cannot be had.

`farm.machine.host.Machine` gives raw, bounded text, and tests have recorded ones in its place;
`collect` makes sense of it.
"""

import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field

from farm.base.text import plain
from farm.base.yamlfile import Model
from farm.machine.host import Machine, NoReadingError, NvmlDevice, Uname
from farm.plan.variant import PYTHONS
from farm.platforms.facts import DEFAULT, PLATFORMS, Facts, named
from farm.platforms.shape import PlatformName

MAX_LENGTH = 300
Text = Annotated[str, Field(max_length=MAX_LENGTH), AfterValidator(plain)]
Capability = Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")]
T = TypeVar("T")
OTHER = "other"
"""The system of a machine that no wheel is for."""


class Gpu(Model):
    """One NVIDIA GPU. `capability` is the compute capability as the driver gives it, None if it
    does not.
    """

    name: Text
    capability: Capability | None
    memory_mb: int | None
    source: Literal["nvml", "device tree"]


class Cpu(Model):
    """`machine` is x86_64, aarch64, arm64 (macOS) or what else the system calls it; `features` in
    Linux's words.
    """

    machine: Text
    name: Text | None
    microarchitecture: Text | None
    features: Annotated[tuple[Text, ...], Field(max_length=2000)]


class Os(Model):
    """`libc` is `glibc 2.36` on Linux, None elsewhere or where it is another one."""

    system: PlatformName | Literal["other"]
    name: Text
    version: Text
    libc: Text | None

    @property
    def platform(self) -> Facts | None:
        """The platform of the system; None: no wheel is for it."""
        return PLATFORMS.get(self.system)


class Python(Model):
    name: Annotated[str, Field(pattern=r"^py3\d{1,2}t?$")]
    path: Text


class Missing(Model):
    """A reading that could not be had, and why."""

    what: Text
    why: Text


class Readings(Model):
    """Everything that is known of a machine, as JSON or Python values.

    `unclaimed_gpus` counts NVIDIA display devices on the PCI bus that no driver reported;
    `translated` is true for a process under Rosetta 2; `inside` says what is between this system
    and the hardware.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")] = 1
    os: Os
    cpu: Cpu
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=64)]
    driver: Text | None
    unclaimed_gpus: int
    pythons: tuple[Python, ...]
    running_python: Annotated[str, Field(pattern=r"^py\d{2,4}t?$")]
    translated: bool
    inside: Literal["wsl", "container"] | None = None
    missing: tuple[Missing, ...]

    def to_json(self) -> str:
        """As JSON text; `Readings.model_validate_json` reads it back."""
        return self.model_dump_json(by_alias=True, indent=1)


def collect(machine: Machine) -> Readings:
    """Read everything that is known of a machine.

    Never fails: a reading that cannot be had is listed in `missing`, with the reason.
    """
    return _Collector(machine).collect()


def clean(text: str) -> str:
    """One line of text from outside: no control characters, no runs of spaces, bounded."""
    return plain(" ".join(text[: 4 * MAX_LENGTH].split())).strip()[:MAX_LENGTH]


class _Collector:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.uname: Uname = machine.uname()
        self.platform = named(self.uname.system)
        self.source: str | None = None
        if self.platform:
            self.source = self.platform.hardware_from
        self.missing: list[Missing] = []

    def collect(self) -> Readings:
        gpus, driver = self._gpus()
        unclaimed = 0
        inside = None
        if self.source == "proc":
            inside = self._inside()
            if not gpus:
                unclaimed = self._unclaimed()
        on_sysctl = self.source == "sysctl"
        return Readings(
            cpu=self._cpu(),
            gpus=gpus,
            driver=driver,
            pythons=self._pythons(),
            os=self._os(),
            unclaimed_gpus=unclaimed,
            running_python=self.machine.running_python(),
            translated=on_sysctl and self._sysctl("sysctl.proc_translated") == "1",
            inside=inside,
            missing=tuple(self.missing),
        )

    def _try(self, what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except NoReadingError as error:
            self._miss(what, str(error))
            return None

    def _run(self, what: str, *command: str) -> str:
        """The output of a program; empty where it fails, as sysctl does for a name that is not
        there.
        """
        answer = self._try(what, lambda: self.machine.run(*command))
        if answer is None or answer.code != 0:
            return ""
        return answer.text.strip()

    def _sysctl(self, name: str) -> str:
        return self._run(name, "sysctl", "-n", name)

    def _miss(self, what: str, why: str) -> None:
        self.missing.append(Missing(what=what, why=clean(why)))

    # --- GPUs ---

    def _gpus(self) -> tuple[tuple[Gpu, ...], str | None]:
        if self.platform and not self.platform.cuda:
            return (), None
        nvml = self._try("GPUs", self.machine.nvml)
        if nvml is None:
            return self._jetson(), None
        if not nvml.devices:
            self._miss("GPUs", "the driver sees no GPU")
        return tuple(map(_gpu_of, nvml.devices[:64])), clean(nvml.driver)

    def _jetson(self) -> tuple[Gpu, ...]:
        # A Jetson's GPU is not on the PCI bus, and older boards have no NVML.
        if self.uname.machine != "aarch64":
            return ()
        model = self._try("Jetson board", lambda: self.machine.read("/proc/device-tree/model"))
        name = clean((model or "").replace("\0", ""))
        if not re.search(r"nvidia|jetson", name, re.IGNORECASE):
            return ()
        return (Gpu(name=name, capability=None, memory_mb=None, source="device tree"),)

    def _unclaimed(self) -> int:
        # Class 03 of the PCI code and ID assignment is a display controller; 10de is NVIDIA.
        display = re.compile(r"10de:[0-9a-f]{4} 03[0-9a-f]{4}")
        devices = self._try("PCI devices", self.machine.pci) or ()
        return len(list(filter(display.fullmatch, devices)))

    def _inside(self) -> Literal["wsl", "container"] | None:
        if "microsoft" in self.uname.release.lower():
            return "wsl"
        for marker in ("/.dockerenv", "/run/.containerenv"):  # of Docker, of Podman
            try:
                self.machine.read(marker)
            except NoReadingError:
                continue
            return "container"
        return None

    # --- CPU ---

    def _cpu(self) -> Cpu:
        cpuid = self._try("microarchitecture", self.machine.cpuid)
        machine = (self.platform or PLATFORMS[DEFAULT]).machine(self.uname.machine)
        microarchitecture = None
        features: tuple[str, ...] = ()
        if cpuid:
            microarchitecture = clean(cpuid.microarchitecture)
            features = cpuid.features

        if self.source == "proc":
            name, kernel_features = self._cpu_of_proc()
            # The kernel's word first: it leaves out what it does not let programs use, which CPUID
            # still shows.
            features = kernel_features or features
        elif self.source == "sysctl":
            name = self._sysctl("machdep.cpu.brand_string")
            # To a process under Rosetta 2 the machine looks like x86_64.
            if self._sysctl("hw.optional.arm64") == "1":
                machine = "arm64"
        else:
            if cpuid is not None and not features:
                self._miss("CPU features", "archspec reads them on x86-64 only")
            name = self._cpu_name_of_registry()
        return Cpu(
            machine=clean(machine),
            name=_clean_or_none(name),
            microarchitecture=microarchitecture,
            features=tuple(map(clean, features[:2000])),
        )

    def _cpu_of_proc(self) -> tuple[str | None, tuple[str, ...]]:
        text = self._try("CPU", lambda: self.machine.read("/proc/cpuinfo"))
        name, features = parse_cpuinfo(text or "")
        if text is not None and not features:
            self._miss("CPU features", "/proc/cpuinfo has no line flags or Features")
        return name, features

    def _cpu_name_of_registry(self) -> str | None:
        key = r"HKLM\HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        text = self._run("CPU name", "reg", "query", key, "/v", "ProcessorNameString")
        match = re.search(r"ProcessorNameString\s+REG_SZ\s+(.+)", text)
        if match is None:
            return None
        return match[1].strip()

    # --- operating system, Pythons ---

    def _os(self) -> Os:
        system: PlatformName | Literal["other"] = OTHER
        if self.platform:
            system = self.platform.name
        name = self.uname.system
        version = self.uname.release
        libc = None
        if self.source == "proc":
            text = self._try("distribution", lambda: self.machine.read("/etc/os-release"))
            release = parse_os_release(text or "")
            name = release.get("NAME", name)
            version = release.get("VERSION_ID", "")
            libc = self._try("C library", self.machine.libc)
        elif self.platform and self.source == "sysctl":
            name = self.platform.title
            version = self._run("macOS version", "sw_vers", "-productVersion")
        elif self.source == "registry":
            version = f"{self.uname.release} ({self.uname.version})"
        return Os(
            system=system,
            name=clean(name),
            version=clean(version),
            libc=_clean_or_none(libc),
        )

    def _pythons(self) -> tuple[Python, ...]:
        interpreters: dict[str, str] = {}
        reasons = []
        for name in PYTHONS:
            try:
                interpreters[name] = self.machine.python(name)
            except NoReadingError as error:
                reasons.append(str(error))
        if self.source == "registry":
            launched = parse_launcher(self._run("Pythons of the launcher", "py", "-0p"))
            # What is on the PATH comes before what the launcher knows.
            interpreters = {**launched, **interpreters}
        names = [name for name in PYTHONS if name in interpreters]
        if not names:
            self._miss("Pythons", "; ".join(reasons))
        return tuple(Python(name=name, path=clean(interpreters[name])) for name in names)


def _gpu_of(device: NvmlDevice) -> Gpu:
    return Gpu(
        name=clean(device.name),
        capability=_capability(device.capability),
        memory_mb=device.memory_mb,
        source="nvml",
    )


def _clean_or_none(text: str | None) -> str | None:
    if not text:
        return None
    return clean(text)


def parse_cpuinfo(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Name and features from /proc/cpuinfo; where CPUs differ (big and little), what all of them
    have.
    """
    name = None
    features_of_cores: dict[str, list[str]] = {}  # most cores have the same line
    for line in text.splitlines():
        key, _, value = line.partition(":")
        key = key.strip()
        if key == "model name":
            name = name or clean(value)
        elif key in ("flags", "Features"):
            features_of_cores[value] = value.split()
    if not features_of_cores:
        return name or None, ()
    # Only what every core has: a thread may move from one to another at any moment.
    first_core, *_ = features_of_cores.values()
    common = set(first_core).intersection(*features_of_cores.values())
    return name or None, tuple(word for word in first_core if word in common)


def parse_os_release(text: str) -> dict[str, str]:
    """The assignments of an os-release file (freedesktop.org), without their quotes."""
    assignments = re.findall(r"^\s*([A-Z0-9_]+)=(.*?)\s*$", text, re.MULTILINE)
    return {key: value.strip("\"'") for key, value in assignments}


def parse_launcher(text: str) -> dict[str, str]:
    """64-bit interpreters by name from `py -0p`: ` -V:3.11 *  PATH`, or ` -3.11-64  PATH` of older
    launchers.
    """
    pattern = r"\s*-(?:V:)?3\.(\d{1,2})(?:-64)?\s+(?:\*\s+)?(\S.*?)\s*\*?"
    paths: dict[str, str] = {}
    for line in text.splitlines()[:200]:
        match = re.fullmatch(pattern, line)
        if match:
            paths.setdefault(f"py3{match[1]}", match[2])  # of two with one name the first
    return paths


def _capability(text: str | None) -> str | None:
    if text and re.fullmatch(r"\d{1,2}\.\d", text, re.ASCII):
        return text
    return None
