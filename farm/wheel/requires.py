"""Checks of what a wheel asks pip to install beside it, and of files that have no place in it."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase, translate

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.base.errors import VerificationFailedError
from farm.base.requirement import read_requirement
from farm.platforms.facts import DEFAULT, split_platform
from farm.wheel.contents import Contents
from farm.wheel.metadata import DistInfo, same_name
from farm.wheel.policy import Policy
from farm.wheel.report import Check, Finding

_MAX_REQUIREMENTS = 2000


def check_metadata(info: DistInfo, policy: Policy) -> Check:
    """METADATA must keep pip from installing a numpy that the wheel cannot work with."""
    if policy.numpy is None:
        return Check(id="metadata", status="not_run", note="no bound on numpy is promised")
    where = f"{info.folder}/METADATA"
    declared = [each for each in _requirements(info, where) if same_name(each.name, "numpy")]
    # pip heeds all that apply, so what is allowed is what all of them allow.
    allowed = SpecifierSet()
    for each in declared:
        if each.url is None and _applies(each, policy, where):
            allowed &= each.specifier
    witness = _outside(allowed, SpecifierSet(policy.numpy))
    listed = ", ".join(str(each) for each in declared) or "nothing about numpy"
    if witness is None:
        return Check(id="metadata", status="passed", note=f"requires {listed}")
    finding = Finding(
        check="metadata",
        where=where,
        what=f"requires {listed}, which allows numpy {witness}; it must stay within {policy.numpy}",
        why="pip installs or keeps a numpy of another ABI: 'Numpy is not available', or a crash on import",
        fix=f"declare numpy{policy.numpy} in the package's install requirements",
    )
    return Check(id="metadata", status="failed", findings=(finding,))


def check_members(contents: Contents, policy: Policy) -> Check:
    """No file that the policy forbids."""
    any_of = re.compile("|".join(map(translate, policy.forbidden)) or r"\b\B")  # ten thousand members, at one look each
    findings = tuple(
        Finding(
            check="members",
            where=name,
            what=f"has no place in the wheel (policy: {pattern})",
            why="test libraries load before the real ones: a missing dependency of those is then blamed on these",
            fix="build without tests (BUILD_TEST=0, INSTALL_TEST=0) and from a clean build folder",
        )
        for name in filter(any_of.match, contents.files)
        for pattern in [next(each for each in policy.forbidden if fnmatchcase(name, each))]
    )
    return Check(id="members", status="failed" if findings else "passed", findings=findings)


def _requirements(info: DistInfo, where: str) -> Iterator[Requirement]:
    if len(info.requires_dist) > _MAX_REQUIREMENTS:
        raise VerificationFailedError(f"{where}: more than {_MAX_REQUIREMENTS} Requires-Dist headers")
    for line in info.requires_dist:
        try:
            yield read_requirement(line)
        except InvalidRequirement as error:
            raise VerificationFailedError(f"{where}: Requires-Dist {line[:80]!r} cannot be read") from error


def _applies(requirement: Requirement, policy: Policy, where: str) -> bool:
    """True if pip heeds it where the wheel is for, without extras."""
    if requirement.marker is None:
        return True
    digits = (policy.python or "cp311").removeprefix("cp").removesuffix("t")
    python = f"{digits[:1]}.{digits[1:]}"
    # A wheel for any platform is judged as on Linux.
    platform, machine = split_platform(policy.platform or f"{DEFAULT}_")
    os_name, sys_platform, platform_system = platform.markers
    environment = {
        "extra": "",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": os_name,
        "sys_platform": sys_platform,
        "platform_system": platform_system,
        "platform_machine": platform.marker_machines.get(machine, machine),
    }
    try:
        return requirement.marker.evaluate(environment)
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion) as error:
        raise VerificationFailedError(f"{where}: the condition of {str(requirement)[:80]!r} is wrong") from error


def _outside(allowed: SpecifierSet, bound: SpecifierSet) -> Version | None:
    """The highest version, among those where a verdict can change, that is allowed and breaks the bound.

    A specifier changes its verdict at the version that it names or where one of that version's leading parts
    counts on (`==1.*`, `~=1.2`): it is enough to try those, their neighbours and the extremes.
    """
    tried = {Version("0.1"), Version("9999")}
    for specifier in (*allowed, *bound):
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text
            continue
        tried.add(version)
        for length in range(1, len(version.release) + 1):
            head = version.release[:length]
            tried.add(Version(".".join(map(str, (*head[:-1], head[-1] + 1)))))
            tried.add(Version(".".join(map(str, (*head, 0, 1)))))
            if head[-1]:
                tried.add(Version(".".join(map(str, (*head[:-1], head[-1] - 1, 9999)))))
    wrong = [v for v in tried if allowed.contains(v, prereleases=True) and not bound.contains(v, prereleases=True)]
    return max(wrong, default=None)
