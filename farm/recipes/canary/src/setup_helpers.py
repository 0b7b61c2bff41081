"""The environment as setup.py reads it; pure functions, no CMake and no setuptools.

The variables and their meaning are those of PyTorch's setup.py, so that one build environment
drives both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FORWARDED = ("BUILD_", "USE_", "CMAKE_")
# setup.py decides these itself; a second opinion from the environment would build something else.
OWN = frozenset({"CMAKE_GENERATOR", "CMAKE_INSTALL_PREFIX", "USE_CUDA"})
_ARCH = re.compile(r"([1-9][0-9]?)\.([0-9])([af]?)(\+PTX)?", re.ASCII)


class EnvironmentValueError(ValueError):
    """A variable has a value that the build cannot use; the text names the variable."""


class Arch(NamedTuple):
    """One entry of TORCH_CUDA_ARCH_LIST: `number` is 35, 90a, 100; `ptx` is True for `+PTX`."""

    number: str
    ptx: bool


def parse_arch_list(text: str) -> list[Arch]:
    """Reads TORCH_CUDA_ARCH_LIST.

    Entries are `3.5`, `3.5+PTX`, `9.0a`, `10.0`, separated by `;` or blanks. Every entry asks for
    SASS, `+PTX` asks for PTX as well. An entry that stands twice is taken once.

    Raises:
        EnvironmentValueError: The list is empty or an entry cannot be read.
    """
    ptx_of: dict[str, bool] = {}
    for entry in re.split(r"[;\s]+", text.strip("; \t\n")):
        match = _ARCH.fullmatch(entry)
        if match is None:
            problem = "it is empty"
            if entry:
                problem = f"cannot read {entry[:40]!r}"
            raise EnvironmentValueError(
                f"TORCH_CUDA_ARCH_LIST: {problem}; it takes entries such as 3.5, 3.5+PTX, 9.0a or "
                "10.0, separated by ';' or blanks"
            )
        major, minor, suffix, ptx = match.groups()
        number = major + minor + suffix
        ptx_of[number] = ptx_of.get(number, False) or ptx is not None
    return [Arch(number, ptx) for number, ptx in ptx_of.items()]


def gencode_flags(archs: list[Arch]) -> list[str]:
    """The flags of nvcc for these architectures: SASS for each, PTX where it was asked for, nothing
    else.
    """
    flags = []
    for arch in archs:
        virtual = f"compute_{arch.number}"
        flags.append(f"-gencode=arch={virtual},code=sm_{arch.number}")
        if arch.ptx:
            flags.append(f"-gencode=arch={virtual},code={virtual}")
    return flags


def read_switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    """Reads an on/off variable. Unset or empty is `default`."""
    value = environ.get(name, "").strip().upper()
    if not value:
        return default
    if value in ("1", "ON", "YES", "TRUE", "Y"):
        return True
    if value in ("0", "OFF", "NO", "FALSE", "N"):
        return False
    raise EnvironmentValueError(f"{name}: {environ[name][:40]!r} is neither 0 nor 1")


def job_arguments(environ: Mapping[str, str]) -> list[str]:
    """MAX_JOBS as ninja's `-j N`; unset leaves the number to ninja."""
    value = environ.get("MAX_JOBS", "").strip()
    if not value:
        return []
    if not re.fullmatch(r"[1-9][0-9]{0,3}", value, re.ASCII):
        raise EnvironmentValueError(f"MAX_JOBS: {value[:40]!r} is no number of jobs from 1 to 9999")
    return ["-j", value]


def cmake_defines(environ: Mapping[str, str], version: str) -> dict[str, str]:
    """All that CMake is told with -D, from the environment.

    Raises:
        EnvironmentValueError: A variable has a value that the build cannot use.
    """
    defines = {"CMAKE_BUILD_TYPE": "Release"}
    for name, value in sorted(environ.items()):
        if name.startswith(FORWARDED) and name not in OWN:
            defines[name] = value
    arch_list = environ.get("TORCH_CUDA_ARCH_LIST", "")
    # An architecture list without USE_CUDA must not end in a wheel without device code.
    use_cuda = read_switch(environ, "USE_CUDA", default=bool(arch_list.strip()))
    defines["USE_CUDA"] = "OFF"
    if use_cuda:
        defines["USE_CUDA"] = "ON"
        defines["CANARY_GENCODE"] = ";".join(gencode_flags(parse_arch_list(arch_list)))
    defines["CANARY_VERSION"] = version
    return defines


def check_cmake_version(text: str) -> None:
    """Takes `cmake --version` and refuses what is too old or too new (wanted: 3.18 up to, not
    including, 5).
    """
    match = re.search(r"cmake version (\d+)\.(\d+)", text)
    if match is None:
        raise EnvironmentValueError(f"cmake --version answered {text[:80]!r}")
    major = int(match[1])
    minor = int(match[2])
    if (major, minor) < (3, 18) or major >= 5:
        raise EnvironmentValueError(f"CMake {major}.{minor} found; wanted: 3.18 or newer, below 5")
