"""The differences between platforms: names, machines and their aliases, wheel tags, compilers. One
table.

Nothing slow is imported: the command line needs the names at once, and a machine that is cut off
has Python 3.9 alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from farm.base.errors import UsageError
from farm.base.text import nearest

DEFAULT = "linux"
WINDOWS = "windows"
"""Also the field of a plan that this platform alone has."""


class Facts(NamedTuple):
    """One platform."""

    name: str  # as plans, channels and `--platform` name it
    title: str  # as its maker writes it
    # What Docker (OSType), GitHub (a runner's os), `sys.platform` and `uname` call it, in lower
    # case.
    aliases: tuple[str, ...]
    # The machines by the farm's name, each with its other spellings (Docker, GitHub, Python), lower
    # case.
    machines: Mapping[str, tuple[str, ...]]
    built_on: tuple[str, ...]  # the machines that the farm builds for
    tag: str  # the word for it in a wheel's platform tag: `win` of `win_amd64`
    tag_pattern: (
        str  # a whole platform tag as a regular expression; `{machine}` stands for the machine
    )
    markers: tuple[str, str, str]  # `os_name`, `sys_platform` and `platform_system` of PEP 508
    compiler: Literal["gcc", "clang", "msvc"]  # the compiler of host code
    libraries: Literal[
        "ELF", "PE", "Mach-O"
    ]  # the format of its libraries; those in Mach-O are not read
    # Where a program reads what the machine is: `proc`, `sysctl` or `registry`.
    hardware_from: Literal["proc", "sysctl", "registry"]
    # How a wheel's platform tag spells a machine, where that is not the farm's name.
    tag_machines: Mapping[str, str] = {}
    marker_machines: Mapping[
        str, str
    ] = {}  # `platform_machine` of PEP 508, where that is not the farm's name
    cuda: bool = True  # whether there is CUDA for it
    gpus: tuple[str, ...] = ()  # the GPU words of variants that are for it alone
    # whether its builds run in a toolchain image that the farm makes from Debian's packages
    in_images: bool = False
    in_alias: str | None = None  # the word for it in the aliases of builds; None: it has none
    python: str = "bin/python"  # the interpreter in a virtual environment, relative to that
    swap: str = "swap"  # what it calls memory on a disk
    build_root: str = "."  # where builds are made on a machine itself: the disk that must have room
    # What its absolute paths begin with; its containers know no limits of Linux's kernel.
    drive: str = ""
    limits_paths: bool = False  # whether paths beyond 260 characters need a setting

    def path(self, posix: str) -> str:
        """Return a path of a job, which begins with a slash, as this platform writes it."""
        if not self.drive:
            return posix
        return self.drive + posix.replace("/", "\\")

    def machine(self, spelling: str) -> str:
        """The farm's name of a machine; a spelling that is not known is returned in lower case."""
        word = spelling.lower()
        for name, spellings in self.machines.items():
            if word == name or word in spellings:
                return name
        return word

    def tag_of(self, machine: str) -> str:
        """How a wheel's platform tag spells a machine: `amd64` on Windows."""
        return self.tag_machines.get(machine, machine)

    def fits(self, tag: str, machine: str) -> bool:
        """True if a wheel's platform tag is for this platform and machine."""
        return (
            re.fullmatch(self.tag_pattern.format(machine=re.escape(self.tag_of(machine))), tag)
            is not None
        )


X86 = ("amd64", "x86-64", "x64")

_TABLE = (
    Facts(
        name="linux",
        title="Linux",
        aliases=("linux",),
        machines={"x86_64": X86, "aarch64": ("arm64",)},
        built_on=("x86_64", "aarch64"),
        tag="linux",
        tag_pattern=r"(linux|(many|musl)linux(1|2010|2014|_\d+_\d+))_{machine}",
        markers=("posix", "linux", "Linux"),
        compiler="gcc",
        in_images=True,
        libraries="ELF",
        hardware_from="proc",
    ),
    Facts(
        name="windows",
        title="Windows",
        aliases=("windows", "win32"),
        machines={"x86_64": X86, "aarch64": ("arm64",)},
        built_on=("x86_64",),
        tag="win",
        tag_pattern="win_{machine}",
        tag_machines={"x86_64": "amd64", "aarch64": "arm64"},
        markers=("nt", "win32", "Windows"),
        marker_machines={"x86_64": "AMD64", "aarch64": "ARM64"},
        compiler="msvc",
        in_alias="windows",
        python="Scripts/python.exe",
        libraries="PE",
        swap="page file",
        build_root="C:\\farm",
        drive="C:",
        limits_paths=True,
        hardware_from="registry",
    ),
    Facts(
        name="macos",
        title="macOS",
        aliases=("macos", "darwin"),
        machines={"arm64": ("aarch64",), "x86_64": X86},  # Apple, Python and wheel tags say arm64
        built_on=("arm64",),
        tag="macosx",
        tag_pattern=r"macosx_\d+_\d+_{machine}",
        markers=("posix", "darwin", "Darwin"),
        compiler="clang",
        cuda=False,
        gpus=("mps",),
        in_alias="darwin",
        libraries="Mach-O",
        hardware_from="sysctl",
    ),
)

PLATFORMS: Mapping[str, Facts] = {entry.name: entry for entry in _TABLE}
"""Every platform by its name."""

MACHINES = tuple(dict.fromkeys(machine for entry in _TABLE for machine in entry.built_on))
"""Every machine that wheels are built for."""


def facts(name: str) -> Facts:
    """The platform called `name`. Raises UsageError: there is none; the nearest names are given."""
    if name not in PLATFORMS:
        near = nearest(name, tuple(PLATFORMS)) or list(PLATFORMS)
        raise UsageError(f"unknown platform {name!r}", hint=f"nearest: {', '.join(near)}")
    return PLATFORMS[name]


def named(word: str) -> Facts | None:
    """The platform that `word` means: a name of ours, of Docker, of GitHub, of Python or of the
    kernel.
    """
    for platform in _TABLE:
        if word.lower() in platform.aliases:
            return platform
    return None


def of_tag(tag: str) -> Facts | None:
    """The platform of a wheel's platform tag; None for `any`."""
    for platform in _TABLE:
        # Any machine: the farm need not build for it to know whose tag it is.
        if re.fullmatch(platform.tag_pattern.format(machine=r"\w+"), tag):
            return platform
    return None


def unread(tags: Iterable[str]) -> str | None:
    """Why nothing is known of the libraries of a wheel with these tags; None: they are read."""
    title = None
    for tag in tags:
        platform = of_tag(tag.rpartition("-")[2])
        if platform is None or platform.libraries != "Mach-O":
            return None
        title = platform.title
    if title is None:
        return None
    return f"libraries for {title} are not read"


def split_platform(word: str) -> tuple[Facts, str]:
    """The platform and the machine of `windows_x86_64`. Raises UsageError: there is no such
    platform.
    """
    name, _, machine = word.partition("_")
    return facts(name), machine


def here() -> Facts | None:
    """The platform that this Python runs on; None: one that the farm does not build for."""
    return named(sys.platform)
