"""CPUs by emulation: which model stands for a CPU level, and is the emulator here."""

import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from farm.base.errors import InfrastructureError
from farm.base.yamlfile import Model, load


class _Data(Model):
    package: str
    minimum: str
    models: dict[str, str]
    not_emulated: dict[str, str]


@dataclass(frozen=True)
class CpuModel:
    """qemu's name for the plain machine of a CPU level, or None and the reason."""

    name: str | None
    reason: str | None = None


@cache
def _data() -> _Data:
    return load(Path(__file__).with_name("emulation.yaml"), _Data)


def model_for(cpu: str) -> CpuModel:
    """The emulated CPU for a level of the variant's CPU axis (`avx`): it has that level and nothing newer."""
    data = _data()
    if cpu in data.models:
        return CpuModel(data.models[cpu])
    return CpuModel(None, data.not_emulated.get(cpu, f"no emulated CPU is known for {cpu!r}"))


def find_emulator() -> str:
    """The program of qemu for this machine's own programs.

    Raises:
        InfrastructureError: It is not on the PATH, or too old.
    """
    data, name = _data(), f"qemu-{platform.machine()}"
    if sys.platform != "linux":
        reason = f"{name} emulates a CPU for Linux programs alone"
        raise InfrastructureError(reason, hint="try the wheel on a machine with that CPU")
    hint = f"install the Debian package {data.package} ({data.minimum} or newer)"
    program = shutil.which(name)
    if program is None:
        raise InfrastructureError(f"{name} is not on the PATH", hint=hint)
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise InfrastructureError(f"{program} --version failed: {error}", hint=hint) from error
    match = re.search(r"version (\d+)\.(\d+)", answer)
    if match is None:
        raise InfrastructureError(f"{program} --version answered {answer[:80]!r}", hint=hint)
    if (int(match[1]), int(match[2])) < tuple(int(part) for part in data.minimum.split(".")):
        raise InfrastructureError(f"{program} is {match[1]}.{match[2]}: too old", hint=hint)
    return program
