"""What a user types to install a wheel of this index, so that no other index can answer for it.

pip has no order of indexes: a package of the same name and a higher version wins in whatever index
the user's environment or configuration names beside this one, and uv asks those first. So each
wheel that is needed of the group is named by its address and its hash, and only names that the
group does not have are left to the installer's own indexes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from packaging.markers import InvalidMarker, UndefinedEnvironmentName, default_environment
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from farm.base.requirement import python_of, read_requirement, serves
from farm.index.layout import json_key, metadata_key, simple_root, wheel_key
from farm.index.pages import File, parse_page
from farm.platforms.facts import of_tag

Read = Callable[[str], bytes | None]
"""An object of the index by its key; None where there is none."""

_ADDRESS = re.compile(r"(.*/)whl/([^/]+)/simple/?")


@dataclass(frozen=True)
class Pins:
    """A wheel and what it needs.

    Attributes:
        wheels: the wheel and those of its group that it needs, itself first.
        elsewhere: names that it needs and that the group does not have.
        unmet: requirements that no wheel of the group meets although the group has the name.
        others: the newest wheels of those names.
    """

    wheels: tuple[File, ...]
    elsewhere: tuple[str, ...]
    unmet: tuple[str, ...]
    others: tuple[File, ...]


def pins_of(read: Read, group: str, filename: str) -> Pins | None:
    """The wheel with all that it needs from its group; None: the group does not list it."""
    name = parse_wheel_filename(filename)[0]
    page = _files(read, group, name)
    if filename not in page:
        return None
    environment = _environment(filename)
    wheels = {str(name): page[filename]}
    elsewhere = set()
    unmet = set()
    other_versions: dict[str, File] = {}
    waiting = _requirements(read, filename, environment, extras=())
    while waiting:
        requirement = waiting.pop()
        needed = canonicalize_name(requirement.name)
        if needed in wheels:
            continue
        files = _files(read, group, needed)
        if not files:
            elsewhere.add(str(needed))
            continue
        match = _newest(files.values(), requirement, filename)
        if match is None:
            unmet.add(str(requirement))
            other_versions[needed] = max(files.values(), key=_version)
            continue
        wheels[needed] = match
        waiting += _requirements(read, match.filename, environment, extras=requirement.extras)
    return Pins(
        wheels=tuple(wheels.values()),
        elsewhere=tuple(sorted(elsewhere)),
        unmet=tuple(sorted(unmet)),
        others=tuple(other_versions[name] for name in sorted(other_versions)),
    )


def install_words(read: Read, root: str, group: str, *filenames: str) -> tuple[str, ...]:
    """The arguments of `pip install` or `uv pip install` for wheels of one group.

    Args:
        read: gives the objects of the index.
        root: the address of the index, as the user's installer reads it.
        group: the variant group.
        filenames: the wheels.

    Returns:
        The address of each wheel of the group that is needed, with its sha256. Where none of the
        group meets a requirement, that of another version: the installer then refuses it, and takes
        none of another index. Where the group does not list a wheel, requirements and the group as
        the index.
    """
    pins = []
    for filename in filenames:
        pin = pins_of(read, group, filename)
        if pin is None:
            return (*map(_requirement, filenames), "--index-url", f"{root}{simple_root(group)}")
        pins.append(pin)
    # The wheels themselves first, then what they need.
    files = [pin.wheels[0] for pin in pins]
    for pin in pins:
        files += [*pin.wheels, *pin.others]
    addresses = [address(root, file) for file in files]
    return tuple(dict.fromkeys(addresses))


def _requirement(filename: str) -> str:
    name, version, _, _ = parse_wheel_filename(filename)
    return f"{name}=={version}"


def address(root: str, file: File) -> str:
    """A requirement with the address of a wheel and the hash that installers compare it with.

    With the name before it (PEP 508): uv takes no bare address of a file with a hash.
    """
    name = parse_wheel_filename(file.filename)[0]
    folder, _, filename = wheel_key(file.filename).rpartition("/")
    return f"{name} @ {root}{folder}/{quote(filename)}#sha256={file.hashes.sha256}"


def root_and_group(index_url: str) -> tuple[str, str] | None:
    """The root of an index of the farm and the group, of the address that pip is given for it."""
    match = _ADDRESS.fullmatch(index_url)
    if match is None:
        return None
    return match[1], match[2]


def _files(read: Read, group: str, name: str) -> Mapping[str, File]:
    """The wheels of a project in a group by their names."""
    key = json_key(group, canonicalize_name(name))
    page = read(key)
    if not page:
        return {}
    return _parsed(page, key)


@lru_cache(maxsize=64)
def _parsed(page: bytes, key: str) -> Mapping[str, File]:
    """The files of a page, which is asked for once for each of its wheels."""
    return parse_page(page, key).entries


def _requirements(
    read: Read, filename: str, environment: dict[str, str], extras: Iterable[str]
) -> list[Requirement]:
    """The requirements of a wheel that hold in an environment, with those of its extras."""
    metadata = read(metadata_key(filename))
    if metadata is None:
        return []
    requirements = []
    for line in parse_email(metadata)[0].get("requires_dist", []):
        try:
            requirement = read_requirement(line)
            if _holds(requirement, environment, extras):
                requirements.append(requirement)
        except (InvalidRequirement, InvalidMarker, UndefinedEnvironmentName):
            continue  # admission refuses such a wheel; an index of others may have one
    return requirements


def _holds(requirement: Requirement, environment: dict[str, str], extras: Iterable[str]) -> bool:
    if requirement.marker is None:
        return True
    for extra in ("", *extras):
        if requirement.marker.evaluate({**environment, "extra": extra}):
            return True
    return False


def _environment(filename: str) -> dict[str, str]:
    """The variables of markers on a machine that takes the wheel, as far as its name tells them."""
    environment = {name: str(value) for name, value in default_environment().items()}
    tag = sorted(parse_wheel_filename(filename)[3], key=str)[0]
    python = re.fullmatch(r"cp3(\d+)", tag.interpreter)
    if python:
        environment["python_version"] = f"3.{python[1]}"
        environment["python_full_version"] = f"3.{python[1]}.0"
    system = of_tag(tag.platform)
    if system:
        os_name, sys_platform, platform_system = system.markers
        environment["os_name"] = os_name
        environment["sys_platform"] = sys_platform
        environment["platform_system"] = platform_system
        for machine in system.machines:
            if system.fits(tag.platform, machine):
                environment["platform_machine"] = system.marker_machines.get(machine, machine)
    return environment


def _version(file: File) -> Version:
    return parse_wheel_filename(file.filename)[1]


def _newest(files: Iterable[File], requirement: Requirement, beside: str) -> File | None:
    """The newest wheel that meets a requirement and goes into one environment with another."""
    fitting = []
    for file in files:
        version = parse_wheel_filename(file.filename)[1]
        if file.yanked or not requirement.specifier.contains(version, prereleases=True):
            continue
        if _goes_with(file.filename, beside):
            fitting.append((version, file.filename, file))
    if not fitting:
        return None
    return max(fitting)[2]


def _goes_with(filename: str, beside: str) -> bool:
    """True if a wheel is for the Python and the system of another one."""
    for wheel in parse_wheel_filename(beside)[3]:
        python = python_of(wheel.interpreter, wheel.abi)
        for tag in parse_wheel_filename(filename)[3]:
            same_python = wheel.interpreter == tag.interpreter or tag.interpreter.startswith("py")
            if re.fullmatch(r"py3\d+t?", python):
                same_python = serves(tag.interpreter, tag.abi, python)
            same_system = "any" in (tag.platform, wheel.platform)
            if same_python and (same_system or of_tag(tag.platform) is of_tag(wheel.platform)):
                return True
    return False
