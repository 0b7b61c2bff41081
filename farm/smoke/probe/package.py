"""The module's own account: versions, configuration, the architectures it holds, the devices it
sees.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
from typing import Any

from .recorder import FailedError, NotRunError

EMULATOR = "FARM_PROBE_EMULATOR"
PRINTED = 16 << 10  # bytes of a script's output that are looked at: the last


def check_installed(distribution: str, expected: str | None) -> str:
    """The version in the METADATA of an installed distribution."""
    try:
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:
        raise NotRunError("Python 3.7 cannot look up versions") from None
    try:
        version = str(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        raise FailedError(f"{distribution} is not installed", expected or "a version") from None
    if expected is not None and version != expected:
        raise FailedError(version, expected)
    return version


def check_import(name: str) -> str:
    importlib.import_module(name)
    return "imported"


def python_command() -> list[str]:
    """Starts another Python as this one was started: isolated (-I), or with PYTHONPATH, where the
    module may lie.

    Under the same emulator too: what an emulated process starts would run on the real CPU.
    """
    return [
        *os.environ.get(EMULATOR, "").split(),
        sys.executable,
        *(["-I"] if sys.flags.isolated else []),
    ]


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _how(code: int) -> str:
    """How a process ended: outside Windows a negative code is that of a signal."""
    if code >= 0 or os.name == "nt":
        return f"exit code {code}"
    return f"ended by {signal_name(-code)}"


def check_script(path: str) -> str:
    """Runs a script in a process of its own; what it prints last is the result."""
    # Not a pipe: one that the script left behind would hold it open, and the end of the script
    # would not be seen.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            [*python_command(), path],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(max(0, output.seek(0, os.SEEK_END) - PRINTED))
        printed = output.read().decode("utf-8", "replace").strip()
    if done.returncode:
        raise FailedError(
            ": ".join(part for part in (_how(done.returncode), printed[-2000:]) if part),
            "exit code 0",
        )
    return printed[-200:] or "exit code 0"


def arch_list(module: Any) -> list[str]:
    """The architectures in the wheel.

    torch answers [] without a GPU. What it asks itself knows them still (torch.cuda.get_arch_list,
    1.13.1), and with some builds its configuration text.
    """
    archs = [str(arch) for arch in module.cuda.get_arch_list()]
    if not archs:
        flags = getattr(getattr(module, "_C", None), "_cuda_getArchFlags", None)
        archs = str((flags() if flags else None) or "").split()
    return archs or re.findall(r"\bcode=((?:sm|compute)_\d+[af]?)\b", module.__config__.show())


def check_version(module: Any, expected: str | None) -> str:
    version = str(module.__version__)
    if expected is not None and version != expected:
        raise FailedError(version, expected)
    return version


def check_cuda_version(module: Any, expected: str | None) -> str:
    version = "none" if module.version.cuda is None else str(module.version.cuda)
    if expected is not None and version != expected:
        raise FailedError(version, expected)
    return version


def check_config(module: Any) -> str:
    text = module.__config__.show()
    if not isinstance(text, str) or not text.strip():
        raise FailedError(repr(text), "a text")
    return text.strip()


def check_archs(module: Any, expected: list[str]) -> str:
    archs = arch_list(module)
    missing = [arch for arch in expected if arch not in archs]
    if missing:
        raise FailedError(" ".join(archs) or "none", "also {}".format(" ".join(missing)))
    if module.version.cuda is None:
        raise NotRunError("built without CUDA")
    return " ".join(archs)


def check_available(module: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = module.cuda.is_available()
    if not available:
        why = "; ".join(str(warning.message) for warning in caught)
        raise FailedError(
            "False" + (": " + why if why else ""), "True: there is a driver and a GPU"
        )
    return f"True, {module.cuda.device_count()} device(s)"


def check_devices(module: Any) -> str:
    devices = []
    for index in range(module.cuda.device_count()):
        capability = tuple(module.cuda.get_device_capability(index))
        text = "{}: {} (sm_{}{})".format(index, module.cuda.get_device_name(index), *capability)
        if hasattr(module.cuda, "get_device_properties"):
            memory = module.cuda.get_device_properties(index).total_memory
            text += f", {memory / 2**30:.1f} GiB"
        devices.append(text)
    if not devices:
        raise FailedError("no device", "a device")
    return "; ".join(devices)


def check_code_for_device(module: Any) -> str:
    return code_for(tuple(module.cuda.get_device_capability(0)), arch_list(module))


def code_for(capability: tuple[int, int], archs: list[str]) -> str:
    """Which of the wheel's code a device of this compute capability runs.

    A cubin for X.y runs on X.z where z >= y, PTX for X.y can be compiled for any newer device (CUDA
    C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility"). `a` code runs on that
    one device only, `f` code on its family: the same major version, from that minor version on.
    """
    major, minor = capability
    native: list[tuple[tuple[int, int], str]] = []
    compiled: list[tuple[tuple[int, int], str]] = []
    for arch in archs:
        match = re.match(r"(sm|compute)_(\d+)(\d)([af]?)$", arch)
        if match is None:
            continue
        kind = match.group(1)
        suffix = match.group(4)
        of = (int(match.group(2)), int(match.group(3)))
        same_major = of[0] == major and of[1] <= minor
        if suffix == "a":
            fits = of == capability
        elif kind == "sm" or suffix == "f":
            fits = same_major
        else:
            fits = of <= capability
        if fits:
            (native if kind == "sm" else compiled).append((of, arch))
    if native:
        return f"its own SASS ({max(native)[1]})"
    if compiled:
        return f"PTX ({max(compiled)[1]}): the driver compiles it at the first use"
    raise FailedError(
        "code for {} only".format(" ".join(archs) or "nothing"),
        f"code that runs on sm_{major}{minor}",
    )
