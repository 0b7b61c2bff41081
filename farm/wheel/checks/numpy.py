"""The check `metadata`: METADATA keeps pip from a numpy that the wheel cannot work with."""

from collections.abc import Iterator

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from farm.base.errors import VerificationFailedError
from farm.base.requirement import read_requirement
from farm.platforms.facts import DEFAULT, split_platform
from farm.policy.rules import Policy
from farm.wheel.checks.subject import Subject, not_run, outcome
from farm.wheel.metadata import DistInfo, same_name
from farm.wheel.report import Check, Finding

_MAX_REQUIREMENTS = 2000


def check(subject: Subject) -> Check:
    """Compare what METADATA allows with the promised bound on numpy."""
    return check_numpy(subject.info, subject.policy)


def check_numpy(info: DistInfo, policy: Policy) -> Check:
    """Compare the requirements of METADATA with the policy's bound on numpy."""
    if policy.numpy is None:
        return not_run("metadata", "no bound on numpy is promised")
    where = f"{info.folder}/METADATA"
    declared = [line for line in _requirements(info, where) if same_name(line.name, "numpy")]
    # pip heeds all that apply, so what is allowed is what all of them allow.
    allowed = SpecifierSet()
    for requirement in declared:
        if requirement.url is None and _applies(requirement, policy, where):
            allowed &= requirement.specifier
    witness = _version_outside(allowed, SpecifierSet(policy.numpy))
    requirements = ", ".join(map(str, declared)) or "nothing about numpy"
    if witness is None:
        return outcome("metadata", (), f"requires {requirements}")
    return outcome("metadata", [_too_wide(where, requirements, witness, policy.numpy)])


def _too_wide(where: str, listed: str, witness: Version, bound: str) -> Finding:
    return Finding(
        check="metadata",
        where=where,
        what=f"requires {listed}, which allows numpy {witness}; it must stay within {bound}",
        why="pip installs or keeps a numpy of another ABI: 'Numpy is not available', or a crash "
        "on import",
        fix=f"declare numpy{bound} in the package's install requirements",
    )


def _requirements(info: DistInfo, where: str) -> Iterator[Requirement]:
    if len(info.requires_dist) > _MAX_REQUIREMENTS:
        raise VerificationFailedError(
            f"{where}: more than {_MAX_REQUIREMENTS} Requires-Dist headers"
        )
    for line in info.requires_dist:
        try:
            yield read_requirement(line)
        except InvalidRequirement as error:
            raise VerificationFailedError(
                f"{where}: Requires-Dist {line[:80]!r} cannot be read"
            ) from error


def _applies(requirement: Requirement, policy: Policy, where: str) -> bool:
    """True if pip heeds it where the wheel is for, without extras."""
    if requirement.marker is None:
        return True
    digits = (policy.python or "cp311").removeprefix("cp").removesuffix("t")
    python = f"{digits[:1]}.{digits[1:]}"
    # A wheel for any platform is checked as on Linux.
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
        raise VerificationFailedError(
            f"{where}: the condition of {str(requirement)[:80]!r} is wrong"
        ) from error


def _version_outside(allowed: SpecifierSet, bound: SpecifierSet) -> Version | None:
    """The highest version, among those where a verdict can change, that is allowed and breaks the
    bound.

    A specifier changes its verdict at the version that it names or where one of that version's
    leading parts counts on (`==1.*`, `~=1.2`): it is enough to try those, their neighbours and the
    extremes.
    """
    candidates = {Version("0.1"), Version("9999")}
    for specifier in (*allowed, *bound):
        try:
            version = Version(specifier.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text
            continue
        candidates |= {version, *_neighbours(version)}
    outside = []
    for version in candidates:
        is_allowed = allowed.contains(version, prereleases=True)
        if is_allowed and not bound.contains(version, prereleases=True):
            outside.append(version)
    return max(outside, default=None)


def _neighbours(version: Version) -> Iterator[Version]:
    for length in range(1, len(version.release) + 1):
        *leading, last = version.release[:length]
        yield Version(".".join(map(str, (*leading, last + 1))))
        yield Version(".".join(map(str, (*leading, last, 0, 1))))
        if last:
            yield Version(".".join(map(str, (*leading, last - 1, 9999))))
