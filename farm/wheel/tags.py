"""Platform tags: those that a wheel has, and the manylinux tag that its libraries earn.

PEP 600: `manylinux_2_17_x86_64` promises to run where glibc is 2.17 or newer, which the policy file
spells out as the symbol versions that such systems have, and the libraries that a wheel may expect
there.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from farm.base.errors import UsageError, VerificationFailedError
from farm.platforms.facts import DEFAULT, PLATFORMS, WINDOWS

_PLATFORM = re.compile(
    r"(?:linux|manylinux1|manylinux2010|manylinux2014|manylinux_\d+_\d+|musllinux_\d+_\d+)_(\w+)"
)
# What the farm neither builds nor repairs, by how a tag of it begins or ends.
_UNSUPPORTED = {
    "PyPy": re.compile(r"pp\d"),
    "GraalPy": re.compile(r"graalpy"),
    "Android": re.compile(r".*-android_"),
    "iOS": re.compile(r".*-ios_"),
    "32-bit machines": re.compile(r".*-(win32|\w*linux\w*_(i686|armv[67]l))$"),
    "big-endian machines": re.compile(r".*-\w*linux\w*_(ppc64|s390x)$"),
    "musl (Alpine Linux)": re.compile(r"(?!.*manylinux).*-musllinux_"),
}
# `libc.so` is how musl calls itself, and what cross compilers link with; glibc has a linker script
# of this name.
_MUSL = r"libc\.musl-\w+\.so\.1|ld-musl-\w+\.so\.1|libc\.so"
LOADER = r"(?:ld-linux[-\w]*|ld64)\.so\.\d+"
"""The names of glibc's loader, a regular expression: it is on every system, so no policy lists it.
"""
_GLIBC = rf"libc\.so\.6|{LOADER}"
_MUSL_MODULE = r"-linux-musl(eabihf)?\.so$"  # PEP 720: the suffix of extension modules
_LEVEL = re.compile(r"manylinux_2_(\d{1,2})_([a-z0-9_]+)", re.ASCII)


class Level(NamedTuple):
    """One manylinux level: `glibc` is its (major, minor)."""

    name: str
    glibc: tuple[int, int]
    aliases: tuple[str, ...]
    libraries: frozenset[str]
    versions: dict[str, dict[str, frozenset[str]]]

    def tags(self, machine: str) -> tuple[str, ...]:
        """Platform tags, as in `("manylinux_2_17_x86_64", "manylinux2014_x86_64")`."""
        return tuple(f"{name}_{machine}" for name in (self.name, *self.aliases))


class SystemNeed(NamedTuple):
    """Needs of a library that the system must meet."""

    who: str  # the member, for messages
    libraries: frozenset[str]  # names of needed libraries that are not in the wheel
    versions: frozenset[str]  # symbol versions required of those, such as `GLIBC_2.17`


@cache
def levels() -> tuple[Level, ...]:
    """All manylinux levels of the installed auditwheel, oldest glibc first."""
    file = resources.files("auditwheel") / "policy" / "manylinux-policy.json"
    all_levels = []
    for raw in json.loads(file.read_text(encoding="utf-8")):
        # auditwheel also lists `linux`, which promises nothing.
        if raw["name"] != DEFAULT:
            all_levels.append(_level(raw))
    return tuple(sorted(all_levels, key=lambda level: level.glibc))


def _level(raw: dict[str, Any]) -> Level:
    """A level as auditwheel writes it."""
    _, major, minor = raw["name"].split("_")
    versions: dict[str, dict[str, frozenset[str]]] = {}
    for machine, families in raw["symbol_versions"].items():
        versions[machine] = {}
        for family, names in families.items():
            versions[machine][family] = frozenset(names)
    return Level(
        name=raw["name"],
        glibc=(int(major), int(minor)),
        aliases=tuple(raw["aliases"]),
        libraries=frozenset(raw["lib_whitelist"]),
        versions=versions,
    )


def is_system_library(name: str) -> bool:
    """True if some level lets a wheel expect this library on the system, or it is musl, which
    `platform` refuses.
    """
    if re.fullmatch(rf"{LOADER}|{_MUSL}", name):
        return True
    return name in levels()[-1].libraries


def earned_level(needs: Iterable[SystemNeed], machine: str) -> Level:
    """The lowest level that gives every library what it asks of the system.

    Libraries that no level knows (drivers, what was excluded on purpose) are passed over.
    """
    all_needs = list(needs)
    for need in all_needs:
        if for_musl(need.who, need.libraries):
            raise VerificationFailedError(
                f"{need.who} is for musl (Alpine Linux), for which there are no wheels here",
                hint="build it on a system with glibc, or leave it out",
            )
    candidates = [level for level in levels() if machine in level.versions]
    if not candidates:
        raise VerificationFailedError(f"no manylinux level exists for {machine}")
    # Oldest glibc first: the first that fits is the widest promise.
    for level in candidates:
        problem = _first_unmet(level, all_needs, machine)
        if problem is None:
            return level
    raise VerificationFailedError(
        f"{problem}, which no manylinux level has (the newest known is {candidates[-1].name})",
        hint="build on an older distribution, or upgrade auditwheel, which brings the levels",
    )


def _first_unmet(level: Level, needs: Iterable[SystemNeed], machine: str) -> str | None:
    """The first library that needs more than a level promises, and what; None where it promises
    enough.
    """
    for need in needs:
        unmet = unmet_needs(level, need, machine)
        if unmet:
            return f"{need.who} needs {unmet[0]}"
    return None


def level_of_tag(tag: str) -> tuple[Level, str] | None:
    """(level, machine) of a platform tag; None for any other tag and for levels that are not
    known.
    """
    for level in levels():
        for name in (level.name, *level.aliases):
            if tag.startswith(f"{name}_"):
                return level, tag.removeprefix(f"{name}_")
    return _between(tag)


def _between(tag: str) -> tuple[Level, str] | None:
    """`level_of_tag` for a glibc that auditwheel has no level for: PEP 600 and pip know them all.

    It has the symbols of glibc up to its own version, and of other libraries what the level below
    has.
    """
    match = _LEVEL.fullmatch(tag)
    if match is None:
        return None
    minor = int(match[1])
    lower = None
    for level in levels():
        if level.glibc < (2, minor):
            lower = level
    if lower is None:
        return None
    newer = {f"2.{number}" for number in range(lower.glibc[1] + 1, minor + 1)}
    versions = {}
    for machine, families in lower.versions.items():
        versions[machine] = {**families, "GLIBC": families["GLIBC"] | newer}
    between = lower._replace(
        name=f"manylinux_2_{minor}",
        glibc=(2, minor),
        aliases=(),
        versions=versions,
    )
    return between, match[2]


def unmet_needs(level: Level, need: SystemNeed, machine: str) -> list[str]:
    """Needs that a level does not promise, sorted.

    Args:
        level: The level.
        need: What a library asks of the system.
        machine: Its machine.
    """
    families = level.versions.get(machine, {})
    missing = []
    for version in need.versions:
        family, _, number = version.partition("_")
        # A family that no level knows (a library's own versions) is nothing that a level could
        # promise.
        if family in families and number not in families[family]:
            missing.append(version)
    # Only what some level lists is held against this one; other libraries are drivers or were
    # excluded.
    of_some_level = need.libraries & levels()[-1].libraries
    missing += of_some_level - level.libraries
    return sorted(missing)


def for_musl(member: str, needed: Iterable[str]) -> bool:
    """True if a library is for musl (Alpine Linux): it needs musl, or no libc and has a module's
    name for musl.
    """
    needs_glibc = False
    for name in needed:
        if re.fullmatch(_MUSL, name):
            return True
        if re.fullmatch(_GLIBC, name):
            needs_glibc = True
    return not needs_glibc and re.search(_MUSL_MODULE, member) is not None


def check_supported(filename: str) -> None:
    """Refuse wheels for Pythons and systems that the farm does not know; file names that are none
    pass.
    """
    parts = filename.removesuffix(".whl").split("-")
    tags = "-".join(parts[-3:])
    for system, pattern in _UNSUPPORTED.items():
        if pattern.match(tags):
            raise UsageError(f"{filename}: wheels for {system} are not supported")


def platform_machine(tags: frozenset[str]) -> str | None:
    """`x86_64` from tags such as `cp311-cp311-linux_x86_64`; None unless all are Linux tags of one
    machine.
    """
    machines = set()
    for platform in _platforms(tags):
        match = _PLATFORM.fullmatch(platform)
        if match is None:
            return None
        machines.add(match[1])
    return machines.pop() if len(machines) == 1 else None


def _platforms(tags: Iterable[str]) -> set[str]:
    """The platforms of tags, such as `linux_x86_64`."""
    return {tag.rsplit("-", 1)[-1] for tag in tags}


def windows_machine(tags: frozenset[str]) -> str | None:
    """`amd64` from tags such as `cp311-cp311-win_amd64`; None unless all are Windows tags of one
    machine.
    """
    platforms = _platforms(tags)
    if len(platforms) != 1:
        return None
    system, _, machine = platforms.pop().partition("_")
    windows = PLATFORMS[WINDOWS]
    if system == windows.tag and machine in windows.tag_machines.values():
        return machine
    return None


def platform_of(tags: frozenset[str]) -> str | None:
    """`linux_x86_64` or `windows_x86_64`, as a policy has it; None unless all tags are of one
    machine of these.
    """
    windows = windows_machine(tags)
    if windows is not None:
        return f"{WINDOWS}_{PLATFORMS[WINDOWS].machine(windows)}"
    machine = platform_machine(tags)
    if machine is not None:
        return f"{DEFAULT}_{machine}"
    return None
